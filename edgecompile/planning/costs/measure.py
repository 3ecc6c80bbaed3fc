"""Measuring the costs of sizes, through the runtime that ships.

A calibration bundle is timed by its own ``bench --calibrate`` in a process without torch; a device does
the very same with one that was copied to it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgecompile.buckets.costs.grid import LEAST_MS, MOST_MS, CostGrid, CostKind, CostPoint
from edgecompile.bundle.verify import device_environment, runtime_command
from edgecompile.errors import CostError, VerificationError
from edgecompile.planning.costs.calibration import Calibration
from edgecompile.planning.costs.calibration_files import parse_calibration, read_document

#: Standard error of a median, as a share of it, that needs no more rounds: half of the least price of a
#: bucket.
_ERROR = 0.005
#: The same where the runs spread and the price follows them: half of the highest price.
_MOST_ERROR = 0.025


def run_calibration(bundle: Path, **options: Any) -> Calibration:
    """The result of :func:`calibrate`, checked; the same arguments.

    Raises:
        VerificationError: see there.
        CostError: it makes no sense.
    """
    return parse_calibration(calibrate(bundle, **options), f"{bundle}: its calibration")


def calibrate(
    bundle: Path,
    *,
    threads: int | None = None,
    variant: str | None = None,
    seconds: float = 15.0,
    noise_decides: bool = False,
    python: str = sys.executable,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Runs the bundle's ``bench --calibrate`` on this machine; gives what its file holds.

    Args:
        bundle: a calibration bundle, or any other.
        threads: the threads of one run; None: all that the process may use.
        variant: None: the best one for this machine.
        seconds: the longest time for measuring, approximately.
        noise_decides: whether the price of a bucket follows the spread of these runs. They are repeated until they
            tell savings of half that price then.
        python: the interpreter to run it with.
        tell: a function that gets what the runtime says meanwhile, a line at a time.

    Raises:
        VerificationError: the runtime could not run the bundle, or was killed; names the signal.
    """
    # Of a cold start only the time to load a program counts, which is small beside that to build it.
    options = ["--seconds", str(seconds), "--cold-runs", "1", "--error", str(_ERROR)]
    if noise_decides:
        options += ["--most-error", str(_MOST_ERROR)]
    return _bench(bundle, "--calibrate", options, threads, variant, python, tell)


def bench_serving(
    bundle: Path, threads: int | None, variant: str, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Runs the bundle's ``bench --serving`` on this machine; as :func:`calibrate`."""
    options = ["--seconds", "20"]
    return _bench(bundle, "--serving", options, threads, variant, sys.executable, tell)


def _bench(
    bundle: Path,
    kind: str,
    options: Sequence[str],
    threads: int | None,
    variant: str | None,
    python: str,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """The file that ``bench`` writes with this option."""
    environment = device_environment(bundle)
    with tempfile.TemporaryDirectory(prefix="edgecompile-measure-") as folder:
        written = Path(folder) / "measured.json"
        command = [python, "-m", runtime_command(bundle), "bench", str(bundle.resolve())]
        command += [kind, str(written), *options]
        if threads is not None:
            command += ["--threads", str(threads)]
        if variant is not None:
            command += ["--variant", variant]
        code, said = _run(command, environment, folder, tell)
        if code < 0:
            # It had no time to say anything.
            raise VerificationError(
                f"the bundle's runtime was killed by {_signal_name(-code)}",
                hint="SIGKILL usually means too little memory; else this is a defect of edgecompile: "
                "please report it with the model's architecture",
            )
        if code != 0:
            raise VerificationError(
                f"the bundle's runtime failed with exit code {code}:\n{said.strip()}"
            )
        return read_document(written)


def _run(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    tell: Callable[[str], None],
) -> tuple[int, str]:
    """The exit code of a command, and what it wrote to stderr."""
    lines = []
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        cwd=folder,
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                lines.append(line)
                tell(line.strip())
        except BaseException:
            process.kill()
            raise
    return process.returncode, "".join(lines)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a realtime one
        return f"signal {number}"


def measured_costs(
    calibration: Calibration,
    kind: CostKind,
    *,
    second: str | None = None,
    at: Mapping[str, int] | None = None,
) -> CostGrid:
    """Costs over the length axis, or over it and the axis ``second``.

    Where static programs were measured at some sizes of ``second`` only, the others' padded costs
    follow the ratio of the modes, interpolated between the sizes that have it.

    Args:
        calibration: the measurements.
        kind: ``measured`` for times of this machine, ``calibrated`` for times of a device.
        second: the other axis; None: there is none.
        at: sizes of the other axes where there is none; None: the smallest that were measured.

    Raises:
        CostError: the points make no grid, or nothing was measured at these sizes.
    """
    if second is None:
        return _named(calibration.curve(at=at), kind)
    lines: dict[int, CostGrid] = {}
    for others in calibration.slices:
        sizes = dict(others)
        if second not in sizes:
            raise CostError(
                f"{calibration.source}: nothing was measured along {second}",
                hint="calibrate with a bundle that was made from a joint histogram",
            )
        lines[sizes[second]] = _named(calibration.curve(at=sizes), kind)
    complete = {size: line for size, line in lines.items() if len(line.modes) == 2}
    if complete:
        lines = {
            size: line if size in complete else _fill_padded(size, line, complete)
            for size, line in lines.items()
        }
    common = set.intersection(*(set(line.lengths) for line in lines.values()))
    rows = {
        size: replace(line, points=tuple(p for p in line.points if p.length in common))
        for size, line in lines.items()
    }
    first = rows[min(rows)].provenance
    provenance = {name: text for name, text in first.items() if name != "at"}
    return CostGrid.join((calibration.length_axis, second), rows, provenance)


def _fill_padded(size: int, curve: CostGrid, complete: dict[int, CostGrid]) -> CostGrid:
    """``curve`` with padded costs by the ratio of the modes at the complete sizes around it."""
    sizes = sorted(complete)
    below = max((s for s in sizes if s < size), default=sizes[0])
    above = min((s for s in sizes if s > size), default=sizes[-1])
    share = (size - below) / (above - below) if above > below else 0.0
    points = []
    for point in curve.points:
        ratios = [
            complete[s].cost(point.length, "pad") / complete[s].cost(point.length, "exact")
            for s in (below, above)
        ]
        ratio = ratios[0] + share * (ratios[1] - ratios[0])
        assert point.exact_ms is not None  # a slice without static programs has dynamic ones
        pad_ms = min(max(point.exact_ms * ratio, LEAST_MS), MOST_MS)
        points.append(CostPoint(point.length, point.exact_ms, pad_ms, point.exact_spread_ms))
    return replace(curve, points=tuple(points))


def _named(curve: CostGrid, kind: CostKind) -> CostGrid:
    """The same curve under another kind: what this machine times is ``measured``."""
    if kind == curve.kind:
        return curve
    how = "the bundle's own runtime on the build host"
    return replace(curve, kind=kind, provenance={**curve.provenance, "how": how})
