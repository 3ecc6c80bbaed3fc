"""Measuring what sizes cost, through the runtime that ships.

A measuring kit is timed by its own ``bench --calibrate`` in a process without torch; a device does
the very same with a kit that was copied to it.
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

from edgecompile.buckets.costs.curves import LEAST_MS, MOST_MS, CostCurve, CostKind, CostPoint
from edgecompile.buckets.costs.surfaces import CostSurface
from edgecompile.bundle.verify import RUNTIME_COMMAND, device_environment, runtime_command
from edgecompile.errors import CostError, VerificationError
from edgecompile.planning.calibration import Calibration
from edgecompile.planning.calibration_files import parse_calibration, read_document

__all__ = ["calibrate", "cost_curve", "cost_surface", "run_calibration"]


def run_calibration(bundle: Path, **options: Any) -> Calibration:
    """What :func:`calibrate` finds, checked; the same arguments.

    Raises:
        VerificationError: as there.
        CostError: it makes no sense.
    """
    return parse_calibration(calibrate(bundle, **options), f"{bundle}: its calibration")


def calibrate(
    bundle: Path,
    *,
    threads: int | None = None,
    variant: str | None = None,
    seconds: float = 15.0,
    python: str = sys.executable,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Runs the bundle's ``bench --calibrate`` on this machine; gives what its file holds.

    Args:
        bundle: a measuring kit, or any bundle.
        threads: of one run; None: all that the process may use.
        variant: None: the best one for this machine.
        seconds: about how long to measure.
        python: the interpreter to run it with.
        tell: gets what the runtime says meanwhile, a line at a time.

    Raises:
        VerificationError: the runtime could not run the bundle, or was killed; names the signal.
    """
    environment = device_environment(bundle)
    with tempfile.TemporaryDirectory(prefix="edgecompile-measure-") as folder:
        written = Path(folder) / "calibration.json"
        command = [python, "-m", runtime_command(bundle), "bench", str(bundle.resolve())]
        command += ["--calibrate", str(written), "--seconds", str(seconds)]
        if runtime_command(bundle) != RUNTIME_COMMAND:
            # Each cold start imports torch, for seconds, and only the time to load programs counts.
            command += ["--cold-runs", "1"]
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


def cost_curve(calibration: Calibration, kind: CostKind) -> CostCurve:
    """Costs over the length axis, at the smallest sizes of the other axes that were measured.

    Raises:
        CostError: the points make no curve.
    """
    return _named(calibration.curve(), kind)


def cost_surface(calibration: Calibration, second: str, kind: CostKind) -> CostSurface:
    """Costs over the length axis and the axis ``second``.

    Where static programs were measured at some sizes of ``second`` only, the others' padded costs
    follow the ratio of the modes, interpolated between the sizes that have it.

    Raises:
        CostError: the points make no grid.
    """
    slices: dict[int, CostCurve] = {}
    for others in calibration.slices:
        sizes = dict(others)
        if second not in sizes:
            raise CostError(
                f"{calibration.source}: nothing was measured along {second}",
                hint="calibrate with a kit that was made from a joint histogram",
            )
        slices[sizes[second]] = _named(calibration.curve(at=sizes), kind)
    known = {size: curve for size, curve in slices.items() if len(curve.modes) == 2}
    if known:
        slices = {
            size: curve if size in known else _fill_padded(size, curve, known)
            for size, curve in slices.items()
        }
    common = set.intersection(*(set(curve.lengths) for curve in slices.values()))
    rows = tuple(
        (size, replace(curve, points=tuple(p for p in curve.points if p.length in common)))
        for size, curve in sorted(slices.items())
    )
    provenance = {k: text for k, text in rows[0][1].provenance.items() if k != "at"}
    return CostSurface((calibration.length_axis, second), rows, kind, provenance)


def _fill_padded(size: int, curve: CostCurve, known: dict[int, CostCurve]) -> CostCurve:
    """``curve`` with padded costs by the ratio of the modes at the known sizes around ``size``."""
    sizes = sorted(known)
    below = max((s for s in sizes if s < size), default=sizes[0])
    above = min((s for s in sizes if s > size), default=sizes[-1])
    share = (size - below) / (above - below) if above > below else 0.0
    points = []
    for point in curve.points:
        ratios = [
            known[s].cost(point.length, "pad") / known[s].cost(point.length, "exact")
            for s in (below, above)
        ]
        ratio = ratios[0] + share * (ratios[1] - ratios[0])
        assert point.exact_ms is not None  # a slice without static programs has dynamic ones
        pad_ms = min(max(point.exact_ms * ratio, LEAST_MS), MOST_MS)
        points.append(CostPoint(point.length, point.exact_ms, pad_ms, point.exact_spread_ms))
    return replace(curve, points=tuple(points))


def _named(curve: CostCurve, kind: CostKind) -> CostCurve:
    """The same curve under another kind: what this machine times is ``measured``."""
    if kind == curve.kind:
        return curve
    how = "the bundle's own runtime on the build host"
    return replace(curve, kind=kind, provenance={**curve.provenance, "how": how})
