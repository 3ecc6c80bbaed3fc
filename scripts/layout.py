#!/usr/bin/env python3
"""Counts how the code is laid out: files per folder, long files, lines per area, arrows and cycles.

    python scripts/layout.py           the table
    python scripts/layout.py --json    the same for programs
    python scripts/layout.py --picture the packages and their imports, drawn by Mermaid

A line of code is one that holds more than blanks, a comment or a docstring. An import is of one of
three strengths: run when the module is loaded, run later (inside a function), or for types only.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "edgecompile"
STRENGTHS = ("load", "lazy", "types")
NATIVE = {".c", ".cpp", ".h"}

Graph = Mapping[str, set[str]]


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Every module of a package by its dotted name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    """Pairs (module, strength) of what a module imports from ``known``."""
    package = name if path.stem == "__init__" else name.rpartition(".")[0]

    def targets(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            return
        parts = package.split(".")
        base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
        whole = ".".join(part for part in (base, node.module) if part)
        for alias in node.names:
            inner = f"{whole}.{alias.name}"
            yield inner if inner in known else whole

    def walk(node: ast.AST, strength: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                yield from ((t, strength) for t in targets(child) if t in known and t != name)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                yield from walk(child, "lazy" if strength == "load" else strength)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                yield from walk(child, "types")
            else:
                yield from walk(child, strength)

    return walk(ast.parse(path.read_text(encoding="utf-8")), "load")


def graph(known: Mapping[str, Path], strengths: tuple[str, ...] = STRENGTHS) -> dict[str, set[str]]:
    """Which module imports which others."""
    return {
        name: {to for to, strength in imports(name, path, known) if strength in strengths}
        for name, path in known.items()
    }


def by_package(whole: Graph) -> dict[str, set[str]]:
    """The same between the packages and modules right below the root."""
    top: dict[str, set[str]] = {}
    for name, others in whole.items():
        own = ".".join(name.split(".")[:2])
        far = {".".join(other.split(".")[:2]) for other in others}
        top.setdefault(own, set()).update(far - {own})
    root = next(iter(whole)).split(".")[0]
    return {name: others - {root} for name, others in top.items() if name != root}


def cycles(whole: Graph) -> list[list[str]]:
    """Groups of nodes that reach each other (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in whole.get(node, ()):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in whole:
        if node not in number:
            visit(node)
    return sorted(found)


def picture(whole: Graph) -> str:
    """A Mermaid flowchart of the packages; an arrow that follows from others is left out."""
    packages = {
        name: {other for other in others if (PACKAGE / other.split(".")[1]).is_dir()}
        for name, others in by_package(whole).items()
        if (PACKAGE / name.split(".")[1]).is_dir()
    }

    def below(name: str) -> set[str]:
        direct = packages[name]
        return direct.union(*(below(other) for other in direct))

    rows = ["flowchart TD"]
    for name, others in sorted(packages.items()):
        implied = set[str]().union(*(below(other) for other in others))
        short = [other.split(".")[1] for other in sorted(others - implied)]
        rows += [f"    {name.split('.')[1]} --> {' & '.join(short)}"] if short else []
    return "\n".join(rows)


def code_lines(path: Path) -> int:
    """Lines of a file that hold code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in NATIVE:
        rows = (line.strip() for line in text.splitlines())
        return sum(bool(row) and not row.startswith(("//", "/*", "*")) for row in rows)
    quiet: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            quiet.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    rows = (line.strip() for line in text.splitlines())
    return sum(
        bool(row) and not row.startswith("#") and number not in quiet
        for number, row in enumerate(rows, 1)
    )


def sizes(folder: Path = PACKAGE) -> dict[str, dict[str, int]]:
    """Files of code in each folder, and the lines of the long ones."""
    files = code_files(folder)
    folders = Counter(str(path.parent.relative_to(REPOSITORY)) for path in files)
    lengths = {str(p.relative_to(REPOSITORY)): len(p.read_text().splitlines()) for p in files}
    return {
        "files_per_folder": dict(folders.most_common()),
        "files_over_400_lines": {name: n for name, n in sorted(lengths.items()) if n > 400},
    }


def code_files(folder: Path = PACKAGE) -> list[Path]:
    """Python, C and C++ of the package, or of another folder, and scripts, whose names have no suffix."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in files if path.suffix in NATIVE | {".py", ""}]


def count() -> dict[str, Any]:
    """All figures."""
    known = modules()
    areas: Counter[str] = Counter()
    for path in code_files():
        parts = path.relative_to(PACKAGE).parts
        areas["native" if "native" in parts else parts[0] if len(parts) > 1 else "."] += code_lines(
            path
        )
    ways = {"load": ("load",), "load and lazy": ("load", "lazy"), "all": STRENGTHS}
    graphs = {way: graph(known, strengths) for way, strengths in ways.items()}
    return {
        **sizes(),
        "code_lines": dict(areas.most_common()),
        "arrows_between_packages": sum(map(len, by_package(graphs["all"]).values())),
        "cycles_of_packages": {way: cycles(by_package(whole)) for way, whole in graphs.items()},
        "cycles_of_modules": {way: cycles(whole) for way, whole in graphs.items()},
    }


def main(arguments: list[str]) -> None:
    if arguments == ["--picture"]:
        print(picture(graph(modules())))
        return
    figures = count()
    if arguments == ["--json"]:
        print(json.dumps(figures, indent=1))
        return
    for title, values in figures.items():
        print(title.replace("_", " "))
        rows = values.items() if isinstance(values, dict) else [("", values)]
        for name, value in rows:
            print(f"  {name}: {value}")


if __name__ == "__main__":
    main(sys.argv[1:])
