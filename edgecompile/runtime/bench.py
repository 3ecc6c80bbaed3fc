"""Measures a bundle on this machine: time per length, cold start in a fresh process, memory."""

import json
import os
import random
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .document import shorten
from .errors import InputError, NativeError
from .inputs import make_inputs
from .model import Model, open_bundle
from .stats import percentile

MAX_LENGTHS_BYTES = 256 << 20
PERCENTS = (50, 90, 99)


def read_lengths(path: str) -> Dict[int, int]:
    """Counts of lengths from a text file: one integer a line, or ``length,count``.

    Empty lines and lines that begin with ``#`` are skipped.

    Raises:
        InputError: the file can't be read or a line is something else; names the lines.
    """
    try:
        if os.path.getsize(path) > MAX_LENGTHS_BYTES:
            text = "{}: larger than {} bytes".format(path, MAX_LENGTHS_BYTES)
            raise InputError(text)
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = stream.read().splitlines()
    except OSError as error:
        raise InputError("{}: can't be read: {}".format(path, error.strerror)) from None
    counts: Dict[int, int] = {}
    problems = []
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        fields = [item.strip() for item in line.split(",")]
        good = len(fields) <= 2 and all(
            item.isdigit() and item.isascii() and len(item) < 16 and int(item) > 0
            for item in fields
        )
        if good:
            length = int(fields[0])
            counts[length] = counts.get(length, 0) + (int(fields[1]) if len(fields) == 2 else 1)
        else:
            problems.append("line {}: {!r}".format(number, shorten(line)))
    if problems or not counts:
        what = "; ".join(problems[:10]) if problems else "no lengths"
        text = "{}: must hold a positive length, or length,count, in each line: {}"
        raise InputError(text.format(path, what))
    return counts


