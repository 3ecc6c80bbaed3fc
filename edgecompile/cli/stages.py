"""The work folder that the stages share: ``lengths.json``, ``precision.json`` (with ``rounded.npz``
where int8 weights are rounded for inputs), ``plan.json``, ``exported/``, ``artifacts/``; the very files
that ``build --keep-work`` leaves.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from edgecompile.buckets.plan import BucketPlan
    from edgecompile.cli.terminal.console import Console
    from edgecompile.lengths.distribution import LengthDistribution
    from edgecompile.lengths.joint import JointDistribution
    from edgecompile.models.loaded import LoadedModel, LoadOptions

__all__ = [
    "find_exports",
    "load_for_plan",
    "plan_option",
    "read_plan",
    "stage_lengths",
    "work_dir_option",
]

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
    from edgecompile.buckets.plan import BucketPlan
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


def find_exports(plan: BucketPlan, work_dir: Path) -> tuple[Path, ...]:
    """The folder that ``edgecompile export`` left for each bucket; its name is the export's key.

    Where several were left (a factory's model can't be told from the one before), the newest.

    Raises:
        ExportError: a bucket hasn't been exported.
    """
    from edgecompile.errors import ExportError

    known: dict[str, Path] = {}
    marks = sorted(
        (work_dir / "exported").glob("*/done.json"), key=lambda path: path.stat().st_mtime_ns
    )
    for mark in marks:
        with suppress(ValueError):
            known[_canonical(json.loads(mark.read_text(encoding="utf-8")))] = mark.parent
    wanted = [(bucket, known.get(_canonical(bucket.program_json()))) for bucket in plan.buckets]
    missing = [f"{bucket.lo}..{bucket.hi}" for bucket, folder in wanted if folder is None]
    if missing:
        raise ExportError(
            f"in {work_dir} these buckets aren't exported yet: {', '.join(missing)}",
            hint=f"edgecompile export MODEL --work-dir {work_dir}",
        )
    return tuple(folder for _, folder in wanted if folder is not None)


def _canonical(request: object) -> str:
    return json.dumps(request, sort_keys=True)


def stage_lengths(work_dir: Path) -> LengthDistribution | JointDistribution | None:
    """The sizes that the plan was made from, if they were left there."""
    from edgecompile.lengths.files import read_sizes

    path = work_dir / "lengths.json"
    return read_sizes(path) if path.is_file() else None


def load_for_plan(
    console: Console, model: str, load: LoadOptions, batch: tuple[int, int], longest: int | None
) -> LoadedModel:
    """Loads the model that a stage works on, and says what there is to know about it.

    Args:
        console: is told.
        model: a model specification.
        load: how.
        batch: the smallest and the largest.
        longest: the longest length of the plan; None: the model's own.

    Raises:
        EdgecompileError: a subclass for each cause.
    """
    with console.step("load the model"):
        from edgecompile.loaders.load import load_model

        loaded = load_model(model, load, batch=batch).with_longest(longest)
    console.say_notes(loaded.notes)
    return loaded
