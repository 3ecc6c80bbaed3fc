"""Measures what each bucket costs on this machine, for `edgecompile plan --calibration`.

docs/runtime.md says what is in the file.
"""

import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

from ..base.arguments import is_integer
from ..base.errors import BundleError
from ..call.inputs import make_inputs
from ..format.document import json_type, shorten
from ..format.manifest.schema import Extent, Manifest
from ..format.output import check_output, write_report
from ..model.open_bundle import open_bundle
from ..stats.counters import percentile
from ..stats.file import format_time
from .coldstart import measure_cold_loads
from .rounds import check_budget, measure_rounds, what_ran

CALIBRATION_VERSION = 1
LEAST_ROUNDS = 5
LADDER = 7
MAX_POINTS = 4096
SECONDS_BETWEEN_REPORTS = 2.0
_ANY_SIZE = (1 << 63) - 1  # buckets say which sizes they take


class Point(NamedTuple):
    """One thing to run: the sizes of all axes, in one bucket."""

    bucket: int
    sizes: Dict[str, int]


def calibrate_bundle(
    path: str,
    file: str,
    *,
    seconds: float = 10.0,
    cold_runs: int = 5,
    seed: int = 0,
    error: float = 0.0,
    most_error: Optional[float] = None,
    say: Callable[[str], None] = lambda text: None,
    **how: Any,
) -> Dict[str, Any]:
    """Times the points of a bundle with ``Model.run_bucket`` and writes the calibration file.

    The points are those of ``plan.calibrate`` in the manifest, where the bundle has it, else the
    ones that ``choose_points`` finds. They are run in rounds over all, in random order.

    Args:
        path: the bundle.
        file: the file to write; replaced atomically, and only by a complete calibration.
        seconds: the time for measuring; there are at least five rounds, whatever they take.
        cold_runs: the number of fresh processes that are opened for "open_ms" and "load_ms"; with 0
            both are None.
        seed: the seed of the order of the runs and of the inputs' values.
        error: the share of each median that its standard error may be, to stop earlier; 0: never.
        most_error: the same where the runs spread: a sixteenth of their quartiles' distance, at most this. Needs
            ``error``; None: that.
        say: a function that gets a line of text for every step.
        how: threads, variant and verify of ``open_bundle``.

    Returns:
        What the file holds.

    Raises:
        BundleError, UnsupportedHostError, NativeError: the bundle can't be opened; BundleError also
            for a ``plan.calibrate`` that doesn't fit its buckets.
        InputError: ``file`` can't be written, or a number is out of its range.
    """
    check_budget(seconds, cold_runs, error, most_error)
    target = check_output(file, "the calibration file", path)
    with open_bundle(path, **how) as model:
        manifest, info = model.manifest, model.info
        points = read_points(manifest, path) or choose_points(manifest)
        text = "{} points in {} buckets, {} threads, {:g} s and at least {} rounds"
        n_buckets = len({item.bucket for item in points})
        say(text.format(len(points), n_buckets, info["threads"], seconds, LEAST_ROUNDS))
        # Inputs are made for every run: those of all points may not fit in memory.
        for item in points:
            model.run_bucket(item.bucket, make_inputs(manifest, item.sizes, seed))
        samples = measure_rounds(
            len(points),
            lambda i: make_inputs(manifest, points[i].sizes, seed + i),
            lambda i, inputs: model.run_bucket(points[i].bucket, inputs),
            seconds=seconds,
            least=LEAST_ROUNDS,
            seed=seed,
            error=error,
            most_error=error if most_error is None else most_error,
            progress=_reporter(say, seconds),
        )
    start: Dict[str, Optional[float]] = {"open_ms": None, "load_ms": None}
    if cold_runs:
        say("opening: {} fresh processes".format(cold_runs))
        start.update(measure_cold_loads(path, count=cold_runs, **how))
    variant = next(item for item in manifest.variants if item.name == info["variant"])
    report: Dict[str, Any] = {
        "calibration_version": CALIBRATION_VERSION,
        "edgecompile": manifest.built_by.get("edgecompile"),
        "model": manifest.name,
        "structure": manifest.built_by.get("structure"),
        "manifest_sha256": info["manifest_sha256"],
        "variant": variant.name,
        "arch": variant.arch,
        "threads": info["threads"],
        **what_ran(info),
        "host": info["host"],
        "date": format_time(time.time()),
        "length_axis": manifest.length_axis,
        "precision": info.get("gpu_precision") or manifest.precision,
        "bucket_cost": bucket_cost(manifest),
        "points": [_summarise(manifest, point, times) for point, times in zip(points, samples)],
    }
    report.update(start)
    write_report(target, report)
    say("wrote {}".format(target))
    return report


