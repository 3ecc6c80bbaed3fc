"""Measures what batches cost with a part of the CPUs each, for a server that has to choose.

A run is timed while the other CPUs are busy with runs like it: that is what it costs a server with
enough to do. A language model's runs have all CPUs. docs/runtime.md says what is in the file.
"""

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from ..base.errors import InputError
from ..call.inputs import make_inputs
from ..format.manifest.schema import SEQ2SEQ, Manifest
from ..format.output import check_output, write_report
from ..model.model import Model
from ..model.open_bundle import open_bundle
from ..stats.file import format_time
from .rounds import check_budget
from .texts import measure_texts

SERVING_VERSION = 1
LEAST_ROUNDS, MOST_ROUNDS = 5, 20
MOST_ROWS = 32
#: Rows times length: what costs more than twice a half of it is known well before.
MOST_ELEMENTS = 1024
#: One timing of a short run repeats it for about so long.
_LEAST_S = 0.003


class Point(NamedTuple):
    """A run: its threads, its rows, and their length."""

    threads: int
    rows: int
    length: int


def measure_serving(
    path: str,
    file: Optional[str] = None,
    *,
    cpus: Optional[int] = None,
    seconds: float = 20.0,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
    **how: Any,
) -> Dict[str, Any]:
    """Times runs of 1, 2, 4, … threads, rows and lengths, each beside as many as the CPUs hold.

    Of a language model it times what :func:`.texts.measure_texts` does, as ``texts`` in place of ``points``.

    Args:
        path: the bundle.
        file: the JSON file for the returned value; None: no file.
        cpus: the number of CPUs of the server; None: all that the process may use.
        seconds: the longest time for measuring; every point is timed at least four times, whatever
            it takes, and 19 times at most.
        seed: the seed of the order of the runs and of the inputs' values.
        say: a function that gets a line of text now and then.
        how: variant, verify and threads of ``open_bundle``.

    Raises:
        InputError: ``file`` can't be written, a number is out of its range, the bundle has no
            batch and length that vary, or it generates behind an encoder.
        BundleError, UnsupportedHostError, NativeError: the bundle can't be opened.
    """
    check_budget(seconds, 0)
    target = None if file is None else check_output(file, "the file of costs", path)
    how.update(concurrency=cpus or len(os.sched_getaffinity(0)), warmup=False)
    with open_bundle(path, **how) as model:
        cpus = cpus or int(model.info["threads"])
        spec = model.manifest.generation
        if spec is not None and spec.kind != SEQ2SEQ:
            cpus = int(model.info["threads"])
            took: Dict[str, Any] = {
                "texts": measure_texts(model, seconds=seconds, seed=seed, say=say)
            }
        else:
            took = {"points": _measure_points(model, cpus, seconds, seed, say)}
        info = model.info
        report = {
            "serving_version": SERVING_VERSION,
            "manifest_sha256": info["manifest_sha256"],
            "variant": info["variant"],
            "host": info["host"],
            "cpus": cpus,
            "date": format_time(time.time()),
            **took,
        }
    if target is not None:
        write_report(target, report)
        say("wrote {}".format(target))
    return report


