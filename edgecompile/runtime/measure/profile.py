"""Divides the time of a bundle's runs by kernel, and compares it with the machine's limits."""

import time
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ..base.errors import InputError, UnsupportedHostError
from ..call.inputs import make_inputs
from ..cpu.library import ProfileRow, RuntimeLibrary
from ..format.dtypes import BY_CODE
from ..format.manifest.schema import TORCH
from ..model.open_bundle import open_bundle
from .rounds import check_budget
from .workload import plan_runs

LEAST_RUNS = 5
#: Distinct lengths that are run when more were given: evenly spread over the traffic.
MOST_LENGTHS = 12

# What a run consists of beside kernels; the order of the table.
LOOPS = "generated loops"
REST = "other generated code"
OUTSIDE = "around the program"


def profile_bundle(
    path: str,
    *,
    lengths: Optional[Mapping[int, int]] = None,
    seconds: float = 5.0,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
    **how: Any,
) -> Dict[str, Any]:
    """Runs a bundle and says which kernels took how long.

    Args:
        path: the bundle.
        lengths: the count of each length; None takes the hint of every bucket once.
        seconds: the time for all runs; every length is run at least five times.
        seed: the seed of the inputs' values.
        say: a function that gets a line of text for every step.
        how: threads, variant and verify of ``open_bundle``.

    Returns:
        Plain JSON values. "ceilings": float32 GFLOP/s on registers and GB/s read from memory, each
        measured with the same threads before and after. "kernels": for the traffic as a whole,
        milliseconds of a mean run, share of the time, calls in a run, and GFLOP/s and GB/s where
        the runtime knows the work; bytes count each operand and result once. "joins" counts the
        parallel regions, at whose ends all threads meet; "alone" is the share of the time outside
        them, and "idle" the share of all threads' time in which they did nothing. "lengths": the
        same for every length. Timing the kernels takes some tenths of a microsecond for each call.

    Raises:
        BundleError, UnsupportedHostError, NativeError: the bundle can't be opened, or its runtime
            is older than profiles.
        InputError: every length lies outside the buckets, or a number is out of its range.
    """
    check_budget(seconds, 0)
    with open_bundle(path, **how) as model:
        runtime = model._runtime
        if runtime is None:
            raise UnsupportedHostError(
                "{}: the variant {} runs on a GPU, of which no profile is kept here".format(
                    path, model.info["variant"]
                ),
                "use NVIDIA's tools, or choose a variant of the CPU with --variant",
            )
        if model.info["backend"] == TORCH:
            raise UnsupportedHostError(
                "{}: torch runs it, of whose kernels no profile is kept here".format(path),
                "torch.profiler shows them",
            )
        if not runtime.can_profile:
            raise UnsupportedHostError(
                "{}: its native runtime keeps no profile".format(path),
                "build the bundle again with this version of edgecompile",
            )
        runs, _ = plan_runs(model.manifest, lengths)
        if not runs:
            raise InputError("every length lies outside the buckets of " + path)
        runs = _thin(runs)
        say("{} lengths, {} threads, {:g} s".format(len(runs), runtime.threads, seconds))
        before = runtime.measure_ceilings()
        profiles = []
        for index, (length, sizes, count) in enumerate(runs):
            item = make_inputs(model.manifest, sizes, seed + index)
            wall, calls, rows = _profile(runtime, partial(model.run, item), seconds / len(runs))
            profiles.append((length, count, _kernels(wall, calls, rows)))
        after = runtime.measure_ceilings()
        info = model.info
    report: Dict[str, Any] = {"bundle": path}
    for key in ("name", "manifest_sha256", "variant", "threads", "host"):
        report[key] = info[key]
    report["ceilings"] = {
        "gflops": max(before[0], after[0]) / 1e9,
        "gb_per_s": max(before[1], after[1]) / 1e9,
    }
    report["lengths"] = [
        {"length": length, "count": count, **_summary([(1.0, kernels)], info["threads"])}
        for length, count, kernels in profiles
    ]
    total = sum(count for _, count, _ in profiles)
    weighted = [(count / total, kernels) for _, count, kernels in profiles]
    report.update(_summary(weighted, info["threads"]))
    return report


