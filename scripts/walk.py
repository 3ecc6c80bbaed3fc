#!/usr/bin/env python3
"""Follows one parameter through the calls, and counts how often its way changes rooms.

    python scripts/walk.py edgecompile/cli/build.py:command:lengths
    python scripts/walk.py edgecompile/cli/build.py:command:lengths --way

A room is a file, or a package. The way is the list of functions that are given the parameter, an object that holds
it, or something made from it, in the order of the calls, each once. A *stay* is a run of functions in one room; a
*return* is a stay in a room that the way had left.

Values are followed by fields: of a request that holds the lengths, ``request.target`` isn't one that is made from
them. What a function returns counts as made from the parameter if the function's code says so; of functions outside
the package it does whenever an argument counts. Comparisons end the way. Types come from annotations alone, so calls
through values without a type are lost. ``--way`` prints the functions, ``--package=FOLDER`` reads another tree.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from layout import PACKAGE, modules

Function = ast.FunctionDef | ast.AsyncFunctionDef
#: How much of a value is made from the parameter: none, all, or some of its fields.
Held: TypeAlias = "bool | Mapping[str, Held]"
_DEPTH = 4


def join(one: Held, other: Held, depth: int = _DEPTH) -> Held:
    """What is made from the parameter in a value that is one or the other."""
    if one is True or other is True:
        return True
    if not one or not other:
        return one or other
    if depth == 0:
        return True
    assert isinstance(one, Mapping) and isinstance(other, Mapping)
    names = sorted({*one, *other})
    return {name: join(one.get(name, False), other.get(name, False), depth - 1) for name in names}


def cut(held: Held, depth: int = _DEPTH) -> Held:
    """The same without fields that hold nothing, not deeper than ``depth``."""
    if isinstance(held, bool):
        return held
    if depth == 0:
        return bool(held)
    kept = {name: part for name, value in held.items() if (part := cut(value, depth - 1))}
    return kept or False


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
        if f"{owner}.{name}" in self.definitions:
            return f"{owner}.{name}"
        return next((m for base in self.bases(owner) if (m := self.member(base, name))), None)

    def bases(self, owner: str) -> Iterator[str]:
        """The classes of the project that a class derives from."""
        definition = self.definitions[owner]
        assert isinstance(definition.node, ast.ClassDef)
        for base in definition.node.bases:
            if parent := self.annotated(definition.module, base):
                yield parent

    def fields(self, owner: str) -> list[str]:
        """The annotated fields of a class, those of its bases first."""
        names = [name for base in self.bases(owner) for name in self.fields(base)]
        for node in self.definitions[owner].node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.append(node.target.id)
        return names

    def attribute(self, owner: str, name: str) -> str | None:
        """The class of an attribute, from its annotation or the property's."""
        if method := self.member(owner, name):
            definition = self.definitions[method]
            return self.annotated(definition.module, getattr(definition.node, "returns", None))
        for parent in (owner, *self.bases(owner)):
            definition = self.definitions[parent]
            for node in definition.node.body:
                if (
                    isinstance(node, ast.AnnAssign)
                    and isinstance(node.target, ast.Name)
                    and node.target.id == name
                ):
                    return self.annotated(definition.module, node.annotation)
        return None