def _measure_points(
    model: Model, cpus: int, seconds: float, seed: int, say: Callable[[str], None]
) -> List[List[Any]]:
    points = choose_points(model.manifest, thread_counts(model, cpus))
    say("{} points on {} CPUs, {:g} s".format(len(points), cpus, seconds))
    with ThreadPoolExecutor(cpus) as pool:
        samples = _measure(model, points, cpus, seconds, seed, pool, say)
    # What disturbs a run makes it longer: the lower quartile is nearer to what it costs.
    return [
        [*point, round(sorted(times)[len(times) // 4], 6)] for point, times in zip(points, samples)
    ]


def batch_axis(manifest: Manifest) -> str:
    """The axis that counts the rows of a batch: the first dimension of every input and output.

    Raises:
        InputError: there is none, it is fixed, or the bundle has no length axis beside it.
    """
    first = {item.shape[0] if item.shape else None for item in manifest.inputs + manifest.outputs}
    axis = first.pop() if len(first) == 1 else None
    others = set(manifest.axes) - {manifest.length_axis}
    if not isinstance(axis, str) or axis not in others or manifest.length_axis is None:
        raise InputError(
            "{}: has no batch of rows that varies beside their length".format(manifest.name),
            "build it with --profile server",
        )
    return axis


def thread_counts(model: Model, cpus: int) -> List[int]:
    """The numbers of threads that a run can have: powers of two and all; all, where it can't choose."""
    return _steps(1, cpus) if model.info["run_threads"] else [cpus]


def choose_points(manifest: Manifest, threads: List[int]) -> List[Point]:
    """For each number of threads powers of two, with the ends and one in between of the lengths.

    Raises:
        InputError: see ``batch_axis``.
    """
    rows = manifest.axes[batch_axis(manifest)]
    lengths = manifest.axes[str(manifest.length_axis)]
    counts = [n for n in _steps(rows.lo, min(rows.hi, max(MOST_ROWS, rows.lo)))]
    fine = sorted(
        set(_steps(lengths.lo, lengths.hi))
        | {n * 3 // 2 for n in _steps(lengths.lo, lengths.hi) if n * 3 // 2 <= lengths.hi}
    )
    return [
        Point(number, count, length)
        for number in threads
        for length in fine
        for count in counts
        if count == counts[0] or count * length <= MOST_ELEMENTS
    ]


def _steps(lo: int, hi: int) -> List[int]:
    """``lo``, the powers of two above it, and ``hi``."""
    between = [1 << i for i in range(lo.bit_length(), hi.bit_length()) if lo < 1 << i < hi]
    return sorted({lo, *between, hi})


def _measure(
    model: Model,
    points: List[Point],
    cpus: int,
    seconds: float,
    seed: int,
    pool: ThreadPoolExecutor,
    say: Callable[[str], None],
) -> List[List[float]]:
    """Milliseconds of a run of each point, several times."""
    axis, lengths = batch_axis(model.manifest), str(model.manifest.length_axis)
    others = {name: extent.lo for name, extent in model.manifest.axes.items()}
    order = random.Random(seed)
    samples: List[List[float]] = [[] for _ in points]
    began, said = time.perf_counter(), 0.0
    rounds, indices = 0, list(range(len(points)))
    while rounds < LEAST_ROUNDS or (rounds < MOST_ROUNDS and time.perf_counter() - began < seconds):
        order.shuffle(indices)
        for index in indices:
            point = points[index]
            sizes = dict(others, **{axis: point.rows, lengths: point.length})
            inputs = make_inputs(model.manifest, sizes, seed + index)
            times = samples[index]
            repeats = 1 if not times else max(1, min(50, int(_LEAST_S * 1e3 / min(times))))
            # The first runs of all find cold caches and programs that aren't loaded.
            samples[index].append(_time(model, point, inputs, cpus, repeats, pool))
            now = time.perf_counter() - began
            if now - said > 2.0:
                said = now
                say("{} rounds, {:.0f} of {:g} s".format(rounds, now, seconds))
            if rounds >= LEAST_ROUNDS and now >= seconds:
                break
        rounds += 1
    return [item[1:] for item in samples]


def _time(
    model: Model,
    point: Point,
    inputs: Dict[str, Any],
    cpus: int,
    repeats: int,
    pool: ThreadPoolExecutor,
) -> float:
    """Milliseconds of a run, the mean over runs on every part of the CPUs at once."""
    copies = max(1, cpus // point.threads)
    together = threading.Barrier(copies)

    def work() -> float:
        together.wait()
        started = time.perf_counter_ns()
        for _ in range(repeats):
            model.run(inputs, threads=point.threads)
        return (time.perf_counter_ns() - started) / 1e6 / repeats

    futures = [pool.submit(work) for _ in range(copies)]
    return sum(future.result() for future in futures) / copies
