"""The cost of starting: measured in fresh processes, one after another, and their memory."""

import json
import os
import subprocess
import time
from typing import Any, Dict, List, Optional

from ..base.children import child_command
from ..base.errors import NativeError
from ..call.inputs import make_inputs
from ..cpu import loaders
from ..model.open_bundle import open_bundle
from ..stats.counters import median_ms
from .workload import plan_runs


def read_memory() -> Dict[str, int]:
    """Resident memory of this process in bytes, from /proc; {} where there is none.

    "anonymous" is the process' own; "file" is mapped files (weights, libraries), which processes
    share.
    """
    names = {"VmRSS": "resident", "VmHWM": "peak", "RssAnon": "anonymous", "RssFile": "file"}
    result = {}
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as stream:
            for line in stream:
                key, _, value = line.partition(":")
                if key in names:
                    result[names[key]] = int(value.split()[0]) * 1024
    except OSError:
        pass
    return result


def cold_start(
    path: str,
    length: Optional[int],
    since: int,
    imported: int,
    **how: Any,
) -> Dict[str, Any]:
    """Opens, warms up and runs once, in a fresh process. Run by ``measure_cold_start``.

    Args:
        since: the time when the parent started this process, ``time.monotonic_ns`` (one clock for
            all).
        imported: the time when the imports were done, of the same clock.
    """
    model = open_bundle(path, **how)
    opened = time.monotonic_ns()
    runs, _ = plan_runs(model.manifest, None if length is None else {length: 1})
    model.run(make_inputs(model.manifest, runs[0][1]))
    done = time.monotonic_ns()
    return {
        "start_ms": (imported - since) / 1e6,
        "open_ms": (opened - imported) / 1e6,
        "run_ms": (done - opened) / 1e6,
        "total_ms": (done - since) / 1e6,
        "memory": read_memory(),
    }


def cold_load(path: str, **how: Any) -> Dict[str, Any]:
    """Opens a bundle in a fresh process, without running anything.

    Returns:
        "open_ms" without any program, and "load_ms" of each distinct program, one after another:
        hashing it, linking it and giving it its constants.
    """
    began = time.perf_counter_ns()
    model = open_bundle(path, warmup=False, **how)
    opened = time.perf_counter_ns()
    variant = next(v for v in model.manifest.variants if v.name == model.info["variant"])
    loads = []
    # A GPU's engine has all buckets in one file, and a context for each is made when it is loaded.
    programs = variant.programs or tuple(str(i) for i in range(len(model.manifest.buckets)))
    for program in sorted(set(programs), key=programs.index):
        started = time.perf_counter_ns()
        model.load(programs.index(program))
        loads.append((time.perf_counter_ns() - started) / 1e6)
    model.close()
    return {"open_ms": (opened - began) / 1e6, "load_ms": loads}


def measure_cold_start(
    path: str,
    length: Optional[int],
    count: int,
    **how: Any,
) -> Dict[str, Any]:
    """Starts ``count`` fresh Python processes one after another; medians over them.

    "start_ms" is Python and numpy, "open_ms" the bundle with its warm-up, "run_ms" the first run.

    Raises:
        NativeError: a process failed; holds what it said.
    """
    extra = [] if length is None else ["--length", str(length)]
    results = _start(path, extra, count=count, **how)
    medians = {
        key: median_ms(item[key] for item in results)
        for key in ("start_ms", "open_ms", "run_ms", "total_ms")
    }
    memory = results[-1]["memory"]
    return dict(medians, runs=count, memory=memory, all_total_ms=[r["total_ms"] for r in results])


def measure_cold_loads(path: str, *, count: int, **how: Any) -> Dict[str, float]:
    """The cost of opening a bundle and of loading one more program, in ``count`` fresh processes.

    Returns:
        "open_ms": the median of opening it without its programs. "load_ms": the mean of loading
        a program, without the first one of a process where there are more. Neither holds a run.

    Raises:
        NativeError: a process failed; holds what it said.
    """
    results = _start(path, ["--loads"], count=count, **how)
    loads = [ms for item in results for ms in item["load_ms"][1:] or item["load_ms"]]
    return {
        "open_ms": median_ms(item["open_ms"] for item in results),
        "load_ms": sum(loads) / len(loads),
    }


def _start(
    path: str,
    extra: List[str],
    count: int,
    **how: Any,
) -> List[Dict[str, Any]]:
    """The answers of ``count`` runs of the hidden command."""
    command, where = child_command(loaders.command())
    command += ["coldstart", os.path.abspath(path)]
    command += extra
    for option, value in how.items():
        if value is not None:
            command += ["--" + option, str(value)]
    results = []
    for _ in range(count):
        since = str(time.monotonic_ns())
        child = subprocess.run(
            [*command, "--since", since],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            **where,
        )
        if child.returncode != 0:
            text = child.stderr.decode("utf-8", "replace").strip()[-2000:]
            message = "the process for the cold start ended with {}: {}"
            raise NativeError(message.format(child.returncode, text))
        results.append(json.loads(child.stdout))
    return results
