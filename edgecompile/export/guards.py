"""Says why torch.export refused a model: which axis, which condition, which line of code.

torch says it in messages of several forms; :func:`explain_failure` reads the common ones and
keeps the others as they are. Where the condition arose torch tells only its log, so
:func:`watch_guards` listens to it while a model is traced and looks at the stack at that moment.
"""

from __future__ import annotations

import ast
import io
import logging
import math
import operator
import re
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from edgecompile.models.modules import describe_error
from edgecompile.models.source_lines import line_of_trace, running_line
from edgecompile.models.specs import InputSpec

_SOLVER = "torch/fx/experimental/symbolic_shapes.py"
_SHAPES_LOG = "torch.fx.experimental.symbolic_shapes"
_SIZE = re.compile(r"L\['(\w+)'\](?:\['(\w+)'\]|\[(\d+)\])?\.size\(\)\[(\d+)\]")
_GUARD = re.compile(r"satisfy the generated guard (.+?)\.?(?:Specializations unexpectedly .*)?$")
_CONSTANT = re.compile(
    r"You marked (\w+) as dynamic but .* specialized it to be a constant \((\d+)\)"
)
_RANGE = re.compile(r"^(\d+) <= (\w+) and \2 <= (\d+)$")
_DATA = re.compile(r"data-dependent expression (.+?) \(unhinted")
_UNPACKED = re.compile(r"failed to unpack the object at pos \d+ .*FakeTensor")
_CALLED = re.compile(r'File "([^"]+)", line (\d+), in (\w+)\n\s*(.+)')
_OPAQUE = re.compile(r"UnsupportedOperatorException: ([\w.:]+)")
_CREATED = re.compile(r"create_symbol (\w+) = \S+ for (\S+) ")
_ADDED = re.compile(r"eval (.+?) \[guard added\]")


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
    "FloatTrueDiv": ast.Div,
}
_FUNCTIONS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
_CALLS: Mapping[str, Callable[..., Any]] = {
    "Max": max,
    "Min": min,
    "max": max,
    "min": min,
    "Abs": abs,
    "And": lambda *parts: all(parts),
    "Or": lambda *parts: any(parts),
    "CeilToInt": math.ceil,
    "FloorToInt": math.floor,
    "ceiling": math.ceil,
    "floor": math.floor,
    "ToFloat": float,
}
_MODULUS = re.compile(r"//\s*(\d+)|(?:Mod|FloorDiv|CleanDiv)\((?:[^()]|\([^()]*\))*, (\d+)\)")
_FIXED = re.compile(r"^Eq\((\w+), (\d+)\)$")


@dataclass(frozen=True)
class Reason:
    """The reason of a failed export.

    Attributes:
        kind: ``specialised`` (the code fixes a size), ``guard`` (a condition doesn't hold for all
            sizes), ``data`` (control flow depends on values), ``operator`` (one that can't be
            traced), ``unsolved`` (conditions that torch fails to solve) or ``other``.
        text: one sentence for people.
        guards: the conditions, with axis names.
        raw: the whole of what torch said.
        sizes: the range of each axis that a condition limits to one.
    """

    kind: str
    text: str
    guards: tuple[str, ...] = ()
    raw: str = ""
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def is_range(self) -> bool:
        """Whether every condition is a range of an axis."""
        return bool(self.sizes) and len(self.sizes) == len(self.guards)


@dataclass
class GuardWatch:
    """Conditions on sizes in the order in which tracing met them, each with its line of code."""

    symbols: dict[str, str] = field(default_factory=dict)
    found: list[tuple[str, str]] = field(default_factory=list)

    def place_of(self, inputs: Sequence[InputSpec]) -> str | None:
        """The line of the most informative condition: one that fixes a size, else the first."""
        names = {symbol: axis_texts(source, inputs) for symbol, source in self.symbols.items()}
        conditions = [(expr, place) for expr, place in self.found if place]
        fixing = [place for expr, place in conditions if re.fullmatch(r"Eq\(\w+, \d+\)", expr)]
        if fixing:
            return fixing[0]
        used = [place for expr, place in conditions if any(s in expr for s in names)]
        return used[0] if used else None

    def conditions(self, inputs: Sequence[InputSpec]) -> list[str]:
        """The conditions as people write them, with the axes' names."""
        names = {}
        for symbol, source in self.symbols.items():
            text = axis_texts(source, inputs)
            names[symbol] = text if text.isidentifier() else f"({text})"  # a sum of axes
        return [readable_guard(expr, names) for expr, _ in self.found]


