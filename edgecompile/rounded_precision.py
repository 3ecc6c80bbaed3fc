"""int8 weights rounded for a model: the inputs that they are rounded for, and where they are kept."""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgecompile import narrowing, weight_rounding
from edgecompile.backends import lowering, ops
from edgecompile.compilation import ExportStore
from edgecompile.errors import CompileError
from edgecompile.forms import find_form
from edgecompile.models import LoadedModel
from edgecompile.narrowing import NarrowedProgram
from edgecompile.plan_request import PlanRequest, plan_scope
from edgecompile.precision import FP32, Precision
from edgecompile.progress import StepHandle
from edgecompile.samples import (
    DEFAULT_SAMPLES,
    Samples,
    SampleTexts,
    add_drawn,
    draw_samples,
    text_samples,
)
from edgecompile.stages import write_json
from edgecompile.weight_rounding import RoundedWeights

__all__ = ["load_precision", "round_for", "save_precision"]

_PRECISION_FILE = "precision.json"
_ROUNDED_FILE = "rounded.npz"

#: Away from the seeds of what a bundle is judged by.
_SEED = 7919


def round_for(
    exports: ExportStore,
    request: PlanRequest,
    texts: SampleTexts | None,
    work: Path,
    *,
    seed: int = 0,
    step: StepHandle | None = None,
) -> RoundedWeights | None:
    """int8 weights of a model's products, rounded with inputs in mind that it may get.

    These are texts, where there are some, and drawn inputs of all lengths: not those that the
    bundle is judged by, which would be praising oneself.

    Args:
        exports: of the model.
        request: the traffic and the longest length.
        texts: real ones.
        work: what was rounded for the same program and inputs before is found there again.
        seed: of drawn inputs.
        step: told what is being done.

    Returns:
        None where weights are rounded to the nearest: of a language model, whose caches can't be
        drawn; of one without an axis of lengths; of one without products.

    Raises:
        ExportError: the model can't be exported.
        LengthsError, ModelError, MissingDependencyError: as :func:`text_samples`.
    """
    model = exports.model
    if model.length_axis is None or model.generation is not None:
        return None
    form = find_form(exports, request, plan_scope(model, request))
    served = form.scope.axes[0][1]
    samples = _samples(model, request, texts, served.lo, served.hi, seed + _SEED)
    exported = exports.get(form.bucket)
    kept = work / f"rounding-{_key(exports.key(form.bucket), samples)}.npz"
    if kept.is_file():
        return replace(RoundedWeights.load(kept), source=samples.source)
    program = NarrowedProgram(model, exported, samples.inputs, [{}] * len(samples.inputs))
    count = len(program.groups)
    if not count:
        return None

    def tell(done: int) -> None:
        if step is not None:
            step.update(text=f"rounding weights, {done} of {count} products")

    tell(0)
    rounded = program.round_weights(tell)
    rounded.save(kept)
    return replace(rounded, source=samples.source)


def _key(export_key: str, samples: Samples) -> str:
    """Identifies everything that shapes what weights are rounded to."""
    parts = hashlib.sha256(export_key.encode())
    for module in (ops, lowering, narrowing, weight_rounding):
        parts.update(Path(inspect.getfile(module)).read_bytes())
    for inputs in samples.inputs:
        for name, array in sorted(inputs.items()):
            parts.update(f"{name} {array.dtype} {array.shape}\n".encode())
            parts.update(np.ascontiguousarray(array).tobytes())
    return parts.hexdigest()[:16]


def _samples(
    model: LoadedModel,
    request: PlanRequest,
    texts: SampleTexts | None,
    shortest: int,
    longest: int,
    seed: int,
) -> Samples:
    # Twice as many texts as the bundle is judged by fall between those.
    found = None if texts is None else text_samples(model, texts, longest, 2 * DEFAULT_SAMPLES)
    if found is None:
        found = draw_samples(model, request.lengths, longest, shortest=shortest, seed=seed)
    return add_drawn(found, model, longest, shortest=shortest, seed=seed + len(found.inputs))


def save_precision(folder: Path, precision: Precision) -> None:
    """Leaves a precision in a work folder, for the stages that follow; raises OSError."""
    if precision.rounded is not None:
        precision.rounded.save(folder / _ROUNDED_FILE)
    write_json(folder / _PRECISION_FILE, precision.to_json())


def load_precision(folder: Path) -> Precision:
    """What :func:`save_precision` left; fp32 where there is nothing.

    Raises:
        CompileError: the files hold something else.
    """
    path = folder / _PRECISION_FILE
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return FP32
    except (OSError, ValueError) as error:
        raise CompileError(f"{path} can't be read: {error}", hint="plan again") from error
    if not isinstance(value, dict):
        raise CompileError(f"{path} doesn't hold a precision", hint="plan again")
    digest = value.get("rounded")
    if digest is None:
        return Precision.from_json(value)
    return Precision.from_json(value, RoundedWeights.load(folder / _ROUNDED_FILE, str(digest)))
