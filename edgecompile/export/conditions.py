"""Tries the conditions of an exported program on its sizes at every size that it is to serve.

Tracing follows one branch of a condition on sizes. Where the condition can't be a range (the length
is no multiple of 8), some ways to export keep it as a check of the inputs or within the graph, which
generated code doesn't have: at other sizes it would take the wrong branch silently. Sizes that
are sampled need not meet it, so the conditions alone are tried, at all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from edgecompile.models.specs import InputSpec
from edgecompile.runtime.format.sums import size_of

aten = torch.ops.aten

#: Sizes of an axis that conditions are tried at.
_MOST_SIZES = 4096
#: Sizes of a kind at which a program without its conditions is compared, about.
_OF_EACH_KIND = 8

_GUARDS = "_guards_fn"
_ASSERT = aten._assert_scalar.default
_SUBJECT = re.compile(r"failed:? (?:for expression )?(.+?)(?: on node '\w+')?$")

Range = tuple[int, int]


@dataclass(frozen=True)
class Residue:
    """Sizes of one axis that all leave the same remainder.

    Attributes:
        axis: Name of the axis.
        step: Distance between neighbouring sizes.
        remainder: Remainder of each size divided by ``step``.
    """

    axis: str
    step: int
    remainder: int

    def has(self, sizes: Mapping[str, int]) -> bool:
        """Whether the axis has one of these sizes."""
        return sizes[self.axis] % self.step == self.remainder

    def at_least(self, size: int) -> int:
        """The smallest of the sizes from ``size`` on."""
        return size + (self.remainder - size) % self.step

    def at_most(self, size: int) -> int:
        """The largest of the sizes up to ``size``."""
        return size - (size - self.remainder) % self.step


def input_nodes(program: torch.export.ExportedProgram) -> list[Node]:
    """The nodes of a program's inputs, in their order."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    return [nodes[str(name)] for name in program.graph_signature.user_inputs]


def broken_conditions(
    module: torch.nn.Module,
    inputs: Sequence[InputSpec],
    ranges: Mapping[str, Range],
    centre: Mapping[str, int],
    residue: Residue | None = None,
) -> list[tuple[dict[str, int], str]]:
    """Sizes at which a program's conditions don't hold, with the condition.

    Args:
        module: the module of an exported program.
        inputs: the inputs in the program's order.
        ranges: the sizes that it is to serve.
        centre: sizes at which it is known to work.
        residue: the sizes of an axis that it is to serve; None: all within its range.
    """
    if not isinstance(module, GraphModule):
        return []
    checks = _checks(module)
    guards = [n for n in module.graph.nodes if n.op == "call_module" and n.target == _GUARDS]
    if not checks and not guards:
        return []
    check_inputs: Any = module.get_submodule(_GUARDS) if guards else None
    names = _names(module, inputs)
    broken = []
    for sizes in every_size(ranges, centre, residue=residue):
        tensors = [_stand_in(spec, sizes) for spec in inputs]
        problem = _problem(module, checks, check_inputs, tensors)
        if problem:
            for theirs, ours in names.items():
                problem = problem.replace(theirs, ours)
            broken.append((sizes, f"the program holds where {problem}"))
    return broken


def _names(gm: GraphModule, inputs: Sequence[InputSpec]) -> dict[str, str]:
    """The axes by the conditions' names of their sizes; longer names first, as one may begin another."""
    names = {}
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for spec, node in zip(inputs, placeholders, strict=True):
        sizes = getattr(node.meta.get("val"), "shape", spec.shape)
        for dim, (axis, size) in enumerate(zip(spec.shape, sizes, strict=True)):
            if isinstance(axis, str):
                names[f"{spec.name}.size()[{dim}]"] = axis
                if isinstance(size, torch.SymInt) and str(size).isidentifier():
                    names[str(size)] = axis
    return dict(sorted(names.items(), key=lambda item: -len(item[0])))


