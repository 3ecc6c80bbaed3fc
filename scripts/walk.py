#!/usr/bin/env python3
"""Follows one parameter through the calls, and counts how often its way changes rooms.

    python scripts/walk.py edgecompile/cli/build.py:command:lengths
    python scripts/walk.py edgecompile/cli/build.py:command:lengths --way

A room is a file, or a package. The way is the list of functions that get the parameter, or something made from it, in
the order of the calls, each once. A *stay* is a run of functions in one room; a *return* is a stay in a
room that the way had left. Types come from annotations alone, so calls through values without a type are
lost. ``--way`` prints the functions, ``--package=FOLDER`` reads another tree.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from layout import PACKAGE, modules

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """The names that a module defines and imports, with their dotted names."""

    name: str
    tree: ast.Module
    names: dict[str, str] = field(default_factory=dict)


@dataclass
class Definition:
    """A function or class, the module it is in, and the class around a method."""

    module: Module
    node: Function | ast.ClassDef
    owner: str | None = None


class Project:
    """All definitions below a package, by dotted name."""

    def __init__(self, package: Path) -> None:
        self.definitions: dict[str, Definition] = {}
        self.modules: dict[str, Module] = {}
        self.paths = modules(package)
        for name, path in self.paths.items():
            module = Module(name, ast.parse(path.read_text(encoding="utf-8")))
            self.modules[name] = module
            self._read(module, path.stem == "__init__")

    def _read(self, module: Module, is_package: bool) -> None:
        package = module.name if is_package else module.name.rpartition(".")[0]
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom):
                parts = package.split(".")
                base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
                whole = ".".join(part for part in (base, node.module) if part)
                for alias in node.names:
                    module.names[alias.asname or alias.name] = f"{whole}.{alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname:
                        module.names[alias.asname] = alias.name
        for node in module.tree.body:
            if not isinstance(node, Function | ast.ClassDef):
                continue
            dotted = f"{module.name}.{node.name}"
            module.names[node.name] = dotted
            self.definitions[dotted] = Definition(module, node)
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, Function):
                        method = f"{dotted}.{inner.name}"
                        self.definitions[method] = Definition(module, inner, dotted)

    def resolve(self, dotted: str) -> str | None:
        """The definition behind a name, through re-exports."""
        for _ in range(5):
            if dotted in self.definitions:
                return dotted
            module, _, name = dotted.rpartition(".")
            if module not in self.modules or name not in self.modules[module].names:
                return None
            dotted = self.modules[module].names[name]
        return None

    def annotated(self, module: Module, annotation: ast.expr | None) -> str | None:
        """The first class of the project that an annotation names."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        for node in ast.walk(annotation) if annotation is not None else ():
            if isinstance(node, ast.Name) and node.id in module.names:
                dotted = self.resolve(module.names[node.id])
                if dotted and isinstance(self.definitions[dotted].node, ast.ClassDef):
                    return dotted
        return None

    def member(self, owner: str, name: str) -> str | None:
        """A method of a class or of one that it derives from."""
        definition = self.definitions[owner]
        if f"{owner}.{name}" in self.definitions:
            return f"{owner}.{name}"
        for base in definition.node.bases if isinstance(definition.node, ast.ClassDef) else ():
            parent = self.annotated(definition.module, base)
            if parent and (method := self.member(parent, name)):
                return method
        return None

    def attribute(self, owner: str, name: str) -> str | None:
        """The class of an attribute, from its annotation or the property's."""
        definition = self.definitions[owner]
        if method := self.member(owner, name):
            node = self.definitions[method].node
            return self.annotated(self.definitions[method].module, getattr(node, "returns", None))
        for node in definition.node.body:
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and node.target.id == name
            ):
                return self.annotated(definition.module, node.annotation)
        return None


