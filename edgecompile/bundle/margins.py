"""The difference from eager that a program may have beyond the tolerance: a multiple of eager's own error or motion."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from edgecompile.bundle.cases import GOLDEN_CASES, ROWS, Case
from edgecompile.models.rounding import margin
from edgecompile.precision import TOLERANCES
from edgecompile.runtime.format.golden.compare import Agreement

#: How many times a reference's own motion a program may be off, and at what angle. A program moves about as far,
#: by chance up to twice.
_MOTIONS = 2.0
#: Most that such a margin may be, of the output's scale. A matmul without one of its blocks changes outputs by more
#: than the tolerance and this together.
WIDEST_MOTION = 0.2
#: Radians that such an angle may be at most: a fifth of the output's length. The largest error is then about a quarter
#: of the scale (:mod:`edgecompile.precision`), as much as int8's tolerance and the widest margin allow together.
WIDEST_ANGLE = 0.2
#: Radians that a program's output may always be away: three percent of its length.
_LEAST_ANGLE = 0.03

#: Of fp32's tolerance. A lesser margin is left out.
_LEAST = 0.25

#: The reason why eager has several right answers.
OPEN = "as nearly equal values decide which rows are chosen"


def allow_rounding(cases: Sequence[Case]) -> list[Case]:
    """The cases with the margins that eager's own error gives them.

    Of a case it is eager's error there, or what is usual for the output (the median of the cases that
    always run in float64, or of all) if that is more: one small output may be right by chance. No case
    widens another's margin, but that of one for which float64 had no time: its error may be as large as
    the largest share that was seen.
    """
    shares: dict[str, list[float]] = {}
    usual: dict[str, list[float]] = {}
    for case in cases:
        for name, error in case.rounding.items():
            largest = scale(case, name)
            share = error / largest if largest else 0.0
            shares.setdefault(name, []).append(share)
            if _always(case):
                usual.setdefault(name, []).append(share)
    medians = {name: statistics.median(usual.get(name, items)) for name, items in shares.items()}

    def margins(case: Case) -> dict[str, float]:
        errors = {
            name: max(error, medians[name] * scale(case, name))
            for name, error in case.rounding.items()
        }
        if case.skipped:
            errors = {name: max(items) * scale(case, name) for name, items in shares.items()}
        return {
            name: allowed
            for name, error in errors.items()
            if (allowed := margin(error, scale(case, name)))
            > _LEAST * TOLERANCES["fp32"].limit(scale(case, name))
        }

    return [replace(case, margins=margins(case)) for case in cases]


def _always(case: Case) -> bool:
    """Whether a case runs in float64 however long that takes, so that a busy machine changes none of its figures."""
    return case.name in (*GOLDEN_CASES, ROWS)


def allow_motion(cases: Sequence[Case], motions: Sequence[Mapping[str, Agreement]]) -> list[Case]:
    """The cases with margins and cosines that the reference's own motion gives them.

    A number that is rounded to an integer goes to the other neighbour after a difference of float32's size, and deep
    models amplify that. Whether it happens in one case is chance: of a case its own motion counts, or the median of
    the cases that always run in float64 (or of all) if that is more. No case widens another's margin.

    Args:
        cases: cases, of one model.
        motions: the comparison of the moved reference with the reference, by output, for each case.
    """
    shares = [{name: _share(item) for name, item in motion.items()} for motion in motions]
    angles = [{name: _angle(item) for name, item in motion.items()} for motion in motions]
    return [
        replace(
            case,
            margins={
                **case.margins,
                **{
                    name: max(
                        case.margins.get(name, 0.0),
                        min(_MOTIONS * share, WIDEST_MOTION) * scale(case, name),
                    )
                    for name, share in own_shares.items()
                    if share
                },
            },
            cosines={
                name: math.cos(min(WIDEST_ANGLE, max(_MOTIONS * angle, _LEAST_ANGLE)))
                for name, angle in own_angles.items()
            },
        )
        for case, own_shares, own_angles in zip(
            cases, _at_least_median(cases, shares), _at_least_median(cases, angles), strict=True
        )
    ]


def _share(item: Agreement) -> float:
    return item.max_abs_error / item.scale if item.scale else 0.0


def _angle(item: Agreement) -> float:
    return math.acos(max(-1.0, item.cosine)) if item.cosine is not None else 0.0


def _at_least_median(
    cases: Sequence[Case], figures: Sequence[Mapping[str, float]]
) -> list[dict[str, float]]:
    """The figures of each case, by output, none less than the median of those that always run in float64, or of all."""
    usual = [own for case, own in zip(cases, figures, strict=True) if _always(case)] or figures
    gathered: dict[str, list[float]] = {}
    for own in usual:
        for name, value in own.items():
            gathered.setdefault(name, []).append(value)
    medians = {name: statistics.median(values) for name, values in gathered.items()}
    return [
        {name: max(value, medians.get(name, 0.0)) for name, value in own.items()} for own in figures
    ]


def widest_share(cases: Sequence[Case], name: str) -> float:
    """The largest margin of an output, as a share of its scale, in the cases that always run in float64; 0.0 if none."""
    return max(_shares(cases, name), default=0.0)


def usual_share(cases: Sequence[Case], name: str) -> float:
    """The median where :func:`widest_share` has the largest one."""
    shares = _shares(cases, name)
    return statistics.median(shares) if shares else 0.0


def _shares(cases: Sequence[Case], name: str) -> list[float]:
    """Margins of an output as shares of its scale, in the cases that always run in float64."""
    return [
        case.margins.get(name, 0.0) / largest
        for case in cases
        if _always(case) and (largest := scale(case, name))
    ]


def describe_reference(cases: Sequence[Case]) -> str:
    """The reference of the cases, in words."""
    texts = []
    for skipped in (False, True):
        problems = [case.problem for case in cases if case.problem and case.skipped == skipped]
        if problems:
            count = f"{len(problems)} of {len(cases)} cases"
            texts.append(f"{count}: eager in float32, as {problems[0]}")
    if redrawn := sum(case.redrawn for case in cases):
        texts.append(
            f"{redrawn} of {len(cases)} cases: drawn again, with independent values, {OPEN}"
        )
    if several := sum(case.open for case in cases):
        texts.append(f"{several} of {len(cases)} cases: one of several answers, {OPEN}")
    whole = not cases or any(not case.problem for case in cases)
    return "; ".join([*(["eager in float64"] if whole else []), *texts])


def scale(case: Case, name: str) -> float:
    """The largest finite magnitude of an output."""
    values = case.outputs[name]
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