class _Listener(logging.Handler):
    def __init__(self, watch: GuardWatch) -> None:
        super().__init__(logging.INFO)
        self.watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        created = _CREATED.match(text)
        if created is not None:
            self.watch.symbols[created[1]] = created[2]
        added = _ADDED.match(text)
        if added is not None and "[guard suppressed]" not in text:
            self.watch.found.append((added[1], str(running_line() or "")))


@contextmanager
def watch_guards() -> Iterator[GuardWatch]:
    """Records the conditions that tracing puts on sizes; only non-strict tracing shows places."""
    watch = GuardWatch()
    logger = logging.getLogger(_SHAPES_LOG)
    listener, level = _Listener(watch), logger.level
    logger.addHandler(listener)
    logger.setLevel(logging.INFO)
    try:
        yield watch
    finally:
        logger.setLevel(level)
        logger.removeHandler(listener)


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Keeps torch's loggers and the graphs it prints, and what the model prints, from the screen.

    What matters comes back in exceptions.
    """
    names = [name for name in logging.Logger.manager.loggerDict if f"{name}.".startswith("torch.")]
    attached = {h for name in names for h in logging.getLogger(name).handlers}
    handlers = [(h, h.level) for h in attached if not isinstance(h, _Listener)]
    for handler, _ in handlers:
        handler.setLevel(logging.CRITICAL + 1)
    try:
        with (
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler, level in handlers:
            handler.setLevel(level)


def explain_failure(
    exc: BaseException, inputs: Sequence[InputSpec], place: str | None = None
) -> Reason:
    """Reads what torch.export raised.

    Args:
        exc: the exception.
        inputs: the model's inputs in order, to turn torch's names of sizes into axis names.
        place: the line of code, where it is known from :func:`watch_guards`.
    """
    raw = str(exc)
    at = f" (at {place})" if place else ""
    constant = _CONSTANT.search(raw)
    guards = tuple(dict.fromkeys(_guards(raw, inputs)))
    if constant is not None:
        traced = line_of_trace(raw)
        at = at or (f" (at {traced})" if traced else "")
        return _specialised(constant[1], constant[2], at, raw)
    bounds = [match for match in map(_RANGE.match, guards) if match is not None]
    for match in bounds:
        if match[1] == match[3]:
            return _specialised(match[2], match[1], at, raw)
    if guards:
        shown = "; ".join(guards[:3]) + (f" (and {len(guards) - 3} more)" if guards[3:] else "")
        text = f"its code needs {shown}{at}"
        sizes = {match[2]: (int(match[1]), int(match[3])) for match in bounds}
        return Reason("guard", text, guards, raw, sizes)
    data = _DATA.search(raw)
    if data is not None:
        called = _CALLED.search(raw[raw.find("The following call") :])
        where = f"{called[1]}:{called[2]} in {called[3]}: {called[4].strip()}" if called else place
        text = "its control flow or its sizes depend on values in the input " + (
            f"(at {where})" if where else f"({data[1]})"
        )
        return Reason("data", text, (data[1],), raw)
    if _UNPACKED.search(raw):
        text = f"a size depends on values in the input{at or _place_in(exc)}"
        return Reason("data", text, (), raw)
    opaque = _OPAQUE.search(f"{type(exc).__name__}: {raw}")
    if opaque is not None:
        text = (
            f"the operator {opaque[1]} doesn't tell the shapes of its outputs "
            "(torch.library.register_fake)"
        )
        return Reason("operator", text + (at or _place_in(exc)), (opaque[1],), raw)
    if _in_solver(exc):
        return Reason("unsolved", f"torch can't solve the conditions on sizes{at}", (), raw)
    return Reason("other", describe_error(exc), (), raw)


def _in_solver(exc: BaseException) -> bool:
    """Whether torch failed at solving conditions, or at wording them: that is no fault of a model."""
    frames = traceback.extract_tb(exc.__traceback__)
    return any(
        frame.filename.endswith(_SOLVER) and frame.name in ("solve", "prettify_results")
        for frame in frames
    )


def moduli_in(conditions: Iterable[str]) -> set[int]:
    """The numbers over 1 that conditions take remainders or quotients by."""
    found = (int(a or b) for text in conditions for a, b in _MODULUS.findall(text))
    return {number for number in found if number > 1}


def _place_in(exc: BaseException) -> str:
    place = re.search(r" \(at .+\)$", describe_error(exc))
    return place[0] if place else ""


def axis_texts(text: str, inputs: Sequence[InputSpec]) -> str:
    """Replaces torch's names of sizes, such as ``L['x'].size()[1]``, by axis names."""
    return _SIZE.sub(lambda match: _axis_of(match, inputs), text)


