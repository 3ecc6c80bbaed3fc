"""Measures a bundle on this machine: time per length, cold start in a fresh process, memory."""

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ..base.errors import InputError
from ..call.inputs import make_inputs
from ..model.open_bundle import open_bundle
from ..stats.counters import percentile
from .coldstart import measure_cold_start, read_memory
from .rounds import check_budget, measure_rounds, what_ran
from .workload import plan_runs

LEAST_ROUNDS = 3
PERCENTS = (50, 90, 99)


def run_bench(
    path: str,
    *,
    lengths: Optional[Mapping[int, int]] = None,
    seconds: float = 10.0,
    cold_runs: int = 5,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
    **how: Any,
) -> Dict[str, Any]:
    """Measures ``Model.run``, checks and padding included.

    Args:
        path: the bundle.
        lengths: the count of each length; None takes the hint of every bucket once. Lengths
            outside every bucket are counted and left out.
        seconds: the time for measuring; every length is run at least three times.
        cold_runs: the number of fresh processes to start for the cold start; 0 for none.
        seed: the seed of the order of the runs and of the inputs' values.
        say: a function that gets a line of text for every step.
        how: threads, variant and verify of ``open_bundle``.

    Returns:
        Plain JSON values; times in milliseconds, memory in bytes. "overall" weighs every length
        with its count.

    Raises:
        BundleError, UnsupportedHostError, NativeError: the bundle can't be opened.
        InputError: every length lies outside the buckets, or a number is out of its range.
    """
    check_budget(seconds, cold_runs)
    report: Dict[str, Any] = {"bundle": path}
    with open_bundle(path, **how) as model:
        info = model.info
        for key in ("name", "manifest_sha256", "variant", "threads", "host"):
            report[key] = info[key]
        report.update(what_ran(info))
        runs, outside = plan_runs(model.manifest, lengths)
        if not runs:
            raise InputError("every length lies outside the buckets of " + path)
        say("{} lengths, {} threads, {:g} s".format(len(runs), info["threads"], seconds))
        inputs = [
            make_inputs(model.manifest, sizes, seed + i) for i, (_, sizes, _) in enumerate(runs)
        ]
        for item in inputs:
            model.run(item)
        samples = measure_rounds(
            len(runs),
            inputs.__getitem__,
            lambda index, item: model.run(item),
            seconds=seconds,
            least=LEAST_ROUNDS,
            seed=seed,
        )
        report["outside"] = outside
        report["lengths"] = [
            dict({"length": length, "count": count}, **_summary([(t, 1.0) for t in times]))
            for (length, _, count), times in zip(runs, samples)
        ]
        weighted = [
            (t, count / len(times)) for (_, _, count), times in zip(runs, samples) for t in times
        ]
        report["overall"] = _summary(weighted)
        report["stats"] = model.stats
    report["memory"] = read_memory()
    if cold_runs:
        say("cold start: {} fresh processes".format(cold_runs))
        report["cold_start"] = measure_cold_start(path, runs[0][0], count=cold_runs, **how)
    return report


def _summary(samples: Sequence[Tuple[float, float]]) -> Dict[str, Any]:
    """Percentiles of (time, weight) pairs: the least time that the share of the weight reaches."""
    ordered = sorted(samples)
    total = sum(weight for _, weight in ordered)
    result: Dict[str, Any] = {
        "samples": len(ordered),
        "mean_ms": sum(t * weight for t, weight in ordered) / total,
        "min_ms": ordered[0][0],
    }
    if all(weight == ordered[0][1] for _, weight in ordered):
        times = [round(t * 1e6) for t, _ in ordered]
        for percent in PERCENTS:
            result["p{}_ms".format(percent)] = percentile(times, percent) / 1e6
        return result
    for percent in PERCENTS:
        result["p{}_ms".format(percent)] = _weighted_percentile(ordered, total * percent / 100.0)
    return result


def _weighted_percentile(ordered: Sequence[Tuple[float, float]], target: float) -> float:
    reached = 0.0
    for t, weight in ordered:
        reached += weight
        if reached >= target:
            return t
    return ordered[-1][0]


def format_bench(report: Dict[str, Any]) -> List[str]:
    """The tables for people, a line each."""
    head = "{:>8} {:>8} {:>8} {:>10} {:>10} {:>10} {:>10}"
    lines = [head.format("length", "count", "samples", "p50 ms", "p90 ms", "p99 ms", "mean ms")]
    total = sum(item["count"] for item in report["lengths"])
    rows = [*report["lengths"], dict(report["overall"], length="all", count=total)]
    for item in rows:
        times = ["{:.3f}".format(item[key]) for key in ("p50_ms", "p90_ms", "p99_ms", "mean_ms")]
        length = "-" if item["length"] is None else item["length"]
        lines.append(head.format(length, item["count"], item["samples"], *times))
    if report["outside"]:
        count = sum(report["outside"].values())
        lines.append("outside every bucket: {} inputs".format(count))
    if "cold_start" in report:
        cold = report["cold_start"]
        text = "cold start {:.0f} ms: Python and numpy {:.0f}, open {:.0f}, first run {:.1f}"
        keys = ("total_ms", "start_ms", "open_ms", "run_ms")
        lines.append(text.format(*[cold[key] for key in keys]))
    if report["memory"]:
        parts = ["{} {:.1f}".format(key, n / 1e6) for key, n in report["memory"].items()]
        lines.append("memory in MB: " + ", ".join(parts))
    return lines
