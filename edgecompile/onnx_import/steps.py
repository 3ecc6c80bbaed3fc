"""Steps one after the other: written out where they are few, and as torch's operator ``scan`` otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from edgecompile.onnx_import.sizes import SYMBOLS

#: Nodes that an exported program gets for rounds one after the other.
_MOST_UNROLLED = 2000

Step = Callable[..., list[torch.Tensor]]


def needs_scan(count: Any, nodes: int) -> bool:
    """Whether a traced program gets the operator: the count is a size that varies, or there are many nodes.

    Args:
        count: the number of rounds, None where it isn't known.
        nodes: the number of nodes of a round.
    """
    if isinstance(count, SYMBOLS):
        return True
    return bool(torch.compiler.is_compiling() and (count or 0) * nodes > _MOST_UNROLLED)


def scan(
    step: Step, start: Sequence[Any], rows: Sequence[Any], others: Sequence[Any]
) -> list[torch.Tensor]:
    """The last carried values, then what the rounds made, stacked, by the operator.

    Args:
        step: a function of the carried values, a row of each of ``rows``, and ``others``; gives the carried
            values, then what it makes.
        start: the first carried values.
        rows: tensors of which each round gets a row.
        others: tensors and sizes that all rounds take.
    """

    # Inductor makes the tensors of rows from sizes that the operator is given.
    tensors = [value for value in (*start, *rows, *others) if isinstance(value, torch.Tensor)]
    shapes: list[Any] = [size for value in tensors for size in value.shape]
    sizes = {str(size): size for size in shapes if isinstance(size, SYMBOLS)}
    taken = len(start) + len(rows) + len(others)

    def cloned(*given: Any) -> list[torch.Tensor]:
        # A result may be an input of the step itself, which the operator doesn't allow.
        return [result.clone() for result in step(*given[:taken])]

    # A tensor that is given twice would be one value within the step, whatever becomes of the carried one.
    seen = {id(value) for value in (*rows, *others)}
    own = []
    for value in start:
        own.append(value.clone() if id(value) in seen else value)
        seen.add(id(value))
    # The operator itself: the function around it, which isn't public, compiles the step by dynamo.
    every = (*others, *sizes.values())
    return list(torch.ops.higher_order.scan(cloned, own, list(rows), every))


def run_steps(
    step: Step, start: Sequence[Any], rows: Sequence[Any], others: Sequence[Any], nodes: int
) -> list[torch.Tensor]:
    """What :func:`scan` gives, written out where ``nodes`` for each round aren't too many."""
    count = rows[0].shape[0]
    if needs_scan(count, nodes):
        return scan(step, start, rows, others)
    carried, made = list(start), []
    for number in range(count):
        results = step(*carried, *(row[number] for row in rows), *others)
        carried = results[: len(start)]
        made.append(results[len(start) :])
    return [*carried, *(torch.stack(column) for column in zip(*made, strict=True))]