class Walk:
    """The way of one parameter."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.way: list[str] = []
        self.seen: set[str] = set()

    def enter(self, dotted: str, carried: set[str]) -> None:
        """Follows the parameters ``carried`` through a function, unless it was followed before."""
        definition = self.project.definitions[dotted]
        if dotted in self.seen or isinstance(definition.node, ast.ClassDef):
            return
        self.seen.add(dotted)
        self.way.append(dotted)
        types: dict[str, str] = {}
        for argument in _arguments(definition.node):
            if owner := self.project.annotated(definition.module, argument.annotation):
                types[argument.arg] = owner
        if definition.owner:
            types["self"] = types["cls"] = definition.owner
        _Body(self, dotted, definition, carried, types).run()


def _arguments(node: Function) -> list[ast.arg]:
    named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [*named, *(a for a in (node.args.vararg, node.args.kwarg) if a)]


class _Body:
    """One function's statements, in order."""

    def __init__(
        self,
        walk: Walk,
        name: str,
        definition: Definition,
        carried: set[str],
        types: dict[str, str],
    ) -> None:
        self.walk = walk
        self.project = walk.project
        self.name = name
        self.module = definition.module
        self.node = definition.node
        self.carried = carried
        self.types = types
        self.inner: dict[str, Function | ast.Lambda] = {}
        self.running: set[str] = set()

    def run(self) -> None:
        self._block(self.node.body)

    def _block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, Function):
            self.inner[node.name] = node
            return
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            holds = self._expression(node.value)
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                self._bind(target, holds, node.value)
                if isinstance(node, ast.AnnAssign) and isinstance(target, ast.Name):
                    owner = self.project.annotated(self.module, node.annotation)
                    if owner:
                        self.types[target.id] = owner
            return
        for name in ("test", "iter", "value", "exc", "subject", "msg"):
            part = getattr(node, name, None)
            if isinstance(part, ast.expr):
                holds = self._expression(part)
                if name == "iter" and isinstance(node, ast.For):
                    self._bind(node.target, holds, None)
        for item in getattr(node, "items", []):
            holds = self._expression(item.context_expr)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, holds, item.context_expr)
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            for part in getattr(node, name, []):
                if isinstance(part, ast.stmt):
                    self._statement(part)
                else:
                    self._block(part.body)

    def _bind(self, target: ast.expr, holds: bool, value: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:
                self._bind(part, holds, None)
        elif isinstance(target, ast.Name):
            if holds:
                self.carried.add(target.id)
            if value is not None and (owner := self._type(value)):
                self.types[target.id] = owner

    def _type(self, node: ast.expr) -> str | None:
        """The class of an expression's value, as far as annotations say."""
        if isinstance(node, ast.Name):
            return self.types.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._type(node.value)
            return self.project.attribute(owner, node.attr) if owner else None
        if isinstance(node, ast.Call):
            callee = self._callee(node.func)
            if callee is None:
                return None
            definition = self.project.definitions[callee]
            if isinstance(definition.node, ast.ClassDef):
                return callee
            return self.project.annotated(definition.module, definition.node.returns)
        return None

    def _callee(self, function: ast.expr) -> str | None:
        if isinstance(function, ast.Name):
            dotted = self.module.names.get(function.id)
            return self.project.resolve(dotted) if dotted else None
        if isinstance(function, ast.Attribute):
            if isinstance(function.value, ast.Name) and function.value.id in self.module.names:
                base = self.module.names[function.value.id]
                if dotted := self.project.resolve(f"{base}.{function.attr}"):
                    return dotted
                if owner := self.project.resolve(base):
                    return self.project.member(owner, function.attr)
            owner = self._type(function.value)
            return self.project.member(owner, function.attr) if owner else None
        return None

    def _expression(self, node: ast.expr) -> bool:
        """Follows the calls of an expression; whether its value is made from the parameter."""
        if isinstance(node, ast.Name):
            return node.id in self.carried
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Lambda):
            return self._expression(node.body)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            for generator in node.generators:
                self._bind(generator.target, self._expression(generator.iter), None)
        holds = False
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                holds |= self._expression(child)
        return holds

    def _call(self, node: ast.Call) -> bool:
        receiver = isinstance(node.func, ast.Attribute) and self._expression(node.func.value)
        given: list[tuple[str | int, bool]] = []
        for number, argument in enumerate(node.args):
            inside = argument.value if isinstance(argument, ast.Starred) else argument
            if isinstance(inside, ast.Name) and inside.id in self.inner:
                self._local(inside.id)
            given.append((number, self._expression(inside)))
        given += [(word.arg or "**", self._expression(word.value)) for word in node.keywords]
        holds = receiver or any(carries for _, carries in given)
        if isinstance(node.func, ast.Name) and node.func.id in self.inner:
            self._local(node.func.id)
            return holds
        callee = self._callee(node.func)
        if callee is None or not holds:
            return holds
        definition = self.project.definitions[callee]
        if isinstance(definition.node, ast.ClassDef):
            initial = self.project.member(callee, "__post_init__")
            if initial:
                self.walk.enter(initial, {"self"})
            return True
        names = [argument.arg for argument in _arguments(definition.node)]
        bound = definition.owner is not None and names[:1] in (["self"], ["cls"])
        carried = {"self"} if bound and receiver else set()
        for position, carries in given:
            if not carries:
                continue
            if isinstance(position, int):
                carried |= set(names[position + bound : position + bound + 1])
            elif position == "**":
                carried |= set(names[bound:])
            elif position in names:
                carried.add(position)
            elif definition.node.args.kwarg:
                carried.add(definition.node.args.kwarg.arg)
        if carried:
            self.walk.enter(callee, carried)
        return True

    def _local(self, name: str) -> None:
        node = self.inner[name]
        if name not in self.running and isinstance(node, Function):
            self.running.add(name)
            self._block(node.body)


def figures(way: list[str], project: Project) -> Iterator[str]:
    """Functions, stays, rooms and returns of a way; with files, then with packages as rooms."""
    yield f"{len(way)} functions"
    names = [project.definitions[function].module.name for function in way]
    for title, depth in (("files", None), ("packages", 2)):
        visits = [".".join(name.split(".")[:depth]) for name in names]
        stays = sum(room != before for room, before in zip(visits, ["", *visits], strict=False))
        rooms = len(set(visits))
        yield f"{stays} stays in {rooms} {title}, {stays - rooms} returns"


def follow(start: str, project: Project) -> list[str]:
    """The functions that ``FILE.py:FUNCTION:PARAMETER`` passes."""
    path, function, parameter = start.split(":")
    walk = Walk(project)
    walk.enter(".".join((*Path(path).with_suffix("").parts, function)), {parameter})
    return walk.way


def main(arguments: list[str]) -> None:
    folder = next(
        (Path(a.partition("=")[2]) for a in arguments if a.startswith("--package=")), PACKAGE
    )
    project = Project(folder)
    for start in (a for a in arguments if not a.startswith("--")):
        way = follow(start, project)
        if "--way" in arguments:
            print(*way, sep="\n")
        print(start, *figures(way, project), sep="; ")


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    main(sys.argv[1:])
