"""Files of the work folder by which stages that are run alone hand on their results.

``lengths.json``, ``precision.json`` (with ``rounded.npz`` where weights are rounded for inputs),
``plan.json``, ``exported/``, ``artifacts/``: the very files that ``build --keep-work`` leaves.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from edgecompile.buckets.plan import BucketPlan
from edgecompile.errors import CompileError, ExportError, PlanError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.files import read_sizes
from edgecompile.lengths.joint import JointDistribution
from edgecompile.precision import Precision
from edgecompile.quantization.files import load_precision, save_precision


def read_plan(path: Path) -> BucketPlan:
    """The plan that ``edgecompile plan`` wrote.

    Raises:
        PlanError: there is none, or the file holds something else.
    """
    cure = "edgecompile plan --output FILE writes one"
    try:
        return BucketPlan.from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise PlanError(f"there is no plan {path}", hint=cure) from None
    except OSError as error:
        raise PlanError(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise PlanError(f"{path} isn't JSON: {error}", hint=cure) from error
    except PlanError as error:
        raise PlanError(f"{path}: {error.message}", hint=error.hint) from error


def find_exports(plan: BucketPlan, work: Path) -> tuple[Path, ...]:
    """The folder that ``edgecompile export`` left for each bucket; its name is the export's key.

    Where several were left (a factory's model can't be told from the one before), the newest.

    Raises:
        ExportError: a bucket hasn't been exported.
    """
    exports: dict[str, Path] = {}
    marks = sorted(
        (work / "exported").glob("*/done.json"), key=lambda path: path.stat().st_mtime_ns
    )
    for mark in marks:
        with suppress(ValueError):
            exports[_canonical(json.loads(mark.read_text(encoding="utf-8")))] = mark.parent
    folders = [exports.get(_canonical(bucket.program_json())) for bucket in plan.buckets]
    missing = [
        str(bucket.axes[0][1])
        for bucket, folder in zip(plan.buckets, folders, strict=True)
        if folder is None
    ]
    if missing:
        raise ExportError(
            f"in {work} these buckets aren't exported yet: {', '.join(missing)}",
            hint=f"edgecompile export MODEL --work-dir {work}",
        )
    return tuple(folder for folder in folders if folder is not None)


def _canonical(request: object) -> str:
    return json.dumps(request, sort_keys=True)


def left_sizes(work: Path) -> LengthDistribution | JointDistribution | None:
    """The traffic that the plan was made from, if it was left there."""
    path = work / "lengths.json"
    return read_sizes(path) if path.is_file() else None


def settle_precision(named: str | None, work: Path) -> Precision:
    """The precision that was asked for, left for the stages that follow; or what was left before.

    Raises:
        CompileError: the files hold something else.
    """
    if named is None:
        return load_precision(work)
    with suppress(CompileError):
        left = load_precision(work)
        if left.label == named:
            return left  # with its weights' rounding
    precision = Precision(named)
    save_precision(work, precision)
    return precision
