#!/usr/bin/env python3
"""Follows one parameter through the calls, and counts how often its way changes rooms.

    python scripts/walk.py edgecompile/api/build.py:build:lengths
    python scripts/walk.py edgecompile/api/build.py:build:lengths --way

A room is a file, or a package. The way goes through the functions that are given the parameter, in the order of the
calls: every call is a stop, and a function's body is followed at its first. A *stay* is a run of stops in one room; a
*return* is a stay in a room that the way had left.

A value is followed whole: with its fields, with objects that are constructed of it, and into its methods and
properties, as far as annotations tell its class. Constructors aren't entered; comparisons and loops over a value end
the way. What a function of the project returns counts only where stages are joined (``JOINING``). Of the rules that were tried these come nearest to the figures that another tool gave for commit
e01d5af; see docs/benchmarks/2026-11-26-house.md.

``--way`` prints the functions, ``--returns`` the rooms that the way returns to; ``--package=FOLDER`` reads another tree.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path

from layout import PACKAGE, modules

Function = ast.FunctionDef | ast.AsyncFunctionDef
#: The modules whose functions hand on what others return, in e01d5af (one ``pipeline.py``) and today.
JOINING = r"edgecompile\.((api|cli)\..*|pipeline(\.build|\.stages)?)"


@dataclass(eq=False)
class Module:
    """The names that a module defines and imports, with their dotted names."""

    name: str
    tree: ast.Module
    names: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class Definition:
    """A function or class, the module it is in, and the class around a method."""

    module: Module
    node: Function | ast.ClassDef
    owner: str | None = None

    @property
    def arguments(self) -> list[str]:
        """Names of a function's parameters, by position as far as they have one."""
        assert not isinstance(self.node, ast.ClassDef)
        given = self.node.args
        named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        return [a.arg for a in (*named, given.vararg, given.kwarg) if a]

    @property
    def is_property(self) -> bool:
        """Whether it is run where its name is read."""
        names = {ast.unparse(item).rpartition(".")[2] for item in self.node.decorator_list}
        return bool(names & {"property", "cached_property"})


class Project:
    """All definitions below a package, by dotted name."""

    def __init__(self, package: Path) -> None:
        self.definitions: dict[str, Definition] = {}
        self.modules: dict[str, Module] = {}
        for name, path in modules(package).items():
            module = Module(name, ast.parse(path.read_text(encoding="utf-8")))
            self.modules[name] = module
            self._read(module, path.stem == "__init__")
        self.annotated = cache(self._annotated)
        self.attribute = cache(self._attribute)

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
                module.names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        for node in module.tree.body:
            if not isinstance(node, Function | ast.ClassDef):
                continue
            dotted = f"{module.name}.{node.name}"
            module.names[node.name] = dotted
            self.definitions[dotted] = Definition(module, node)
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
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

    def _annotated(self, module: Module, annotation: ast.expr | None) -> str | None:
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
        if f"{owner}.{name}" in self.definitions:
            return f"{owner}.{name}"
        return next((m for base in self._bases(owner) if (m := self.member(base, name))), None)

    def _bases(self, owner: str) -> Iterator[str]:
        definition = self.definitions[owner]
        assert isinstance(definition.node, ast.ClassDef)
        bases = (self.annotated(definition.module, base) for base in definition.node.bases)
        return (base for base in bases if base)

    def _attribute(self, owner: str, name: str) -> str | None:
        """The class of an attribute, from its annotation or the property's."""
        if method := self.member(owner, name):
            definition = self.definitions[method]
            return self.annotated(definition.module, getattr(definition.node, "returns", None))
        for parent in (owner, *self._bases(owner)):
            definition = self.definitions[parent]
            for node in definition.node.body:
                if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name:
                    return self.annotated(definition.module, node.annotation)
        return None


