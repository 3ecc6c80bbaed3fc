"""Conditions on sizes as people write them: ``length % 16 == 0`` for ``Eq(Mod(s77, 16), 0)``."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

__all__ = ["fixed_size", "readable_guard"]

_COMPARISONS: Mapping[str, type[ast.cmpop]] = {
    "Eq": ast.Eq,
    "Ne": ast.NotEq,
    "Lt": ast.Lt,
    "Le": ast.LtE,
    "Gt": ast.Gt,
    "Ge": ast.GtE,
}
_OPERATORS: Mapping[str, type[ast.operator]] = {
    "Mod": ast.Mod,
    "PythonMod": ast.Mod,
    "FloorDiv": ast.FloorDiv,
    "CleanDiv": ast.FloorDiv,
    "IntTrueDiv": ast.Div,
}
_FIXED = re.compile(r"^Eq\((\w+), (\d+)\)$")


def readable_guard(expression: str, names: Mapping[str, str]) -> str:
    """A condition in Python's operators, with the axes' names.

    Args:
        expression: as torch's log has it; what isn't an expression stays as it is.
        names: what each of torch's symbols stands for.
    """
    try:
        tree = ast.parse(expression, mode="eval")
    except (SyntaxError, ValueError):
        return expression
    return ast.unparse(ast.fix_missing_locations(_Operators(names).visit(tree)))


def fixed_size(expression: str, names: Mapping[str, str]) -> tuple[str, int] | None:
    """(axis, size) if the condition says that an axis has one size only."""
    match = _FIXED.match(expression)
    if match is None or match[1] not in names:
        return None
    return names[match[1]], int(match[2])


class _Operators(ast.NodeTransformer):
    """Calls of sympy's functions as operators, symbols as axes."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._names.get(node.id, node.id), node.ctx)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if len(node.args) == 2 and name in _COMPARISONS:
            return ast.Compare(node.args[0], [_COMPARISONS[name]()], [node.args[1]])
        if len(node.args) == 2 and name in _OPERATORS:
            return ast.BinOp(node.args[0], _OPERATORS[name](), node.args[1])
        if len(node.args) == 1 and name == "Not":
            return ast.UnaryOp(ast.Not(), node.args[0])
        return node