def drop_conditions(
    program: torch.export.ExportedProgram,
    inputs: Sequence[InputSpec],
    ranges: Mapping[str, Range],
    centre: Mapping[str, int],
    residue: Residue | None = None,
) -> list[dict[str, int]]:
    """Takes the conditions on sizes out of a program's graph; those on values stay.

    Args:
        program: its graph is changed.
        inputs, ranges, centre, residue: the arguments of :func:`broken_conditions`.

    Returns:
        Sizes of every kind at which the program has to be compared in exchange. Sizes are of a kind
        if the same conditions hold there: some of each, though only one size may be of it. Empty
        if there are no conditions.
    """
    gm = program.graph_module
    checks = _checks(gm)
    if not checks:
        return []
    first = input_nodes(program)

    def held(sizes: Mapping[str, int]) -> tuple[bool, ...]:
        tensors = [_stand_in(spec, sizes) for spec in inputs]
        values: dict[Node, Any] = dict(zip(first, tensors, strict=True))
        return tuple(holds for _, holds in _evaluate(checks, values))

    chosen = _of_each_kind(every_size(ranges, centre, residue=residue), held)
    for check, _ in checks:
        gm.graph.erase_node(check)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    _forget_conditions(first)
    return chosen


def _forget_conditions(inputs: Sequence[Node]) -> None:
    """Lets nothing that is computed later rely on conditions on sizes that tracing met.

    torch takes them for given whenever the program is traced again: a length that equalled its next multiple of
    10 would be one everywhere.
    """
    sizes = (size for node in inputs for size in getattr(node.meta.get("val"), "shape", ()))
    environment = next((s.node.shape_env for s in sizes if isinstance(s, torch.SymInt)), None)
    if environment is None:
        return
    for symbol, kept in environment.deferred_runtime_asserts.items():
        of_values = [item for item in kept if free_unbacked_symbols(item.expr)]
        # The count tells torch that what it knew isn't so any more.
        environment.num_deferred_runtime_asserts -= len(kept) - len(of_values)
        environment.deferred_runtime_asserts[symbol] = of_values
    for condition in list(environment.axioms):
        if not free_unbacked_symbols(condition):
            del environment.axioms[condition]


