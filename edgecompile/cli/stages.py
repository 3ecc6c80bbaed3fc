"""The work folder that the stages share: ``lengths.json``, ``plan.json``, ``exported/``,
``artifacts/``; the very files that ``build --keep-work`` leaves.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from edgecompile.buckets import BucketPlan
    from edgecompile.export import ExportedModel
    from edgecompile.lengths import LengthDistribution

__all__ = ["load_exported", "plan_option", "read_plan", "stage_lengths", "work_dir_option"]

_Decorator = Callable[[Any], Any]

work_dir_option: _Decorator = click.option(
    "--work-dir",
    "-w",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="The folder in which the stages leave their files.",
)

plan_option: _Decorator = click.option(
    "--plan",
    "plan_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The plan. Default: DIR/plan.json.",
)


def read_plan(plan_file: Path | None, work_dir: Path) -> BucketPlan:
    """The plan of ``edgecompile plan``.

    Raises:
        PlanError: there is none, or the file holds something else.
    """
    from edgecompile.buckets import BucketPlan
    from edgecompile.errors import PlanError

    path = plan_file or work_dir / "plan.json"
    cure = f"write one: edgecompile plan … --work-dir {work_dir}"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PlanError(f"there is no plan {path}", hint=cure) from None
    except OSError as error:
        raise PlanError(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise PlanError(f"{path} isn't JSON: {error}", hint=cure) from error
    try:
        return BucketPlan.from_json(value)
    except PlanError as error:
        raise PlanError(f"{path}: {error.message}", hint=error.hint) from error


def load_exported(plan: BucketPlan, work_dir: Path) -> tuple[ExportedModel, ...]:
    """What ``edgecompile export`` left for each bucket.

    Raises:
        ExportError: a bucket's export is missing or can't be read.
    """
    from edgecompile.errors import ExportError
    from edgecompile.export import ExportedModel

    folders = [work_dir / "exported" / f"bucket-{index}" for index in range(len(plan.buckets))]
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        raise ExportError(
            "not exported yet: " + ", ".join(missing),
            hint=f"edgecompile export MODEL --work-dir {work_dir}",
        )
    return tuple(ExportedModel.load(folder) for folder in folders)


def stage_lengths(work_dir: Path) -> LengthDistribution | None:
    """The lengths that the plan was made from, if they were left there."""
    from edgecompile.lengths import read_lengths

    path = work_dir / "lengths.json"
    return read_lengths(path) if path.is_file() else None
