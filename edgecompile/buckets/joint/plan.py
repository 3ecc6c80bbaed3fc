"""Plans over two axes: the best slabs there are, and how far from any other cover they can be.

A plan is a set of slabs: one axis is cut first, the other within each slab, and each box is exact
or padded on both axes. Both orders are tried. :mod:`edgecompile.buckets.joint.search` finds the optimum of
an order, :mod:`edgecompile.buckets.joint.bound` what no buckets of any shape can beat.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgecompile.buckets.costs.curves import MODES, Mode
from edgecompile.buckets.costs.surfaces import CostSurface
from edgecompile.buckets.joint.bound import cover_bound
from edgecompile.buckets.joint.boxes import make_boxes
from edgecompile.buckets.joint.evaluation import joint_cost
from edgecompile.buckets.joint.notes import joint_notes
from edgecompile.buckets.joint.problem import JointProblem
from edgecompile.buckets.joint.search import MOST_ENDS, MOST_STEPS, Slab, SlabPlans, best_slabs
from edgecompile.buckets.limits import BucketLimits
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.positions import TIE
from edgecompile.buckets.ranges import OtherAxes
from edgecompile.errors import PlanError
from edgecompile.lengths.joint import JointDistribution
from edgecompile.lengths.rows import MAX_LENGTH


def plan_joint(
    distribution: JointDistribution,
    surface: CostSurface,
    *,
    max_buckets: int | None = 8,
    buckets: int | None = None,
    price_per_bucket: float = 0.0,
    min_sizes: Mapping[str, int] | None = None,
    max_sizes: Mapping[str, int] | None = None,
    modes: tuple[Mode, ...] = MODES,
    limits: BucketLimits | None = None,
    other_axes: OtherAxes = (),
    most_steps: int = MOST_STEPS,
    most_ends: int = MOST_ENDS,
) -> BucketPlan:
    """The slabs of least expected cost that serve every pair of sizes from min to max.

    As in :func:`edgecompile.buckets.plan.plan_buckets` the cost of a plan is the mean cost of one run
    over the sample plus ``price_per_bucket`` for each bucket; an exact bucket's run costs what its
    own sizes cost, a padded one's what the bucket's largest sizes cost. Boundaries may lie at any
    whole number. The plan is the optimum among slabs unless a note says that it's a heuristic
    (where an axis has very many sizes); a sample with one size on an axis has the optimum of the
    other axis alone. ``lower_bound_ms`` of the plan bounds what any other buckets could do.

    Args:
        distribution: the sample; sizes over ``max_sizes`` count as these.
        surface: milliseconds by sizes and mode, over the same axes.
        max_buckets: the most buckets allowed; None leaves it to the price and the limits.
        buckets: exactly how many buckets to make, instead of the best number up to max_buckets.
        price_per_bucket: milliseconds of the mean run that a bucket has to save.
        min_sizes: the smallest size to serve by axis; 1 where it isn't given.
        max_sizes: the largest size to serve by axis; that of the sample where it isn't given.
        modes: the modes allowed; without ``exact`` every bucket is padded.
        limits: bounds on size and build time.
        other_axes: further axes, the same in every bucket.
        most_steps, most_ends: bounds on the search, beyond which it is a heuristic.

    Raises:
        PlanError: the arguments or constraints can't be met; says which, and by how much.
    """
    usable = tuple(mode for mode in MODES if mode in modes and mode in surface.modes)
    lows = {axis: 1 for axis in distribution.axes} | dict(min_sizes or {})
    highs = distribution.max_sizes | dict(max_sizes or {})
    _check_arguments(distribution, surface, usable, modes, lows, highs, price_per_bucket)
    most = (limits or BucketLimits()).most(max_buckets if buckets is None else None, buckets)
    if buckets is not None:
        most = buckets
    if most is None and price_per_bucket == 0:
        raise PlanError(
            "without a limit and with free buckets every pair of sizes would get its own",
            hint="give --max-buckets or a price per bucket",
        )
    served = distribution.clip_all(highs)
    problem = JointProblem.of(served, surface, usable, lows, highs)
    searches = [
        best_slabs(
            problem,
            outer,
            None if most is None else most + 1,  # so that the notes can say what one more saves
            price_per_bucket,
            most_steps=most_steps,
            most_ends=most_ends,
        )
        for outer in _orders(problem)
    ]
    by_count, outer, slabs = _choose(searches, most, buckets, price_per_bucket)
    boxes = make_boxes(slabs, outer, problem, other_axes)
    expected_ms = joint_cost(boxes, served, surface)
    total = expected_ms + price_per_bucket * len(boxes)
    bound = cover_bound(problem, most=most, count=buckets, price=price_per_bucket)
    bound = min(bound, total)  # rounding
    notes = joint_notes(
        boxes,
        sample=distribution,
        surface=surface,
        modes=usable,
        max_sizes=highs,
        searches=searches,
        outer=outer,
        expected_by_count=by_count,
        expected_ms=expected_ms,
        price=price_per_bucket,
        most=most,
        forced=buckets is not None,
        lower_bound_ms=bound,
    )
    return BucketPlan(
        length_axis=distribution.axes[0],
        buckets=boxes,
        expected_ms=expected_ms,
        policy="optimum",
        cost_model=surface,
        price_per_bucket=price_per_bucket,
        expected_by_count=by_count,
        source=distribution.source,
        notes=notes,
        lower_bound_ms=bound,
    )


def _orders(problem: JointProblem) -> tuple[int, ...]:
    """The axes to cut first. One with a single size goes first: the other is cut optimally."""
    for axis in (1, 0):
        if len(problem.reached(axis)) == 1:
            return (axis,)
    return (0, 1)


def _choose(
    searches: list[SlabPlans], most: int | None, buckets: int | None, price: float
) -> tuple[tuple[float, ...], int, tuple[Slab, ...]]:
    """Mean costs by number of boxes, and of the best slabs the outer axis and the slabs."""
    if most is None:
        totals = [
            search.costs[0] + price * sum(len(slab.cuts.segments) for slab in search.plans[0])
            for search in searches
        ]
        best = searches[totals.index(min(totals))]
        return (), best.outer, best.plans[0]
    reached = max(len(search.costs) for search in searches)
    if buckets is not None and buckets > reached:
        raise PlanError(
            f"{buckets} buckets are wanted, but the sample has only sizes for {reached}",
            hint=f"ask for {reached} buckets at most",
        )

    def cost(search: SlabPlans, count: int) -> float:
        return search.costs[count - 1] if count <= len(search.costs) else float("inf")

    by_count = tuple(min(cost(s, k) for s in searches) for k in range(1, reached + 1))
    sums = [found + price * k for k, found in enumerate(by_count[:most], 1)]
    count = buckets or next(k for k, total in enumerate(sums, 1) if total <= min(sums) * (1 + TIE))
    best = min(searches, key=lambda search: cost(search, count))
    return by_count, best.outer, best.plans[count - 1]


def _check_arguments(
    distribution: JointDistribution,
    surface: CostSurface,
    usable: tuple[Mode, ...],
    modes: tuple[Mode, ...],
    lows: Mapping[str, int],
    highs: Mapping[str, int],
    price: float,
) -> None:
    problems = []
    if surface.axes != distribution.axes:
        raise PlanError(
            f"can't plan: the sample has sizes of {' and '.join(distribution.axes)}, the costs "
            f"are over {' and '.join(surface.axes)}"
        )
    unknown = sorted((set(lows) | set(highs)) - set(distribution.axes))
    if unknown:
        problems.append(f"sizes are given for {', '.join(unknown)}, which the sample doesn't have")
    if not usable:
        problems.append(f"there are no costs for the mode {' or '.join(modes) or '(none allowed)'}")
    for axis in distribution.axes:
        low, high = lows[axis], highs[axis]
        if not 1 <= low <= high <= MAX_LENGTH:
            problems.append(
                f"the range {low}..{high} of {axis} isn't one of sizes from 1 to {MAX_LENGTH}"
            )
        elif distribution.min(axis) < low:
            below = distribution.n - round(distribution.share_over(axis, low - 1) * distribution.n)
            problems.append(
                f"{below} of {distribution.n} samples have a {axis} under the smallest served, "
                f"{low}; the smallest has {distribution.min(axis)}"
            )
    if not 0 <= price < float("inf"):
        problems.append(f"the price per bucket is {price}, not 0 or more")
    if problems:
        raise PlanError("can't plan: " + "; ".join(problems))