def size_symbols(gm: GraphModule, inputs: Sequence[InputSpec]) -> dict[Any, str]:
    """The symbols (sympy) that a graph's inputs have for their sizes, and the axis of each."""
    values = {n.name: n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder"}
    return {
        size.node.expr: axis
        for spec in inputs
        for axis, size in zip(spec.shape, getattr(values.get(spec.name), "shape", ()), strict=False)
        if isinstance(axis, str) and isinstance(size, torch.SymInt)
    }


def unlike_sizes(
    gm: GraphModule,
    assumed: Sequence[Any],
    inputs: Sequence[InputSpec],
    ranges: Mapping[str, Range],
    centre: Mapping[str, int],
    residue: Residue | None = None,
) -> list[dict[str, int]]:
    """Sizes of every kind at which conditions on a graph's sizes don't all hold; some of each kind.

    Args:
        gm: the graph.
        assumed: conditions (sympy) on its inputs' symbolic sizes.
        inputs, ranges, centre, residue: the arguments of :func:`broken_conditions`.
    """
    symbols = size_symbols(gm, inputs)
    # What depends on values, too, isn't known here.
    ours = [condition for condition in assumed if condition.free_symbols <= symbols.keys()]

    def held(sizes: Mapping[str, int]) -> tuple[bool, ...]:
        values = {symbol: size_of(axis, sizes) for symbol, axis in symbols.items()}
        return tuple(bool(condition.xreplace(values)) for condition in ours)

    sizes = every_size(ranges, centre, residue=residue) if ours else ()
    return _of_each_kind((item for item in sizes if not all(held(item))), held)


def _of_each_kind(
    sizes: Iterable[dict[str, int]], held: Callable[[Mapping[str, int]], tuple[bool, ...]]
) -> list[dict[str, int]]:
    """Chooses, among sizes at which the same conditions hold, the ends, a few between, and the first ones,
    as conditions on small sizes are usual."""
    kinds: dict[tuple[bool, ...], list[dict[str, int]]] = {}
    for item in sizes:
        kinds.setdefault(held(item), []).append(item)
    chosen: dict[object, dict[str, int]] = {}
    for kind in kinds.values():
        step = max(1, len(kind) // _OF_EACH_KIND)
        some = [*kind[:_OF_EACH_KIND], *kind[::step], kind[-1]]
        chosen.update({tuple(item.items()): item for item in some})
    return list(chosen.values())


def every_size(
    ranges: Mapping[str, Range],
    centre: Mapping[str, int],
    most: int = _MOST_SIZES,
    residue: Residue | None = None,
) -> Iterator[dict[str, int]]:
    """Every size of every axis, then sizes that are the same for all of them.

    Args:
        ranges: the axes' smallest and largest sizes.
        centre: the sizes of the other axes while one goes through its sizes.
        most: sizes of an axis; of a longer one the first half of that number, then some of each kind.
        residue: the sizes of an axis that count; the centre is one of them. None: all.
    """
    if residue is not None:
        yield from filter(residue.has, every_size(ranges, centre, most))
        return
    middle = {axis: min(max(centre.get(axis, hi), lo), hi) for axis, (lo, hi) in ranges.items()}
    varying = {axis: span for axis, span in ranges.items() if span[0] < span[1]}
    for axis, span in varying.items():
        for size in _values(span, most):
            yield {**middle, axis: size}
    if len(varying) > 1:
        # An axis that happened to differ from another one while it was traced may be as long.
        both = max(lo for lo, _ in varying.values()), min(hi for _, hi in varying.values())
        for size in _values(both, most):
            yield {**middle, **dict.fromkeys(varying, size)}


def _values(span: Range, most: int) -> list[int]:
    lo, hi = span
    if hi - lo < most:
        return list(range(lo, hi + 1))
    half = most // 2
    # An odd step meets every remainder that sizes of blocks leave.
    step = (hi - lo) // half | 1
    return [*range(lo, lo + half), *range(lo + half, hi, step), hi]


def _stand_in(spec: InputSpec, sizes: Mapping[str, int]) -> torch.Tensor:
    """A tensor of an input's shape, without memory."""
    shape = [size_of(dim, sizes) for dim in spec.shape]
    return torch.empty(shape, dtype=getattr(torch, spec.dtype), device="meta")


def _checks(gm: GraphModule) -> list[tuple[Node, list[Node]]]:
    """The graph's checks of sizes, each with what its condition is computed of, in order.

    Left out are those that depend on values.
    """
    order = {node: i for i, node in enumerate(gm.graph.nodes)}
    result = []
    for node in gm.graph.nodes:
        if node.target is not _ASSERT:
            continue
        needed: set[Node] = set()
        rest = list(node.all_input_nodes)
        while rest:
            other = rest.pop()
            if other not in needed:
                needed.add(other)
                rest += other.all_input_nodes
        if all(n.op == "placeholder" or _is_scalar(n) for n in needed):
            result.append((node, sorted(needed, key=order.__getitem__)))
    return result


def _is_scalar(node: Node) -> bool:
    value = node.meta.get("val")
    return node.op == "call_function" and value is not None and not isinstance(value, torch.Tensor)


def _problem(
    gm: GraphModule,
    checks: Sequence[tuple[Node, Sequence[Node]]],
    check_inputs: Any,
    tensors: Sequence[torch.Tensor],
) -> str:
    """The first condition that these inputs don't meet, or ""."""
    if check_inputs is not None:
        try:
            check_inputs(*tensors)
        except AssertionError as error:
            return _text(str(error))
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for check, holds in _evaluate(checks, dict(zip(placeholders, tensors, strict=True))):
        if not holds:
            return _text(str(check.args[1]))
    return ""


def _evaluate(
    checks: Sequence[tuple[Node, Sequence[Node]]], values: dict[Node, Any]
) -> Iterator[tuple[Node, bool]]:
    """Whether each condition holds; ``values`` has the inputs and gets what is computed of them."""
    for check, needed in checks:
        for node in needed:
            if node not in values:
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        condition = check.args[0]
        yield check, bool(values[condition] if isinstance(condition, Node) else condition)


def _text(message: str) -> str:
    subject = _SUBJECT.search(message.strip().splitlines()[0])
    return subject[1] if subject else message