class Walk:
    """The way of one parameter: every stop, and for each function whether it returns something of it."""

    def __init__(self, project: Project, start: str, parameter: str) -> None:
        self.project = project
        self.stops: list[str] = []
        self.returned: dict[str, bool] = {}
        self.enter(start, {parameter})

    def enter(self, dotted: str, carried: set[str]) -> None:
        """Stops at a function, and follows the parameters that carry the value at the first time."""
        self.stops.append(dotted)
        if dotted not in self.returned:
            self.returned[dotted] = False
            _Body(self, dotted, carried).run()

    @property
    def way(self) -> list[str]:
        """The functions in the order in which they are met, each once."""
        return list(self.returned)

    def stays(self, depth: int | None = None) -> list[str]:
        """The rooms in order: modules, or their packages of ``depth`` parts."""
        names = [self.project.definitions[stop].module.name for stop in self.stops]
        return [room for room, _ in groupby(".".join(n.split(".")[:depth]) for n in names)]

    def figures(self) -> Iterator[str]:
        """Functions, stays, rooms and returns; with files, then with packages as rooms."""
        yield f"{len(self.way)} functions"
        for title, depth in (("files", None), ("packages", 2)):
            visits = self.stays(depth)
            rooms = len(set(visits))
            yield f"{len(visits)} stays in {rooms} {title}, {len(visits) - rooms} returns"


