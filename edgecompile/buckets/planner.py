"""The best plan there is for given traffic and costs, over one axis or two.

Over one axis the plan is the exact optimum: no other choice of boundaries and modes has a lower
expected cost; :mod:`edgecompile.buckets.search.segments` has the recurrence and the reason. Over two it
is a set of strips: one axis is cut first, the other within each strip, and both orders are tried.
:mod:`edgecompile.buckets.search.strips` finds the optimum of an order,
:mod:`edgecompile.buckets.search.bound` what no buckets of any shape can beat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgecompile.buckets.costs.grid import MODES, CostGrid, Mode
from edgecompile.buckets.evaluation import expected_cost
from edgecompile.buckets.limits import BucketLimits
from edgecompile.buckets.notes import plan_notes
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import Bucket, OtherAxes
from edgecompile.buckets.search.bound import cover_bound
from edgecompile.buckets.search.boxes import make_buckets, make_unused
from edgecompile.buckets.search.cut_points import TIE
from edgecompile.buckets.search.problem import Problem
from edgecompile.buckets.search.strips import SearchBounds, StripSearch
from edgecompile.buckets.traffic import Sizes, Traffic
from edgecompile.errors import PlanError
from edgecompile.lengths.rows import MAX_LENGTH


def plan_buckets(
    sizes: Sizes,
    costs: CostGrid,
    *,
    max_buckets: int | None = 8,
    buckets: int | None = None,
    price_per_bucket: float = 0.0,
    min_sizes: Mapping[str, int] | None = None,
    max_sizes: Mapping[str, int] | None = None,
    modes: tuple[Mode, ...] = MODES,
    limits: BucketLimits | None = None,
    other_axes: OtherAxes = (),
    bounds: SearchBounds | None = None,
    cuts: Sequence[int] = (),
) -> BucketPlan:
    """The buckets of least expected cost that serve every size from min to max.

    The cost of a plan is the mean cost of one run over the traffic plus ``price_per_bucket`` for
    each bucket. A run in an ``exact`` bucket costs what its own sizes cost, in a padded one what
    the bucket's largest sizes cost. Boundaries may be at any whole number, also where no sample
    is: a static program ends at the cheapest size before the next observed one. Of plans that cost
    the same the one of fewest buckets is given. The same input gives the same plan.

    Over two axes the plan is the optimum among strips unless a note says that it's a heuristic
    (where an axis has very many sizes), and ``lower_bound_ms`` of the plan bounds what any other
    buckets could do.

    Args:
        sizes: the traffic, over one axis or two; sizes over ``max_sizes`` count as these. The axis of
            lengths alone is named "length"; ``Traffic.of`` gives it another name.
        costs: milliseconds by sizes and mode, over the same axes.
        max_buckets: the most buckets allowed; None leaves it to the price and the limits.
        buckets: exactly how many buckets to make, instead of the best number up to max_buckets.
        price_per_bucket: milliseconds of the mean run that a bucket has to save.
        min_sizes: the smallest size to serve by axis; 1 where it isn't given.
        max_sizes: the largest size to serve by axis; that of the traffic where it isn't given.
        modes: the modes allowed; without ``exact`` every bucket is padded.
        limits: bounds on size and build time.
        other_axes: further axes, the same in every bucket.
        bounds: on the search over two axes, beyond which it is a heuristic.
        cuts: sizes of the length axis, ascending, at which a bucket has to begin.

    Raises:
        PlanError: the arguments or constraints can't be met; says which, and by how much.
    """
    traffic = Traffic.of(sizes)
    lows = dict.fromkeys(traffic.axes, 1) | dict(min_sizes or {})
    highs = dict(zip(traffic.axes, traffic.most, strict=True)) | dict(max_sizes or {})
    usable = tuple(mode for mode in MODES if mode in modes and mode in costs.modes)
    problems = (
        []
        if usable
        else [f"there are no costs for the mode {' or '.join(modes) or '(none allowed)'}"]
    )
    problems += _size_problems(traffic, costs, lows, highs)
    if not 0 <= price_per_bucket < float("inf"):
        problems.append(f"the price per bucket is {price_per_bucket}, not 0 or more")
    if problems:
        raise PlanError("can't plan: " + "; ".join(problems))
    low, high = (tuple(ends[axis] for axis in traffic.axes) for ends in (lows, highs))
    cuts = tuple(cut for cut in cuts if low[0] < cut <= high[0])
    most = (limits or BucketLimits()).most(
        max_buckets if buckets is None else None, buckets, least=len(cuts) + 1
    )
    most = most if buckets is None else buckets
    if most is None and price_per_bucket == 0:
        raise PlanError(
            "without a limit and with free buckets every size would get its own",
            hint="give `max_buckets` or a price per bucket",
        )
    served = traffic.clip(high)
    problem = Problem(served, costs, usable, low, high, most, buckets, price_per_bucket)
    sides = [_Side(part, bounds or SearchBounds()) for part in problem.divided(cuts)]
    chosen, by_count = _choose(sides, problem, other_axes)
    expected_ms = expected_cost(chosen, served, costs)
    plan = BucketPlan(
        length_axis=traffic.axes[0],
        buckets=chosen,
        expected_ms=expected_ms,
        policy="optimum",
        cost_model=costs,
        price_per_bucket=price_per_bucket,
        expected_by_count=by_count,
        source=traffic.source,
        lower_bound_ms=_lower_bound(problem, expected_ms + price_per_bucket * len(chosen)),
        cuts=cuts,
    )
    outer = sides[0].best(len(chosen)).outer if len(sides) == 1 else None
    return plan_notes(plan, problem, traffic, [s for side in sides for s in side.searches], outer)


def _size_problems(
    traffic: Traffic, costs: CostGrid, lows: Mapping[str, int], highs: Mapping[str, int]
) -> list[str]:
    """Why these sizes can't be served."""
    axes = traffic.axes
    if len(costs.axes) != len(axes) or (len(axes) > 1 and costs.axes != axes):
        return [
            f"the sample has sizes of {' and '.join(axes)}, the costs are over "
            f"{' and '.join(costs.axes)}"
        ]
    problems = []
    unknown = sorted((set(lows) | set(highs)) - set(axes))
    if unknown:
        problems.append(f"sizes are given for {', '.join(unknown)}, which the sample doesn't have")
    for index, axis in enumerate(axes):
        low, high, least = lows[axis], highs[axis], traffic.least[index]
        if not 1 <= low <= high <= MAX_LENGTH:
            problems.append(
                f"the range {low}..{high} of {axis} isn't one of sizes from 1 to {MAX_LENGTH}"
            )
        elif least < low:
            below = traffic.n - round(traffic.share_over(index, low - 1) * traffic.n)
            problems.append(
                f"{below} of {traffic.n} samples have a {axis} under the smallest served, {low}; "
                f"the smallest has {least}"
            )
    return problems


