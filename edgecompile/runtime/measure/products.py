"""``tune``: which products of the chosen programs cuBLASLt computes faster than Triton's kernels.

Each product is timed within its program, as kernels overlap: all runs with cuBLASLt for it alone beside those without, at
sizes from a bucket's least to its largest. That is done with graphs and, where a bucket takes sizes as they are, without:
the first runs of a size are queued, and the CPU takes longer to queue cuBLASLt's kernels. From so many rows on cuBLASLt is
taken as saves the most in all.
"""

import contextlib
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..call.replay import run_cases
from ..format.manifest.schema import Manifest
from ..format.sums import size_of
from ..gpu.engines import DEFAULT, PLANNED
from ..open.bundle import OpenBundle
from ..stats.counters import median_ms
from ..triton.programs import CublasLt
from ..triton.rehearsals import Rehearsals
from .prepared import prepared, spread_sizes, warm_up
from .rounds import measure_rounds

LEAST_ROUNDS = 20
#: The share of a run's time that a product has to save: less is not told from noise.
_LEAST_GAIN = 0.005


class Found(NamedTuple):
    """For each bucket from how many rows on cuBLASLt computes each product, -1 for never; and what was measured: plain
    JSON values."""

    rows: List[List[int]]
    measured: List[Dict[str, Any]]


def tune_products(
    open_with: Callable[[Optional[CublasLt], str], OpenBundle],
    rehearsals: Rehearsals,
    version: int,
    seconds: float,
    say: Callable[[str], None],
    note: Callable[[str], None],
) -> Found:
    """Tests cuBLASLt with the golden vectors, and times each product of each bucket with it and without.

    Args:
        open_with: opens the bundle with the chosen programs, these products by cuBLASLt, in a mode.
        rehearsals: rehearsals of the chosen programs.
        version: the version of cuBLASLt.
        seconds: the time for measuring; every run is made at least 20 times.
        say: a function that gets a line of text for every step.
        note: a function that gets warnings.

    Raises:
        GpuError: CUDA failed.
    """
    with contextlib.ExitStack() as stack:
        bases = {
            mode: stack.enter_context(contextlib.closing(open_with(None, mode)))
            for mode in (PLANNED, DEFAULT)
        }
        base = bases[PLANNED]
        manifest = base.manifest
        sizes = [spread_sizes(manifest, bucket) for bucket in range(len(manifest.buckets))]
        rows = [
            [_count_rows(rehearsals, manifest, bucket, item) for item in items]
            for bucket, items in enumerate(sizes)
        ]
        counts = [max(map(len, items)) for items in rows]
        say("golden vectors: cuBLASLt {}".format(version))
        every = CublasLt(version, tuple((0,) * count for count in counts))
        with contextlib.closing(open_with(every, PLANNED)) as model:
            right = _test(model, counts, note)
        result = Found([[-1] * count for count in counts], [])
        busy = [(b, p) for b, count in enumerate(counts) if right[b] for p in range(count)]
        for bucket, product in busy:
            say("bucket {}: product {} of {}".format(bucket, product + 1, counts[bucket]))
            alone = [[-1] * count for count in counts]
            alone[bucket][product] = 0
            cublaslt = CublasLt(version, tuple(map(tuple, alone)))
            modes = (PLANNED, DEFAULT) if manifest.buckets[bucket].mode == "exact" else (PLANNED,)
            times: Dict[str, List[List[float]]] = {}
            refused = ""
            for mode in modes:
                with contextlib.closing(open_with(cublaslt, mode)) as other:
                    models = (bases[mode], other)
                    budget = seconds / len(busy) / len(modes)
                    times[mode] = measure_models(models, bucket, sizes[bucket], budget)
                    refused = refused or _failure(other)
            own = [item[product] for item in rows[bucket]]
            without, using = ([ms for mode in modes for ms in times[mode][i]] for i in (0, 1))
            start = -1 if refused else choose_rows(own * len(modes), without, using)
            result.rows[bucket][product] = start
            entry = {"bucket": bucket, "product": product, "from": start, "rows": own}
            ms = {mode: {"triton": item[0], "cublaslt": item[1]} for mode, item in times.items()}
            result.measured.append({**entry, "ms": ms})
    return result