def run_bench(
    path: str,
    *,
    lengths: Optional[Mapping[int, int]] = None,
    threads: Optional[int] = None,
    variant: Optional[str] = None,
    verify: str = "auto",
    seconds: float = 10.0,
    cold_runs: int = 5,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> Dict[str, Any]:
    """Measures ``Model.run``, checks and padding included.

    Args:
        path: the bundle.
        lengths: how often each length occurs; None takes the hint of every bucket once. Lengths
            outside every bucket are counted and left out.
        seconds: how long to measure; every length is run at least three times.
        cold_runs: how many fresh processes to start for the cold start; 0 for none.
        seed: of the order of the runs and of the inputs' values.
        say: gets a line of text for every step.

    Returns:
        Plain JSON values; times in milliseconds, memory in bytes. "overall" weighs every length
        with its count.

    Raises:
        BundleError, UnsupportedHostError, NativeError: the bundle can't be opened.
        InputError: every length lies outside the buckets.
    """
    report: Dict[str, Any] = {"bundle": path}
    with open_bundle(path, threads=threads, variant=variant, verify=verify) as model:
        info = model.info
        for key in ("name", "manifest_sha256", "variant", "threads", "host"):
            report[key] = info[key]
        runs, outside = _plan(model, lengths)
        if not runs:
            raise InputError("every length lies outside the buckets of " + path)
        say("{} lengths, {} threads, {:g} s".format(len(runs), info["threads"], seconds))
        samples = _measure(model, [sizes for _, sizes, _ in runs], seconds, seed)
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
        report["cold_start"] = measure_cold_start(
            path, runs[0][0], threads=threads, variant=variant, verify=verify, count=cold_runs
        )
    return report


_Run = Tuple[Optional[int], Dict[str, int], int]


def _plan(model: Model, lengths: Optional[Mapping[int, int]]) -> Tuple[List[_Run], Dict[str, int]]:
    """(length, sizes of all axes, count) of every distinct run, and the lengths left out."""
    manifest = model.manifest
    axis = manifest.length_axis
    hints = [
        {name: item.hint or item.hi for name, item in b.axes.items()} for b in manifest.buckets
    ]
    if axis is None or lengths is None:
        runs: List[_Run] = []
        for sizes in hints:
            if all(sizes != other for _, other, _ in runs):
                runs.append((None if axis is None else sizes[axis], sizes, 1))
        return runs, {}
    runs, outside = [], {}
    for length, count in sorted(lengths.items()):
        for bucket, sizes in zip(manifest.buckets, hints):
            if length in bucket.axes[axis]:
                runs.append((length, dict(sizes, **{axis: length}), count))
                break
        else:
            outside[str(length)] = count
    return runs, outside


def _measure(
    model: Model, sizes: Sequence[Mapping[str, int]], seconds: float, seed: int
) -> List[List[float]]:
    """Milliseconds of every run, in rounds over all sizes in random order.

    Interleaved, so that a machine that grows slower or faster meanwhile doesn't favour a length.
    """
    order = random.Random(seed)
    inputs = [make_inputs(model.manifest, item, seed + i) for i, item in enumerate(sizes)]
    for item in inputs:
        model.run(item)
    samples: List[List[float]] = [[] for _ in sizes]
    indices = list(range(len(sizes)))
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 3 or time.perf_counter() < end:
        order.shuffle(indices)
        for index in indices:
            started = time.perf_counter_ns()
            model.run(inputs[index])
            samples[index].append((time.perf_counter_ns() - started) / 1e6)
            if rounds >= 3 and time.perf_counter() >= end:
                break
        rounds += 1
    return samples


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


def _weighted_percentile(ordered: Sequence[Tuple[float, float]], wanted: float) -> float:
    reached = 0.0
    for t, weight in ordered:
        reached += weight
        if reached >= wanted:
            return t
    return ordered[-1][0]


def read_memory() -> Dict[str, int]:
    """Resident memory of this process in bytes, from /proc; {} where there is none.

    "anonymous" is the process' own; "file" is mapped files (weights, libraries), which processes
    share.
    """
    wanted = {"VmRSS": "resident", "VmHWM": "peak", "RssAnon": "anonymous", "RssFile": "file"}
    result = {}
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as stream:
            for line in stream:
                key, _, value = line.partition(":")
                if key in wanted:
                    result[wanted[key]] = int(value.split()[0]) * 1024
    except OSError:
        pass
    return result


def cold_start(
    path: str,
    length: Optional[int],
    since: int,
    imported: int,
    *,
    threads: Optional[int],
    variant: Optional[str],
    verify: str,
) -> Dict[str, Any]:
    """What a fresh process does: opens, warms up and runs once. Run by ``measure_cold_start``.

    Args:
        since: when the parent started this process, ``time.monotonic_ns`` (one clock for all).
        imported: when the imports were done, of the same clock.
    """
    model = open_bundle(path, threads=threads, variant=variant, verify=verify)
    opened = time.monotonic_ns()
    runs, _ = _plan(model, None if length is None else {length: 1})
    model.run(make_inputs(model.manifest, runs[0][1]))
    done = time.monotonic_ns()
    return {
        "start_ms": (imported - since) / 1e6,
        "open_ms": (opened - imported) / 1e6,
        "run_ms": (done - opened) / 1e6,
        "total_ms": (done - since) / 1e6,
        "memory": read_memory(),
    }


def measure_cold_start(
    path: str,
    length: Optional[int],
    *,
    threads: Optional[int],
    variant: Optional[str],
    verify: str,
    count: int,
) -> Dict[str, Any]:
    """Starts ``count`` fresh Python processes one after another; medians over them.

    "start_ms" is Python and numpy, "open_ms" the bundle with its warm-up, "run_ms" the first run.

    Raises:
        NativeError: a process failed; holds what it said.
    """
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    found = os.environ.get("PYTHONPATH")
    environment = dict(os.environ)
    environment["PYTHONPATH"] = package + os.pathsep + found if found else package
    command = [sys.executable, "-m", "edgecompile.runtime", "coldstart", os.path.abspath(path)]
    command += ["--verify", verify]
    for option, value in (("--length", length), ("--threads", threads), ("--variant", variant)):
        if value is not None:
            command += [option, str(value)]
    results = []
    for _ in range(count):
        since = str(time.monotonic_ns())
        child = subprocess.run(
            [*command, "--since", since],
            env=environment,
            cwd=package,  # -m looks in the working directory first
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        if child.returncode != 0:
            text = child.stderr.decode("utf-8", "replace").strip()[-2000:]
            message = "the process for the cold start ended with {}: {}"
            raise NativeError(message.format(child.returncode, text))
        results.append(json.loads(child.stdout))
    medians = {
        key: percentile(sorted(round(item[key] * 1e6) for item in results), 50) / 1e6
        for key in ("start_ms", "open_ms", "run_ms", "total_ms")
    }
    memory = results[-1]["memory"]
    return dict(medians, runs=count, memory=memory, all_total_ms=[r["total_ms"] for r in results])


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
