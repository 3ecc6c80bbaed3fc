"""What the graphs of two lengths don't share, once sizes that follow the length are set aside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import torch
from torch.fx import Node

from edgecompile.explanation.kernels import CHECKS
from edgecompile.explanation.report import Difference
from edgecompile.models.source_lines import Place, place_of_trace

__all__ = ["GraphDifference", "compare_programs"]


@dataclass(frozen=True)
class GraphDifference:
    """The outcome of :func:`compare_programs`.

    Attributes:
        differences: operators, values and tensors that depend on the length otherwise than as sizes.
        follow: how many constant arguments follow the length, as its multiple or by a distance.
    """

    differences: tuple[Difference, ...]
    follow: int


def compare_programs(
    first: torch.export.ExportedProgram,
    second: torch.export.ExportedProgram,
    lengths: tuple[int, int],
) -> GraphDifference:
    """Compares two static programs of one model.

    Args:
        first, second: exported with every size fixed, and alike but for the length axis.
        lengths: the length axis' size in each.
    """
    left, right = _calls(first), _calls(second)
    matcher = SequenceMatcher(None, [_key(n) for n in left], [_key(n) for n in right], False)
    only: dict[tuple[str, str], list[int]] = {}
    places: dict[str, Place] = {}
    values: dict[tuple[str, Any, Any], Place | None] = {}
    follow = 0
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            for one, other in zip(left[a:b], right[c:d], strict=True):
                for old, new in _changed(one, other):
                    if _follows(old, new, lengths):
                        follow += 1
                    else:
                        values.setdefault((_operator(one), old, new), _place(one))
            continue
        for side, nodes in ((0, left[a:b]), (1, right[c:d])):
            for node in nodes:
                place = _place(node)
                only.setdefault((str(place), _operator(node)), [0, 0])[side] += 1
                if place is not None:
                    places[str(place)] = place
    found = [*_only_texts(only, places, lengths)]
    found += [
        Difference(
            "value", f"{operator}: {old!r} at {lengths[0]}, {new!r} at {lengths[1]}", None, at
        )
        for (operator, old, new), at in values.items()
    ]
    found += _tensor_texts(first, second, lengths)
    return GraphDifference(tuple(found), follow)


def _only_texts(
    only: dict[tuple[str, str], list[int]], places: dict[str, Place], lengths: tuple[int, int]
) -> Iterator[Difference]:
    """For each line of the model: operators that one graph has more of, and changed arguments."""
    lines: dict[str, dict[str, list[int]]] = {}
    for (place, operator), counts in only.items():
        lines.setdefault(place, {})[operator] = counts
    ordered = sorted(lines.items(), key=lambda item: -sum(sum(c) for c in item[1].values()))
    for place, operators in ordered:
        at = places.get(place)
        same = [name for name, (old, new) in operators.items() if old == new]
        for name in sorted(same):
            text = (
                f"{name}: other arguments, or another order, at {lengths[0]} than at {lengths[1]}"
            )
            yield Difference("value", text, None, at)
            del operators[name]
        if not operators:
            continue
        sums = (sum(c[0] for c in operators.values()), sum(c[1] for c in operators.values()))
        shown = ", ".join(f"{name} {old} ↔ {new}" for name, (old, new) in sorted(operators.items()))
        text = f"operators of only one graph, at {lengths[0]} ↔ {lengths[1]}: {shown}"
        yield Difference("only", text, sums, at)


def _tensor_texts(
    first: torch.export.ExportedProgram,
    second: torch.export.ExportedProgram,
    lengths: tuple[int, int],
) -> Iterator[Difference]:
    """Constants made while tracing, which are no parameters or buffers, of other shapes."""
    shapes = [
        Counter(
            (str(value.dtype).removeprefix("torch."), tuple(value.shape))
            for name, value in program.constants.items()
            if isinstance(value, torch.Tensor) and name not in program.state_dict
        )
        for program in (first, second)
    ]
    for mine, theirs, length in ((0, 1, lengths[0]), (1, 0, lengths[1])):
        for (dtype, shape), count in sorted((shapes[mine] - shapes[theirs]).items(), key=str):
            text = f"{count} constant tensor(s) {dtype} {list(shape)} at {length} alone"
            yield Difference("tensor", text)


def _calls(program: torch.export.ExportedProgram) -> list[Node]:
    """The operators in order, without torch's checks and what is calculated for those alone."""
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    checks: set[Node] = set()
    for node in reversed(calls):  # users before what they use
        name = _operator(node).rpartition(".")[2]
        if name in CHECKS or (node.users and all(user in checks for user in node.users)):
            checks.add(node)
    return [node for node in calls if node not in checks]


def _key(node: Node) -> tuple[Any, ...]:
    """An operator with the structure of its arguments; numbers don't count."""
    return (_operator(node), _shape_of((node.args, node.kwargs)), str(_place(node)))


def _shape_of(value: Any) -> Any:
    if isinstance(value, Node):
        return "node"
    if isinstance(value, dict):
        return tuple((key, _shape_of(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_shape_of(item) for item in value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "number"
    return str(value)


def _changed(one: Node, other: Node) -> list[tuple[Any, Any]]:
    """Numbers among the arguments that aren't the same."""
    pairs = zip(_numbers((one.args, one.kwargs)), _numbers((other.args, other.kwargs)), strict=True)
    return [(old, new) for old, new in pairs if old != new]


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _numbers(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, (int, float)) and not isinstance(value, (bool, Node)):
        yield value


def _follows(old: int | float, new: int | float, lengths: Sequence[int]) -> bool:
    """Whether two numbers are multiples of the lengths, or of their squares, or as far apart."""
    a, b = lengths
    return old * b == new * a or old * b * b == new * a * a or new - old == b - a


def _operator(node: Node) -> str:
    name = str(getattr(node.target, "__name__", node.target)).partition(".")[0]
    namespace = getattr(node.target, "namespace", "")
    return f"{namespace}.{name}" if namespace else name


def _place(node: Node) -> Place | None:
    return place_of_trace(node.meta.get("stack_trace"))