def _failure(model: OpenBundle) -> str:
    """Why Triton's kernels compute what cuBLASLt was to, "" if nothing failed so far."""
    return str((model.info["tuned"]["cublaslt"] or {"failure": ""})["failure"])


def _count_rows(
    rehearsals: Rehearsals, manifest: Manifest, bucket: int, sizes: Mapping[str, int]
) -> List[int]:
    """The rows of each product in a run of these axis sizes."""
    shapes = {
        spec.name: tuple([size_of(dim, sizes) for dim in spec.shape]) for spec in manifest.inputs
    }
    program = rehearsals.program(bucket)
    program.rehearse(shapes)
    return program.products()


def _test(model: OpenBundle, counts: Sequence[int], note: Callable[[str], None]) -> List[bool]:
    """For each bucket whether its golden vectors are reproduced where cuBLASLt computes everything."""
    cases = run_cases(model)
    right = []
    for bucket, count in enumerate(counts):
        wrong = [case for case in cases if case["bucket"] == bucket and not case["ok"]]
        if count and wrong:
            why = wrong[0].get("error") or "it differs"
            note("bucket {}: cuBLASLt is dropped, its golden vector: {}".format(bucket, why))
        right.append(not wrong)
    failure = _failure(model)
    if failure:
        note("cuBLASLt refuses a product: " + failure)
    return right


def measure_models(
    models: Sequence[OpenBundle], bucket: int, sizes: Sequence[Mapping[str, int]], seconds: float
) -> List[List[float]]:
    """Milliseconds of each model's runs at each of these sizes."""
    with contextlib.ExitStack() as stack:
        runs = [
            run for model in models for run in stack.enter_context(prepared(model, bucket, sizes))
        ]
        warm_up(runs)
        samples = measure_rounds(
            len(runs),
            runs.__getitem__,
            lambda _, run: run(),
            seconds=seconds,
            least=LEAST_ROUNDS,
            seed=bucket,
        )
    medians = [median_ms(item) for item in samples]
    width = len(sizes)
    return [medians[start : start + width] for start in range(0, len(medians), width)]


def choose_rows(rows: Sequence[int], without: Sequence[float], using: Sequence[float]) -> int:
    """From how many rows on a product is cuBLASLt's, -1 for never.

    Args:
        rows: the rows of the matmul at each of some sizes.
        without: milliseconds of a run there.
        using: milliseconds of a run with cuBLASLt for this matmul.
    """
    gains: Dict[int, float] = {}
    for count, before, after in zip(rows, without, using):
        gain = (before - after) / max(before, 1e-9) - _LEAST_GAIN
        gains[count] = gains.get(count, 0.0) + gain
    total = most = 0.0
    start = -1
    for count in sorted(gains, reverse=True):
        total += gains[count]
        if total > most:
            most, start = total, count
    return start


def format_version(version: int) -> str:
    """130002 is cuBLASLt 13.0.2."""
    return "cuBLASLt {}.{}.{}".format(version // 10000, version // 100 % 100, version % 100)


def format_products(report: Mapping[str, Any]) -> List[str]:
    """The results for people, a line for each product."""
    version = report["version"]
    if not version:
        return ["no cuBLASLt: {}".format(report.get("why") or "tuned without it")]
    head = format_version(version)
    lines = [
        "{}, bucket {}: product {} {}".format(
            head,
            bucket,
            product + 1,
            "from {} rows on".format(rows) if rows >= 0 else "isn't faster",
        )
        for bucket, items in enumerate(report["rows"])
        for product, rows in enumerate(items)
    ]
    return lines or [head + ": there is no product for it"]