class Walk:
    """The way of one parameter; followed again until no function is given more than before."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.given: dict[str, dict[str, Held]] = {}
        self.returned: dict[str, Held] = {}
        self.attributes: dict[str, Held] = {}
        self.way: list[str] = []
        self.changed = False

    def follow(self, start: str, parameter: str) -> list[str]:
        """The functions that a parameter of one passes."""
        self.changed = True
        while self.changed:
            self.changed = False
            self.way = []
            self.enter(start, {parameter: True})
        return self.way

    def enter(self, dotted: str, carried: Mapping[str, Held]) -> None:
        """Follows what the parameters of a function carry, unless this round did before."""
        definition = self.project.definitions[dotted]
        given = self.given.setdefault(dotted, {})
        for name, held in carried.items():
            self._grow(given, name, held)
        if dotted in self.way:
            return
        self.way.append(dotted)
        types: dict[str, str] = {}
        for argument in _arguments(definition.node):
            if owner := self.project.annotated(definition.module, argument.annotation):
                types[argument.arg] = owner
        if definition.owner:
            types["self"] = types["cls"] = definition.owner
        _Body(self, dotted, definition, dict(given), types).run()

    def give_back(self, dotted: str, held: Held) -> None:
        """Notes what a function returns."""
        self._grow(self.returned, dotted, held)

    def keep(self, owner: str, name: str, held: Held) -> None:
        """Notes what a method assigns to an attribute of its object."""
        before = self.attributes.get(owner, False)
        self._grow(self.attributes, owner, join(before, {name: held}))

    def _grow(self, table: dict[str, Held], name: str, held: Held) -> None:
        before = table.get(name, False)
        after = cut(join(before, cut(held)))
        if after != before:
            table[name] = after
            self.changed = True


def _arguments(node: Function | ast.ClassDef) -> list[ast.arg]:
    assert not isinstance(node, ast.ClassDef)
    named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [*named, *(a for a in (node.args.vararg, node.args.kwarg) if a)]


class _Body:
    """One function's statements, in order."""

    def __init__(
        self,
        walk: Walk,
        name: str,
        definition: Definition,
        carried: dict[str, Held],
        types: dict[str, str],
    ) -> None:
        self.walk = walk
        self.project = walk.project
        self.name = name
        self.module = definition.module
        self.node = definition.node
        self.owner = definition.owner
        self.carried = carried
        self.types = types
        self.inner: dict[str, Function] = {}
        self.running: set[str] = set()

    def run(self) -> None:
        assert not isinstance(self.node, ast.ClassDef)
        self._block(self.node.body)

    def _block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, Function):
            self.inner[node.name] = node
            return
        if isinstance(node, ast.Return):
            if node.value is not None:
                self.walk.give_back(self.name, self._value(node.value))
            return
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            held = self._value(node.value)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self._bind(target, held, node.value)
                declared = node.annotation if isinstance(node, ast.AnnAssign) else None
                owner = self.project.annotated(self.module, declared)
                if owner and isinstance(target, ast.Name):
                    self.types[target.id] = owner
            return
        for name in ("test", "iter", "value", "exc", "subject", "msg"):
            part = getattr(node, name, None)
            if isinstance(part, ast.expr):
                held = self._value(part)
                if name == "iter" and isinstance(node, ast.For):
                    self._bind(node.target, _item(held), None)
        for item in getattr(node, "items", []):
            held = self._value(item.context_expr)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, held, item.context_expr)
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            for part in getattr(node, name, []):
                if isinstance(part, ast.stmt):
                    self._statement(part)
                else:
                    self._block(part.body)

    def _bind(self, target: ast.expr, held: Held, value: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for number, part in enumerate(target.elts):
                self._bind(part, _field(held, str(number)), None)
        elif isinstance(target, ast.Name):
            self.carried[target.id] = join(self.carried.get(target.id, False), held)
            if value is not None and (owner := self._type(value)):
                self.types[target.id] = owner
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            if target.value.id == "self" and self.owner:
                self.walk.keep(self.owner, target.attr, held)
        elif isinstance(target, ast.Subscript | ast.Starred) and held:
            self._bind(target.value, True, None)

    def _type(self, node: ast.expr) -> str | None:
        """The class of an expression's value, as far as annotations say."""
        if isinstance(node, ast.Name):
            return self.types.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._type(node.value)
            return self.project.attribute(owner, node.attr) if owner else None
        if isinstance(node, ast.IfExp):
            return self._type(node.body) or self._type(node.orelse)
        if isinstance(node, ast.Call):
            if self._replaces(node):
                return self._type(node.args[0])
            callee = self._callee(node.func)
            if callee is None:
                return None
            definition = self.project.definitions[callee]
            if isinstance(definition.node, ast.ClassDef):
                return callee
            return self.project.annotated(definition.module, definition.node.returns)
        return None

    def _replaces(self, node: ast.Call) -> bool:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        return bool(node.args) and self.module.names.get(name) == "dataclasses.replace"

    def _callee(self, function: ast.expr) -> str | None:
        if isinstance(function, ast.Name):
            if function.id == "cls" and self.owner:
                return self.owner
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

    def _value(self, node: ast.expr) -> Held:
        """Follows the calls of an expression; how much of its value is made from the parameter."""
        if isinstance(node, ast.Name):
            return self.carried.get(node.id, False)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Lambda):
            return self._value(node.body)
        if isinstance(node, ast.Tuple):
            return {str(number): self._value(part) for number, part in enumerate(node.elts)}
        if isinstance(node, ast.IfExp):
            self._value(node.test)
            return join(self._value(node.body), self._value(node.orelse))
        if isinstance(node, ast.NamedExpr):
            named = self._value(node.value)
            self._bind(node.target, named, node.value)
            return named
        if isinstance(node, ast.Yield | ast.YieldFrom):
            if node.value is not None:
                self.walk.give_back(self.name, self._value(node.value))
            return False
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            for generator in node.generators:
                self._bind(generator.target, _item(self._value(generator.iter)), None)
                for test in generator.ifs:
                    self._value(test)
            parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            return any([cut(self._value(part)) for part in parts])
        held: Held = False
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                held = join(held, self._value(child))
        if isinstance(node, ast.Compare) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        ):
            return False
        return held if isinstance(node, ast.BoolOp | ast.Starred) else bool(cut(held))

    def _attribute(self, node: ast.Attribute) -> Held:
        held = self._value(node.value)
        owner = self._type(node.value)
        if owner and (method := self.project.member(owner, node.attr)):
            return self._run(method, {"self": held}) if cut(held) else False
        mine = self.walk.attributes.get(owner, False) if owner else False
        return join(_field(held, node.attr), _field(mine, node.attr))

    def _call(self, node: ast.Call) -> Held:
        receiver: Held = False
        if isinstance(node.func, ast.Attribute):
            receiver = self._value(node.func.value)
        else:  # a name may be a parameter that holds a function
            receiver = self._value(node.func)
        given: list[tuple[str | int, Held]] = []
        for number, argument in enumerate(node.args):
            inside = argument.value if isinstance(argument, ast.Starred) else argument
            if isinstance(inside, ast.Name) and inside.id in self.inner:
                self._local(inside.id)
            given.append((number, self._value(inside)))
        given += [(word.arg or "**", self._value(word.value)) for word in node.keywords]
        if self._replaces(node):
            changes = {str(name): held for name, held in given if not isinstance(name, int)}
            first = given[0][1]
            if first is True or not isinstance(first, Mapping):
                return join(first, changes)
            return {**first, **changes}
        holds = bool(cut(receiver)) or any([cut(held) for _, held in given])
        if isinstance(node.func, ast.Name) and node.func.id in self.inner:
            self._local(node.func.id)
            return holds
        callee = self._callee(node.func)
        if callee is None or not holds:
            return holds
        if isinstance(self.project.definitions[callee].node, ast.ClassDef):
            return self._construct(callee, given)
        return self._run(callee, self._parameters(callee, receiver, given))

    def _construct(self, owner: str, given: list[tuple[str | int, Held]]) -> Held:
        if initial := self.project.member(owner, "__init__"):
            self._run(initial, self._parameters(initial, False, given, bound=True))
            return self.walk.attributes.get(owner, False)
        names = self.project.fields(owner)
        if not names:
            return True
        made: dict[str, Held] = {}
        for place, held in given:
            if isinstance(place, int) and place < len(names):
                made[names[place]] = held
            elif isinstance(place, str) and place in names:
                made[place] = held
            elif cut(held):  # by a star
                made |= {name: join(made.get(name, False), bool(cut(held))) for name in names}
        if initial := self.project.member(owner, "__post_init__"):
            self._run(initial, {"self": made})
        return made

    def _parameters(
        self,
        callee: str,
        receiver: Held,
        given: list[tuple[str | int, Held]],
        bound: bool = False,
    ) -> dict[str, Held]:
        """What each parameter of a function is given."""
        definition = self.project.definitions[callee]
        arguments = definition.node.args  # type: ignore[union-attr]
        names = [argument.arg for argument in _arguments(definition.node)]
        bound = bound or (definition.owner is not None and names[:1] in (["self"], ["cls"]))
        carried: dict[str, Held] = {names[0]: receiver} if bound and cut(receiver) else {}
        positional = [*arguments.posonlyargs, *arguments.args]
        for place, held in given:
            if not cut(held):
                continue
            if isinstance(place, int):
                if place + bound < len(positional):
                    carried[names[place + bound]] = held
                elif arguments.vararg:
                    carried[arguments.vararg.arg] = True
            elif place in names:
                carried[place] = held
            elif place == "**":
                named = {item for item, _ in given} | set(names[: bound + len(given)])
                carried |= dict.fromkeys([n for n in names[bound:] if n not in named], True)
            elif arguments.kwarg:
                carried[arguments.kwarg.arg] = True
        return carried

    def _run(self, callee: str, carried: dict[str, Held]) -> Held:
        if not any([cut(held) for held in carried.values()]):
            return False
        self.walk.enter(callee, carried)
        return self.walk.returned.get(callee, False)

    def _local(self, name: str) -> None:
        if name not in self.running:
            self.running.add(name)
            self._block(self.inner[name].body)


def _field(held: Held, name: str) -> Held:
    return held if isinstance(held, bool) else held.get(name, False)


def _item(held: Held) -> Held:
    """Of what is iterated, an item."""
    return bool(cut(held))


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
    dotted = ".".join((*Path(path).with_suffix("").parts, function))
    return Walk(project).follow(dotted, parameter)


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
