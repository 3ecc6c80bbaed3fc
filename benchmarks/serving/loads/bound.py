"""How many requests could be in time at best, beside what the simulator says of our rule.

    benchmarks/run bound costs.json --lengths lengths.json [--cpus 2] [--loads 1 1.5]

The bound is a linear program over rates: how often each batch runs (threads, rows, longest text), and how many texts of
each length it holds. All CPUs are busy at most all the time, no length is answered more often than it comes, and a
batch holds no more of a length than come between the deadline of its first one and its own begin: with a limit of 100 ms a
run of 40 ms has the texts of 60. Requests come evenly in it and runs don't vary, so a server of real ones gets less; in a
lucky moment a batch can be fuller. ``even`` is the least share that each length gets, as part of the mean share: 0 lets
the longest go unanswered, at 1 all are answered as often.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.markdown import table
from benchmarks.serving.loads.arrivals import mixtures, percentiles, read_lengths
from benchmarks.serving.loads.goodput import predict
from edgecompile.server.schedule.costs import CostTable, read_costs

#: Lengths are put together in so many classes, each with the cost of its mean.
CLASSES = 20
ROWS = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32)


class Batch(NamedTuple):
    """Of texts of up to a class of lengths; ``seconds``: of its run."""

    threads: int
    rows: int
    longest: int
    seconds: float


def classes(lengths: Mapping[int, int]) -> list[tuple[int, float]]:
    """Mean length and share of each class, ascending."""
    every = [length for length in sorted(lengths) for _ in range(lengths[length])]
    groups: list[tuple[int, float]] = []
    if len(lengths) <= CLASSES:
        return [(length, lengths[length] / len(every)) for length in sorted(lengths)]
    for part in np.array_split(every, CLASSES):
        groups.append((round(float(part.mean())), len(part) / len(every)))
    return groups


def bound(
    costs: CostTable,
    lengths: Mapping[int, int],
    rate: float,
    cpus: int,
    slo: float,
    even: float = 0.0,
) -> float:
    """Answers in time per second, of so many requests per second."""
    from scipy.optimize import linprog
    from scipy.sparse import lil_matrix

    kinds = classes(lengths)
    come = [share * rate for _, share in kinds]
    batches = [
        Batch(threads, rows, i, seconds)
        for threads in costs.threads
        if threads <= cpus
        for i, (length, _) in enumerate(kinds)
        for rows in ROWS
        if rows <= costs.most_rows
        for seconds in [costs.seconds(threads, rows, length)]
        if seconds < slo
    ]
    # Columns: batches per second, then rows per second of each class in each, then all answers.
    fills = [(k, m) for k, batch in enumerate(batches) for m in range(batch.longest + 1)]
    first, last = len(batches), len(batches) + len(fills)
    limits = lil_matrix((1 + 2 * len(kinds) + len(batches) + len(fills), last + 1))
    right = np.zeros(limits.shape[0])
    right[0] = cpus
    right[1 : 1 + len(kinds)] = come
    evenly, holds = 1 + len(kinds), 1 + 2 * len(kinds)
    fresh = holds + len(batches)
    for k, batch in enumerate(batches):
        limits[0, k] = batch.threads * batch.seconds
        limits[holds + k, k] = -batch.rows
    for m, rate_of in enumerate(come):
        limits[evenly + m, last] = even * rate_of / rate
    total = lil_matrix((1, last + 1))
    total[0, last] = -1
    for j, (k, m) in enumerate(fills):
        batch = batches[k]
        limits[1 + m, first + j] = 1
        limits[evenly + m, first + j] = -1
        limits[holds + k, first + j] = 1
        limits[fresh + j, first + j] = 1
        limits[fresh + j, k] = -1 if batch.rows == 1 else -come[m] * (slo - batch.seconds)
        total[0, first + j] = 1
    goal = np.zeros(last + 1)
    goal[last] = -1
    solution = linprog(goal, limits.tocsr(), right, total.tocsr(), [0.0], method="highs")
    return float(-solution.fun)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("costs", type=Path, help="of bench --serving")
    add("--lengths", type=Path, required=True, help="JSON histogram of the mixed traffic")
    add("--cpus", type=int, default=2)
    add("--loads", nargs="+", type=float, default=[1.0, 1.5], help="of the simulated capacity")
    add("--even", nargs="+", type=float, default=[0.0, 0.5, 0.8, 1.0])
    add("--slo", type=float, default=0.1, help="seconds")
    options = parser.parse_args()
    costs = read_costs(json.loads(options.costs.read_text()), most_rows=32, longest=256)
    mixed = read_lengths(options.lengths)
    steps = percentiles(Counter(mixed).elements())
    asked: Any = argparse.Namespace(
        threads=options.cpus,
        cores=range(options.cpus),
        clients=64 * options.cpus,
        patient=False,
        slo=options.slo,
        loads=[("poisson", load) for load in options.loads],
    )
    lines = []
    for name, lengths in mixtures(mixed, costs.longest).items():
        said = predict(costs, lengths, steps, asked)
        most = said["texts_per_s"]
        for load in options.loads:
            best = [
                bound(costs, lengths, load * most, options.cpus, options.slo, even) / most
                for even in options.even
            ]
            ours = said["shares"]["poisson"][str(load)]
            lines.append(
                [name, f"{most:.0f}", f"{load:g}", f"{ours:.2f}", *(f"{x:.2f}" for x in best)]
            )
    heads = ["traffic", "capacity, texts/s", "load", "ours, simulated"]
    print(table(heads + [f"bound, even {even:g}" for even in options.even], lines))


if __name__ == "__main__":
    main()