class _Body(ast.NodeVisitor):
    """One function's statements, in order; visiting an expression says whether it holds the value."""

    def __init__(self, walk: Walk, name: str, carried: set[str]) -> None:
        self.walk = walk
        self.project = walk.project
        self.name = name
        definition = walk.project.definitions[name]
        assert not isinstance(definition.node, ast.ClassDef)
        self.module = definition.module
        self.node = definition.node
        self.owner = definition.owner
        self.carried = set(carried)
        self.joins = bool(re.fullmatch(JOINING, self.module.name))
        self.types: dict[str, str] = {}
        self.inner: dict[str, Function] = {}
        every = ast.walk(self.node.args)
        for argument in (node for node in every if isinstance(node, ast.arg)):
            if owner := self.project.annotated(self.module, argument.annotation):
                self.types[argument.arg] = owner
        if self.owner:
            self.types["self"] = self.types["cls"] = self.owner

    def run(self) -> None:
        for statement in self.node.body:
            self.visit(statement)

    def generic_visit(self, node: ast.AST) -> bool:
        held = [self.visit(child) for child in ast.iter_child_nodes(node)]
        return isinstance(node, ast.expr) and any(held)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> bool:
        self.inner[node.name] = node
        return False

    def visit_Return(self, node: ast.Return | ast.Yield | ast.YieldFrom) -> bool:
        if node.value is not None and self.visit(node.value):
            self.walk.returned[self.name] = True
        return False

    visit_Yield = visit_YieldFrom = visit_Return

    def visit_Assign(self, node: ast.Assign) -> bool:
        held = self.visit(node.value)
        for target in node.targets:
            self._bind(target, held, node.value)
        return False

    def visit_AnnAssign(self, node: ast.AnnAssign) -> bool:
        if node.value is not None:
            self._bind(node.target, self.visit(node.value), node.value)
        owner = self.project.annotated(self.module, node.annotation)
        if owner and isinstance(node.target, ast.Name):
            self.types[node.target.id] = owner
        return False

    def visit_AugAssign(self, node: ast.AugAssign) -> bool:
        self._bind(node.target, self.visit(node.value), None)
        return False

    def visit_withitem(self, node: ast.withitem) -> bool:
        held = self.visit(node.context_expr)
        if node.optional_vars is not None:
            self._bind(node.optional_vars, held, node.context_expr)
        return False

    def _bind(self, target: ast.expr, held: bool, value: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:
                self._bind(part, held, None)
        elif isinstance(target, ast.Name):
            self.carried |= {target.id} if held else set()
            if value is not None and (owner := self._type(value)):
                self.types[target.id] = owner
        elif isinstance(target, ast.Subscript | ast.Starred):
            self._bind(target.value, held, None)

    def visit_Name(self, node: ast.Name) -> bool:
        return node.id in self.carried

    def visit_Attribute(self, node: ast.Attribute) -> bool:
        held = self.visit(node.value)
        owner = self._type(node.value) if held else None
        method = self.project.member(owner, node.attr) if owner else None
        if method and self.project.definitions[method].is_property:
            return self._follow(method, {"self"})
        return held

    def visit_Compare(self, node: ast.Compare) -> bool:
        self.generic_visit(node)
        return False

    def visit_UnaryOp(self, node: ast.UnaryOp) -> bool:
        return self.visit(node.operand) and not isinstance(node.op, ast.Not)

    def visit_IfExp(self, node: ast.IfExp) -> bool:
        self.visit(node.test)
        return any([self.visit(node.body), self.visit(node.orelse)])

    def visit_NamedExpr(self, node: ast.NamedExpr) -> bool:
        held = self.visit(node.value)
        self._bind(node.target, held, node.value)
        return held

    def visit_Lambda(self, node: ast.Lambda) -> bool:
        return self.visit(node.body)

    def visit_ListComp(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> bool:
        for generator in node.generators:
            self.visit(generator)
        made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        return any([self.visit(part) for part in made])

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp

    def visit_Call(self, node: ast.Call) -> bool:
        function = node.func
        receiver = self.visit(function.value if isinstance(function, ast.Attribute) else function)
        given: list[tuple[int | str, bool]] = []
        for number, argument in enumerate(node.args):
            starred = isinstance(argument, ast.Starred)
            given.append(("*" if starred else number, self.visit(argument)))
        given += [(word.arg or "**", self.visit(word.value)) for word in node.keywords]
        holds = any(held for _, held in given)
        for name in (part.id for part in (function, *node.args) if isinstance(part, ast.Name)):
            if local := self.inner.pop(name, None):  # a function within this one: part of it
                self.generic_visit(local)
        callee = self._callee(function)
        if callee is None or isinstance(self.project.definitions[callee].node, ast.ClassDef):
            return holds
        return self._follow(callee, self._parameters(callee, receiver, given))

    def _parameters(
        self, callee: str, receiver: bool, given: list[tuple[int | str, bool]]
    ) -> set[str]:
        """The parameters of a function that are given the value."""
        definition = self.project.definitions[callee]
        names = definition.arguments
        bound = definition.owner is not None and names[:1] in (["self"], ["cls"])
        carried = {names[0]} if bound and receiver else set()
        for place in (place for place, held in given if held):
            if isinstance(place, int):
                carried |= {names[place + bound]} if place + bound < len(names) else set()
            elif place in names:
                carried.add(place)
            elif place in ("*", "**"):
                carried |= {*names[bound:]} - {place for place, _ in given}
        return carried

    def _follow(self, callee: str, carried: set[str]) -> bool:
        if not carried:
            return False
        self.walk.enter(callee, carried)
        return self.joins

    def _callee(self, function: ast.expr) -> str | None:
        if isinstance(function, ast.Name):
            if function.id == "cls" and self.owner:
                return self.owner
            return self.project.resolve(self.module.names.get(function.id, ""))
        if not isinstance(function, ast.Attribute):
            return None
        base = self.module.names.get(ast.unparse(function.value), "")
        if dotted := self.project.resolve(f"{base}.{function.attr}"):
            return dotted
        owner = self.project.resolve(base) or self._type(function.value)
        return self.project.member(owner, function.attr) if owner else None

    def _type(self, node: ast.expr) -> str | None:
        """The class of an expression's value, as far as annotations say."""
        if isinstance(node, ast.Name):
            return self.types.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._type(node.value)
            return self.project.attribute(owner, node.attr) if owner else None
        if isinstance(node, ast.IfExp):
            return self._type(node.body) or self._type(node.orelse)
        if isinstance(node, ast.Call) and (callee := self._callee(node.func)):
            definition = self.project.definitions[callee]
            if isinstance(definition.node, ast.ClassDef):
                return callee
            return self.project.annotated(definition.module, definition.node.returns)
        return None


def returns(visits: list[str]) -> Counter[str]:
    """How often a way returns to each room."""
    return Counter(visits) - Counter(set(visits))


def main(arguments: list[str]) -> None:
    folder = next(
        (Path(a.partition("=")[2]) for a in arguments if a.startswith("--package=")), PACKAGE
    )
    project = Project(folder)
    for start in (a for a in arguments if not a.startswith("--")):
        path, function, parameter = start.split(":")
        dotted = ".".join((*Path(path).with_suffix("").parts, function))
        walk = Walk(project, dotted, parameter)
        if "--way" in arguments:
            print(*walk.way, sep="\n")
        if "--returns" in arguments:
            for room, times in returns(walk.stays()).most_common():
                print(f"{times:4} {room}")
        print(start, *walk.figures(), sep="; ")


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    main(sys.argv[1:])