def _thin(runs: Sequence[Any]) -> List[Any]:
    """At most MOST_LENGTHS runs, at equal distances in the traffic, each with an equal share."""
    if len(runs) <= MOST_LENGTHS:
        return list(runs)
    total = sum(count for _, _, count in runs)
    sample: List[Any] = []
    passed, index = 0, 0
    for length, sizes, count in runs:
        passed += count
        hits = 0
        while index < MOST_LENGTHS and passed >= (index + 0.5) / MOST_LENGTHS * total:
            index += 1
            hits += 1
        if hits:
            sample.append((length, sizes, hits))
    return sample


def _profile(
    runtime: RuntimeLibrary, run: Callable[[], object], seconds: float
) -> Tuple[float, int, List[ProfileRow]]:
    """Nanoseconds of all runs, their number, and the kernels' counts."""
    run()
    run()
    runtime.start_profile()
    began = time.perf_counter_ns()
    calls = 0
    try:
        while calls < LEAST_RUNS or time.perf_counter_ns() - began < seconds * 1e9:
            run()
            calls += 1
        wall = time.perf_counter_ns() - began
    finally:
        rows = runtime.stop_profile()
    return float(wall), calls, rows


#: Of one run: kernel -> the sums of these fields of its rows.
_FIELDS = ("ns", "calls", "flops", "bytes", "regions", "alone_ns", "busy_ns")
Kernels = Dict[str, List[float]]


def _kernels(wall: float, calls: int, rows: Sequence[ProfileRow]) -> Kernels:
    kernels: Kernels = {}
    rest = [0.0] * len(_FIELDS)
    outside = wall / calls
    for row in rows:
        name = row.kernel.decode("ascii", "replace")
        values = [getattr(row, field) / calls for field in _FIELDS]
        rest = [sum(pair) for pair in zip(rest, values if name == "run" else [-x for x in values])]
        if name == "run":
            outside -= values[0]
            continue
        if name == "loops":
            name = LOOPS
        elif row.n:
            element = BY_CODE.get(row.dtype)
            dtype = "?" if element is None else element.name
            name = "{} {} [{}, {}]".format(name, dtype, row.n, row.k)
        counts = kernels.setdefault(name, [0.0] * len(_FIELDS))
        for i, value in enumerate(values):
            counts[i] += value
    # Of a run only its time and its threads are known, not what it computes.
    ns, _, _, _, regions, alone, busy = (max(0.0, value) for value in rest)
    kernels[REST] = [ns, 0.0, 0.0, 0.0, regions, alone, busy]
    outside = max(0.0, outside)
    kernels[OUTSIDE] = [outside, 0.0, 0.0, 0.0, 0.0, outside, outside]
    return kernels


def _summary(parts: Sequence[Tuple[float, Kernels]], threads: int) -> Dict[str, Any]:
    """The mean of runs with weights that add up to 1; kernels by their time."""
    merged: Kernels = {}
    for weight, kernels in parts:
        for name, counts in kernels.items():
            sums = merged.setdefault(name, [0.0] * len(_FIELDS))
            for i, value in enumerate(counts):
                sums[i] += weight * value
    total, _, _, _, joins, _, busy_in_all = map(sum, zip(*merged.values()))
    rows = []
    for name, counts in sorted(merged.items(), key=lambda item: -item[1][0]):
        ns, calls, flops, moved, regions, alone, busy = counts
        row: Dict[str, Any] = {"kernel": name, "ms": ns / 1e6, "share": ns / total}
        row["calls"] = calls or None
        row["gflops"] = flops / ns if flops and ns else None
        row["gb_per_s"] = moved / ns if moved and ns else None
        row["joins"] = regions or None
        row["alone"] = _share(alone, ns) if ns else None
        row["idle"] = 1 - _share(busy, threads * ns) if ns else None
        rows.append(row)
    idle = 1 - _share(busy_in_all, threads * total)
    return {"run_ms": total / 1e6, "joins": joins, "idle": idle, "kernels": rows}


def _share(part: float, whole: float) -> float:
    """A part of a whole; sums and differences of floats may lie beside 0 and 1."""
    return min(1.0, max(0.0, part / whole))