def _specialised(axis: str, size: str, at: str, raw: str) -> Reason:
    text = f"its code fixes {axis} to {size}, the size it was traced with{at}"
    return Reason("specialised", text, (f"{axis} == {size}",), raw)


def _guards(raw: str, inputs: Sequence[InputSpec]) -> Iterator[str]:
    for line in raw.splitlines():
        match = _GUARD.search(line)
        if match is not None:
            yield readable_guard(axis_texts(match[1], inputs))


def readable_guard(expression: str, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """A condition as people write it: ``length % 16 == 0`` for ``Eq(Mod(s77, 16), 0)``.

    Args:
        expression: text of torch's log; text that isn't an expression stays as it is.
        names: the meaning of each of torch's symbols.
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


def condition_holds(expression: str, values: Mapping[str, int]) -> bool | None:
    """Whether a condition holds.

    Args:
        expression: text of torch's log or its error, or as :func:`readable_guard` writes it.
        values: a number for each name.

    Returns:
        None if it has other names, or functions that aren't known here.
    """
    try:
        return bool(tree_value(condition_tree(expression), values))
    except (SyntaxError, ValueError, LookupError, ArithmeticError):
        return None


@lru_cache(maxsize=4096)
def condition_tree(expression: str) -> ast.AST:
    """The tree of a condition, which is tried at many sizes."""
    tree: ast.AST = _Operators({}).visit(ast.parse(expression, mode="eval").body)
    return tree


def tree_value(node: ast.AST, values: Mapping[str, int]) -> Any:
    """The value of a condition's part; raises what :func:`condition_holds` catches."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            return values[name]
        case ast.UnaryOp(op=op, operand=operand):
            return _FUNCTIONS[type(op)](tree_value(operand, values))
        case ast.BinOp(left=left, op=op, right=right):
            return _FUNCTIONS[type(op)](tree_value(left, values), tree_value(right, values))
        case ast.Compare(left=left, ops=ops, comparators=others):
            terms = [tree_value(item, values) for item in (left, *others)]
            pairs = zip(ops, pairwise(terms), strict=True)
            return all(_FUNCTIONS[type(op)](*pair) for op, pair in pairs)
        case ast.BoolOp(op=op, values=parts):
            return (all if isinstance(op, ast.And) else any)(tree_value(i, values) for i in parts)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _CALLS[name](*(tree_value(item, values) for item in args))
    raise LookupError(type(node).__name__)


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

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        left = node.left
        # torch writes (-1) + x for x - 1
        negative = isinstance(left, ast.UnaryOp) and isinstance(left.op, ast.USub)
        if isinstance(node.op, ast.Add) and negative:
            assert isinstance(left, ast.UnaryOp)
            return ast.BinOp(node.right, ast.Sub(), left.operand)
        return node


def _axis_of(match: re.Match[str], inputs: Sequence[InputSpec]) -> str:
    name, key, index, dim = match[1], match[2], match[3], int(match[4])
    if index is not None and int(index) < len(inputs):
        name = inputs[int(index)].name
    spec = next((item for item in inputs if item.name in (name, key)), None)
    if spec is None or dim >= len(spec.shape):
        return match[0]
    size = spec.shape[dim]
    return size if isinstance(size, str) else f"{spec.name}.shape[{dim}]"