def _lower_bound(problem: Problem, cost: float) -> float | None:
    """The least cost of any buckets, at most that of the plan found; None where that is the optimum."""
    # Rounding may put the bound above.
    return None if len(problem.axes) == 1 else min(cover_bound(problem), cost)


def _orders(problem: Problem) -> tuple[int, ...]:
    """The axes to cut first. One with a single size goes first: the other is cut optimally."""
    for axis in (1, 0):
        if len(problem.reached(axis)) == 1:
            return (axis,)
    return (0, 1)


class _Side:
    """The best buckets of the sizes between two cuts, for each number of buckets.

    Attributes:
        problem: the sizes, and their part of the traffic.
        searches: one for each axis that may be cut first; none where there is no traffic.
        costs: mean costs of the best 1, 2, … buckets; of a problem without a bound that of the best
            number, with its price.
    """

    def __init__(self, problem: Problem, bounds: SearchBounds) -> None:
        self.problem = problem
        if not len(problem.served.sizes):
            # One bucket has to serve what never comes.
            self.searches: list[StripSearch] = []
            self.costs: tuple[float, ...] = (0.0,)
            return
        self.searches = [StripSearch(problem, outer, bounds) for outer in _orders(problem)]
        reached = max(len(search.costs) for search in self.searches)
        self.costs = tuple(self._cost(k, self.best(k)) for k in range(1, reached + 1))

    def buckets(self, count: int, other_axes: OtherAxes) -> tuple[Bucket, ...]:
        """The best ``count`` buckets; of a problem without a bound the best of any number."""
        if not self.searches:
            return (make_unused(self.problem, other_axes),)
        search = self.best(count)
        return make_buckets(search.plans[count - 1], search.outer, self.problem, other_axes)

    def best(self, count: int) -> StripSearch:
        """The search that found them."""
        return min(self.searches, key=lambda search: self._cost(count, search))

    def _cost(self, count: int, search: StripSearch) -> float:
        if self.problem.most is None:
            boxes = sum(len(strip.cuts.segments) for strip in search.plans[0])
            return search.costs[0] + self.problem.price * boxes
        return search.costs[count - 1] if count <= len(search.costs) else float("inf")


def _choose(
    sides: Sequence[_Side], problem: Problem, other_axes: OtherAxes
) -> tuple[tuple[Bucket, ...], tuple[float, ...]]:
    """The best buckets, and the mean costs by number of buckets; none of these where cuts forbid one."""

    def made(counts: Sequence[int]) -> tuple[Bucket, ...]:
        return tuple(
            bucket
            for side, count in zip(sides, counts, strict=True)
            for bucket in side.buckets(count, other_axes)
        )

    most, buckets, price = problem.most, problem.count, problem.price
    if most is None:
        return made([1] * len(sides)), ()
    # The least cost of k buckets in the sides so far, and how many of them each has.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for side in sides:
        further: dict[int, tuple[float, tuple[int, ...]]] = {}
        for k, (ms, counts) in best.items():
            for own, cost in enumerate(side.costs, 1):
                total = (ms + cost, (*counts, own))
                further[k + own] = min(further.get(k + own, total), total)
        best = further
    reached = max(best)
    if buckets is not None and buckets > reached:
        raise PlanError(
            f"{buckets} buckets are wanted, but the sample has only sizes for {reached}",
            hint=f"ask for {reached} buckets at most",
        )
    sums = {k: best[k][0] + price * k for k in sorted(best) if k <= most}
    count = buckets or next(k for k, s in sums.items() if s <= min(sums.values()) * (1 + TIE))
    by_count = tuple(best[k][0] for k in sorted(best) if k <= most + 1)
    return made(best[count][1]), by_count if len(sides) == 1 else ()