def bucket_cost(manifest: Manifest) -> Dict[str, float]:
    """The size of a bucket in this bundle: bytes of all variants, and seconds to build if known.

    "base_size" is the bundle without programs; "bucket_build_s" is what the builder noted.
    """
    programs = [name for variant in manifest.variants for name in variant.files()]
    program_bytes = sum(manifest.files[name].size for name in programs)
    cost: Dict[str, float] = {
        "base_size": sum(entry.size for entry in manifest.files.values()) - program_bytes,
        "bucket_size": program_bytes // len(manifest.buckets),
    }
    seconds = manifest.plan.get("bucket_build_s")
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and seconds >= 0:
        cost["bucket_build_s"] = seconds
    return cost


def read_points(manifest: Manifest, source: str) -> List[Point]:
    """The points that the bundle itself asks for in ``plan.calibrate``; [] if it has none.

    Raises:
        BundleError: they aren't ``{"bucket": number, "sizes": {axis: size}}`` within the buckets;
            lists every problem.
    """
    if "calibrate" not in manifest.plan:
        return []
    entries = manifest.plan["calibrate"]
    problems: List[str] = []
    points: List[Point] = []
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_POINTS:
        text = "plan.calibrate: must be a list of 1 to {} entries".format(MAX_POINTS)
        entries = []
        problems.append(text)
    seen: Dict[Any, int] = {}
    for index, entry in enumerate(entries):
        problem = _point_problem(manifest, entry)
        if problem is None:
            point = Point(entry["bucket"], dict(entry["sizes"]))
            first = seen.setdefault(_key(manifest, point), index)
            if first == index:
                points.append(point)
            else:
                problem = "measures the same as plan.calibrate[{}]".format(first)
        if problem is not None:
            problems.append("plan.calibrate[{}]: {}".format(index, problem))
    if problems:
        listed = problems[:20]
        if len(problems) > len(listed):
            listed.append("... and {} more".format(len(problems) - len(listed)))
        raise BundleError(
            "{}: {}".format(source, "\n  ".join(listed)),
            "the bundle was written wrongly or changed; build it again",
        )
    return points


def _point_problem(manifest: Manifest, entry: object) -> Optional[str]:
    if not isinstance(entry, dict):
        return "must be an object, not {}".format(json_type(entry))
    bucket, sizes = entry.get("bucket"), entry.get("sizes")
    if not is_integer(bucket, 0, len(manifest.buckets) - 1):
        text = "bucket is {}, must be a number from 0 to {}"
        return text.format(shorten(bucket), len(manifest.buckets) - 1)
    if not isinstance(sizes, dict) or set(sizes) != set(manifest.axes):
        return "sizes must have " + (", ".join(manifest.axes) or "no axis")
    spec = manifest.buckets[entry["bucket"]]
    if not all(is_integer(size, 0, _ANY_SIZE) for size in sizes.values()) or not spec.contains(
        sizes
    ):
        sizes_text = ", ".join("{} {}".format(axis, shorten(size)) for axis, size in sizes.items())
        return "the sizes {} aren't in bucket {} ({})".format(sizes_text, bucket, spec)
    for axis in spec.padded(manifest.length_axis):
        if sizes[axis] != spec.axes[axis].hi:
            text = "{} is {}, but bucket {} always computes {}"
            return text.format(axis, sizes[axis], bucket, spec.axes[axis].hi)
    return None


