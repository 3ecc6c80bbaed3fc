"""Calibrating on a machine of a Ray cluster that says which target it is.

All of a calibration bundle runs on one machine: figures of several would compare CPUs, not programs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompile.errors import EdgecompileError
from edgecompile.hosts.cluster import Cluster, fetch
from edgecompile.planning.costs.measure import calibrate


@dataclass(frozen=True)
class _SentBundle:
    """A calibration bundle as it travels: its files by name, their contents fetched by who needs them."""

    files: Mapping[str, Any]
    threads: int | None
    seconds: float
    noise_decides: bool


def target_resource(target: str) -> str:
    """The resource that a machine must declare: ``ray start --num-cpus 0 --resources '{"target:NAME": 1}'``.

    Without CPUs nothing is compiled there, and with one of these one calibration runs at a time.
    """
    return f"target:{target}"


def calibrate_there(
    cluster: Cluster,
    bundle: Path,
    target: str,
    threads: int | None,
    seconds: float,
    noise_decides: bool,
) -> dict[str, Any]:
    """As :func:`edgecompile.planning.costs.measure.calibrate`, on a machine that is the target.

    Raises:
        VerificationError: see there.
        ClusterError: the machine was lost.
    """
    paths = [path for path in sorted(bundle.rglob("*")) if path.is_file()]
    files = {str(path.relative_to(bundle)): cluster.share(path.read_bytes()) for path in paths}
    asked = [_SentBundle(files, threads, seconds, noise_decides)]
    (document,) = cluster.map(_calibrate, asked, resource=target_resource(target))
    if isinstance(document, EdgecompileError):
        raise document
    return document


def _calibrate(sent: _SentBundle) -> dict[str, Any] | EdgecompileError:
    """On the machine; what is wrong comes back as a value."""
    with tempfile.TemporaryDirectory(prefix="edgecompile-") as folder:
        bundle = Path(folder) / "calibration.ecb"
        for name, content in sent.files.items():
            path = bundle / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(fetch(content))
        try:
            return calibrate(
                bundle,
                threads=sent.threads,
                seconds=sent.seconds,
                noise_decides=sent.noise_decides,
            )
        except EdgecompileError as error:
            return error
