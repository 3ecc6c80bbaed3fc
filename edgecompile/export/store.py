"""Exported programs of one model by bucket, made once and kept in the work folder."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from pathlib import Path

from edgecompile.buckets.ranges import Bucket
from edgecompile.errors import CompileError, ExportError, PlanError
from edgecompile.export.conditions import Residue
from edgecompile.export.export import export_model
from edgecompile.export.program import PROGRAM_FILE, ExportedModel
from edgecompile.installation import installation_id
from edgecompile.models.loaded import LoadedModel
from edgecompile.progress import NULL_STEP, StepHandle

#: Written last into an export's folder: without it the export is half-made.
_EXPORT_DONE = "done.json"


def export_bucket(model: LoadedModel, bucket: Bucket) -> ExportedModel:
    """Exports the model for one bucket: its range, or its upper edge alone in ``pad`` mode.

    Raises:
        PlanError: the bucket lacks an axis of the model.
        ExportError: the model can't be exported for it.
    """
    ranges = {name: (extent.lo, extent.hi) for name, extent in bucket.program_axes}
    missing = [name for name in model.axes if name not in ranges]
    if missing:
        raise PlanError(
            f"the plan says nothing about the axis {', '.join(missing)} of {model.name}",
            hint='make the plan with the model, or give every bucket "axes" in the plan\'s file',
        )
    hint = {name: extent.hint for name, extent in bucket.program_axes}
    return export_model(model, ranges, hint=hint, residue=residue_of(bucket))


def residue_of(bucket: Bucket) -> Residue | None:
    """The sizes of the length axis that the bucket's program serves; None: all within its range."""
    axis, extent = bucket.program_axes[0]
    return None if extent.step == 1 else Residue(axis, extent.step, extent.lo % extent.step)


class ExportStore:
    """Exports of one model, each made once: kept in memory and, for other processes, on disk.

    Args:
        model: the exported model.
        folder: the folder that gets one folder for each request.
    """

    def __init__(self, model: LoadedModel, folder: Path) -> None:
        self.model = model
        self.folder = folder
        self._made: dict[str, ExportedModel] = {}
        self._saved: set[str] = set()
        self._refused: dict[str, ExportError] = {}
        #: Whether another process would find the same exports. What a factory's code does can't be
        #: hashed: its exports are this store's alone.
        self.lasting = model.source.lasting
        self._token = "" if self.lasting else uuid.uuid4().hex

    def of(self, model: LoadedModel) -> ExportStore:
        """The exports of the same model within other limits; in the same folder."""
        store = ExportStore(model, self.folder)
        store._made, store._saved, store._token = self._made, self._saved, self._token
        return store

    def key(self, bucket: Bucket) -> str:
        """Identifies the export for ``bucket``: equal keys mean equal programs."""
        model = model_fingerprint(self.model) + self._token
        request = {"program": bucket.program_json(), "model": model}
        return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:16]

    def place(self, bucket: Bucket) -> Path:
        """The folder of the export for ``bucket``, once it was made."""
        return self.folder / self.key(bucket)

    def get(self, bucket: Bucket, *, keep: bool = True) -> ExportedModel:
        """The export for ``bucket``.

        Args:
            bucket: the bucket.
            keep: whether other processes may need it. A file holds all of the model's weights.

        Raises:
            ExportError: the model can't be exported for it, or not be stored.
        """
        key = self.key(bucket)
        if key in self._refused:
            # Climbing the ladder in vain takes long, and several stages ask.
            raise self._refused[key]
        place = self.place(bucket)
        if key not in self._made:
            exported = _load_export(place)
            if exported is None:
                try:
                    exported = export_bucket(self.model, bucket)
                except ExportError as error:
                    self._refused[key] = error
                    raise
            self._made[key] = exported
        exported = self._made[key]
        if keep and key not in self._saved:
            if exported.source != place / PROGRAM_FILE:
                exported.save(place)
            # Also where it was there: of several, the stages take what was asked for last.
            (place / _EXPORT_DONE).write_text(json.dumps(bucket.program_json()) + "\n")
            self._saved.add(key)
        return exported

    def require(self, buckets: Sequence[Bucket], keys: Sequence[str]) -> None:
        """Refuses programs that were exported from something else than the model.

        Raises:
            CompileError: a key isn't the one of its bucket; never of a factory's model.
        """
        stale = [
            str(bucket.axes[0][1])
            for bucket, key in zip(buckets, keys, strict=True)
            if self.lasting and self.key(bucket) != key
        ]
        if stale:
            raise CompileError(
                f"in {self.folder} these programs were exported from other files, with other options "
                f"or another version: {', '.join(stale)}",
                hint="run the stages export and compile again",
            )


def _load_export(place: Path) -> ExportedModel | None:
    """The export that an earlier process left there; None if there is none, or it is damaged."""
    if not (place / _EXPORT_DONE).is_file():
        return None
    try:
        return ExportedModel.load(place)
    except ExportError:
        return None


def export_buckets(
    exports: ExportStore,
    buckets: Sequence[Bucket],
    *,
    keep: bool = True,
    step: StepHandle = NULL_STEP,
) -> tuple[ExportedModel, ...]:
    """Exports every bucket; what was exported before is reused. ``keep``: see :meth:`ExportStore.get`.

    Raises:
        ExportError: a bucket can't be exported.
    """
    result = []
    for index, bucket in enumerate(buckets):
        step.update(index, len(buckets), f"bucket {index}: {bucket.axes[0][1]}")
        result.append(exports.get(bucket, keep=keep))
    return tuple(result)


def model_fingerprint(model: LoadedModel) -> str:
    """Identifies an export across processes: the model, how it is loaded, and by what.

    A folder counts by every file in it, hashed whole, a saved program by its file. Nothing is left
    out because it seems not to matter: which files a loader reads depends on the model. Of a factory
    there are no hashes (see :class:`ExportStore`).
    """
    source = model.source
    text = json.dumps(
        [
            [model.name, source.kind, dict(source.sha256), dict(source.details)],
            dict(model.load),
            # Programs for several texts change how a single one is computed.
            *(["as steps"] if getattr(model.module, "as_steps", False) else []),
            [spec.to_json() for spec in model.inputs],
            [spec.to_json() for spec in model.outputs],
            installation_id(),
        ],
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()