def _key(manifest: Manifest, point: Point) -> Any:
    """Equal for points whose costs a plan can't tell apart."""
    return manifest.buckets[point.bucket].mode, tuple(sorted(point.sizes.items()))


def choose_points(manifest: Manifest) -> List[Point]:
    """Points that tell what each bucket costs over its range.

    An exact bucket is run at its lo, hint and hi and at about four lengths between, a geometric
    ladder; the other axes all at lo, and all at hi. A padded one always runs its program at the
    hi of its padded axes, so it is run there; the others as before. Where buckets overlap or meet,
    the same sizes in the same mode are run once.
    """
    points: List[Point] = []
    seen = set()
    for index, bucket in enumerate(manifest.buckets):
        ends = [
            {axis: extent.lo for axis, extent in bucket.axes.items()},
            {axis: extent.hi for axis, extent in bucket.axes.items()},
        ]
        fixed = {axis: bucket.axes[axis].hi for axis in bucket.padded(manifest.length_axis)}
        candidates: List[Dict[str, int]] = []
        if fixed or manifest.length_axis is None:
            candidates = [dict(sizes, **fixed) for sizes in ends]
        else:
            axis = manifest.length_axis
            for length in _ladder(bucket.axes[axis]):
                candidates += [dict(sizes, **{axis: length}) for sizes in ends]
        for sizes in candidates:
            point = Point(index, manifest.with_room(bucket, sizes))
            if _key(manifest, point) not in seen:
                seen.add(_key(manifest, point))
                points.append(point)
    return points


def _ladder(extent: Extent) -> List[int]:
    lengths = {extent.lo, extent.hint or extent.hi, extent.hi}
    steps = LADDER - 2
    for step in range(1, steps):
        lengths.add(extent.below(round(extent.lo * (extent.hi / extent.lo) ** (step / steps))))
    return sorted(lengths)


def _reporter(say: Callable[[str], None], seconds: float) -> Callable[[int, float], None]:
    last = [0.0]

    def report(rounds: int, elapsed: float) -> None:
        if elapsed - last[0] >= SECONDS_BETWEEN_REPORTS:
            last[0] = elapsed
            say("{} rounds, {:.0f} of {:g} s".format(rounds, elapsed, seconds))

    return report


def _summarise(manifest: Manifest, point: Point, times: List[float]) -> Dict[str, Any]:
    ordered = sorted(round(ms * 1e6) for ms in times)
    quarter, median, three = [percentile(ordered, p) / 1e6 for p in (25, 50, 75)]
    return {
        "bucket": point.bucket,
        "mode": manifest.buckets[point.bucket].mode,
        "sizes": dict(point.sizes),
        "ms": median,
        "spread_ms": three - quarter,
        "samples": len(ordered),
    }


def format_calibration(report: Mapping[str, Any]) -> List[str]:
    """The table for people, a line each."""
    row = "{:>6}  {:<5}  {:<28} {:>8} {:>10} {:>10}"
    lines = [row.format("bucket", "mode", "sizes", "samples", "ms", "spread ms")]
    for item in report["points"]:
        sizes = ", ".join("{} {}".format(axis, size) for axis, size in item["sizes"].items())
        times = ["{:.3f}".format(item[key]) for key in ("ms", "spread_ms")]
        lines.append(row.format(item["bucket"], item["mode"], sizes, item["samples"], *times))
    if report["open_ms"] is not None:
        text = "open {:.1f} ms without programs, {:.1f} ms to load one more"
        lines.append(text.format(report["open_ms"], report["load_ms"]))
    text = "variant {}, {} threads, {}"
    lines.append(text.format(report["variant"], report["threads"], report["host"]["model"]))
    return lines
