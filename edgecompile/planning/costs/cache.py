"""Costs that this machine measured before, for every later plan and build of the same programs.

They are in the user's cache, a calibration file for each key (docs/runtime.md has the format). What
can't be read, or isn't what was asked for, counts as nothing: it is measured again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgecompile.buckets.limits import BucketCost
from edgecompile.errors import CostError
from edgecompile.files import write_json
from edgecompile.hosts.identity import cpu_identity, usable_cpus
from edgecompile.planning.costs.calibration import Calibration
from edgecompile.planning.costs.calibration_bundle import CalibrationSpec
from edgecompile.planning.costs.calibration_files import parse_calibration, read_document
from edgecompile.planning.subject import Subject
from edgecompile.precision import Precision
from edgecompile.targets.profile import VariantSpec
from edgecompile.toolchain.compilers import cache_directory, find_toolchain

#: Files that are kept, the last used ones: some tens of kilobytes each at most.
MOST_KEPT = 256


def cost_key(
    subject: Subject, spec: CalibrationSpec, variant: VariantSpec, precision: Precision
) -> str | None:
    """Identifies what is measured and on what; None where another process can't tell.

    Args:
        subject: the model, whose exports' keys cover its files and this installation; the target,
            whose other variants count for size and build time; the runtime and the threads; whether noise decides,
            which takes fewer runs.
        spec: the programs and the sizes to run them at.
        variant: the one that runs.
        precision: the precision of the weights.
    """
    exports, profile, request = subject.exports, subject.profile, subject.request
    if not exports.lasting:
        return None
    toolchains = [find_toolchain(arch) for arch in profile.archs]
    parts = {
        "programs": [[bucket.program_json(), exports.key(bucket)] for bucket in spec.buckets],
        "runs": [[index, dict(sizes)] for index, sizes in spec.runs],
        "variant": variant.to_json(),
        "variants": [item.to_json() for item in profile.variants],
        "precision": precision.to_json(),
        "backend": request.backend_for(profile),
        "threads": [request.threads, usable_cpus()],
        "noise_decides": request.noise_decides,
        # For the backend torch; the other asks for none.
        "variables": {
            k: v for k, v in os.environ.items() if k.startswith(("OMP_", "MKL_", "KMP_"))
        },
        "cpu": cpu_identity(),
        "compilers": [[item.cxx, item.version] for item in toolchains],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def find_kept(key: str, spec: CalibrationSpec) -> Calibration | None:
    """The costs measured for ``key``; None where there are none, or not all of the spec."""
    path = _place(key)
    try:
        document = read_document(path)
        if document.get("key") != key:
            return None
        calibration = parse_calibration(document, str(path))
    except CostError:
        return None
    measured = {(point.bucket, point.sizes) for point in calibration.points}
    if measured != {(index, tuple(sorted(sizes.items()))) for index, sizes in spec.runs}:
        return None
    with suppress(OSError):
        os.utime(path)
    return calibration


def keep_costs(key: str, document: Mapping[str, Any], cost: BucketCost) -> None:
    """Keeps a calibration; where the cache can't be written, nothing is kept.

    Args:
        key: the result of :func:`cost_key`.
        document: the document that the runtime wrote.
        cost: the cost of a bucket in a bundle of all variants of the target.
    """
    path = _place(key)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**document, "key": key, "bucket_cost": cost.to_json()})
        _drop_oldest(path.parent)


def _place(key: str) -> Path:
    return cache_directory() / "costs" / f"{key}.json"


def _drop_oldest(folder: Path) -> None:
    """Several processes may do so at once."""
    files = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            files.append((path.stat().st_mtime_ns, path))
    for _, path in sorted(files, reverse=True)[MOST_KEPT:]:
        path.unlink(missing_ok=True)
