"""Exports without the conditions on sizes that tracing made, where eager shows that none was needed.

Tracing follows one branch of every comparison of sizes, many of which are about the layout of a
tensor alone: whether a crop took all of it, whether a padding was of nothing. torch keeps them as
conditions (the length is odd), though the graph computes the same either way. Which of them matter
can't be told from the graph. So all are dropped, and the program is compared with eager at every
size. In a long range it is compared at some sizes on each side of every condition. If it is wrong, the
other branch is traced, which may be right for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from edgecompile.export.checks import CheckResult, ExportScope, Range, Sizes, check_program
from edgecompile.export.conditions import drop_conditions, every_size, unlike_sizes
from edgecompile.export.ladder import ExportStrategy, export_program

#: How many branches are traced before the last one stands.
_MOST_TRACES = 4
#: Most sizes of an axis at which a program is compared.
_MOST_SIZES = 512


def export_with(
    scope: ExportScope, strategy: ExportStrategy
) -> tuple[torch.export.ExportedProgram, list[Sizes], CheckResult | None]:
    """Exports by one strategy.

    Returns:
        The program; further sizes at which it has to be checked; and the result of the check over
        the scope's ranges, or None if nothing was checked yet.

    Raises:
        Exception: whatever torch, or the model, raises.
    """
    ranges, traced = scope.ranges, scope.traced
    apart: list[Any] = []
    program = _export(scope, traced, strategy, apart)
    if not strategy.unguarded:
        gm = program.graph_module
        ones = unlike_sizes(gm, apart, scope.loaded.inputs, ranges, traced, scope.residue)
        return program, ones, check_program(program, scope, ones) if ones else None
    tried: list[Mapping[str, int]] = [traced]
    while True:
        also = drop_conditions(program, scope.loaded.inputs, ranges, traced, scope.residue)
        if not also:
            return program, [], None  # no condition
        every = every_size(ranges, traced, _MOST_SIZES, scope.residue)
        also += [sizes for sizes in every if sizes not in also]
        result = check_program(program, scope, also)
        other = _untried([sizes for sizes, _ in result.failed], ranges, tried)
        if other is None or len(tried) == _MOST_TRACES:
            return program, also, result
        tried.append(other)
        try:
            program = _export(scope, other, strategy)
        except Exception:  # that branch is for a few sizes alone
            return program, also, result


def _export(
    scope: ExportScope,
    sizes: Mapping[str, int],
    strategy: ExportStrategy,
    apart: list[Any] | None = None,
) -> torch.export.ExportedProgram:
    # Some positions are masked: else tracing could take "nothing is masked" for given.
    example, loaded = scope.example(sizes, 1), scope.loaded
    return export_program(loaded.module, example, loaded.inputs, scope.ranges, strategy, apart)


def _untried(
    failed: list[Sizes], spans: Mapping[str, Range], tried: list[Mapping[str, int]]
) -> Sizes | None:
    """Sizes to trace the other branch with: torch takes 0 and 1 for constants."""
    for sizes in failed:
        varying = [sizes[axis] for axis, (lo, hi) in spans.items() if lo < hi]
        if sizes not in tried and min(varying, default=0) > 1:
            return sizes
    return None
