"""torch's operator ``scan``, which has no public name yet; a test fails where a release changes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def scan(
    step: Callable[..., list[torch.Tensor]],
    start: Sequence[torch.Tensor],
    rows: Sequence[torch.Tensor],
    others: Sequence[Any],
) -> list[torch.Tensor]:
    """Rounds in which each hands values to the next.

    Args:
        step: a round: takes the carried values, a row of each of ``rows`` and ``others``; gives the carried
            values of the next round and its results, all of them new tensors.
        start: the carried values of the first round.
        rows: tensors whose first dimension has the rounds.
        others: tensors and sizes that every round takes.

    Returns:
        The carried values behind the last round, then the results of all rounds, stacked.
    """
    from torch._higher_order_ops.scan import scan_op

    # The operator itself, not the function around it: that one would compile the step by dynamo.
    return list(scan_op(step, list(start), list(rows), tuple(others)))
