"""int8 weights rounded for a model, and the inputs that they are rounded for."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from edgecompile.errors import CompileError
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.samples import (
    DEFAULT_SAMPLES,
    Samples,
    add_drawn,
    draw_samples,
    text_samples,
)
from edgecompile.planning.request import AUTO_PRECISION, CHECKPOINT_PRECISION
from edgecompile.planning.subject import Subject
from edgecompile.precision import Precision
from edgecompile.progress import NULL_STEP, StepHandle
from edgecompile.quantization.gptq import RoundedWeights
from edgecompile.quantization.judged import is_judged
from edgecompile.quantization.program import QuantizedProgram
from edgecompile.quantization.quality import MAX_PERPLEXITY_RATIOS

#: Away from the seeds of what a bundle is judged by.
_SEED = 7919
_DRAWN = 8


def can_round(model: LoadedModel) -> bool:
    """Whether inputs of a program can be had that tell how to round a model's weights.

    Not without an axis of lengths. Those of a language model are texts
    (:mod:`edgecompile.quantization.judged`), as its program has logits of the last token alone.
    """
    return model.length_axis is not None and model.generation is None


def resolving_title(asked: str, model: LoadedModel) -> str | None:
    """The name of the step that resolves a precision; None if that takes no work."""
    if asked == AUTO_PRECISION:
        return "choose the precision"
    if asked == CHECKPOINT_PRECISION:
        return "read and judge the checkpoint's weights"
    if is_judged(model) and asked in MAX_PERPLEXITY_RATIOS:
        return "round and judge the weights"
    return "round the weights" if asked == "int8" and can_round(model) else None


def rounding_notes(precision: Precision) -> tuple[str, ...]:
    """Notes for people on a precision's rounding."""
    rounded = precision.rounded
    return (
        () if rounded is None else (f"{precision.name} weights are rounded for {rounded.inputs}",)
    )


def round_for(
    subject: Subject, *, judges: Samples | None = None, step: StepHandle = NULL_STEP
) -> RoundedWeights | None:
    """int8 weights of a model's products, rounded with inputs in mind that it may get.

    These are texts, where there are some, and drawn inputs of all lengths, both of the same
    weight: never those that the bundle is judged by.

    Args:
        subject: the model and its traffic; weights that were rounded for the same program and inputs
            are read from its work folder.
        judges: the texts that the bundle is judged by.
        step: told what is being done.

    Returns:
        None where weights are rounded to the nearest: where there are no inputs (:func:`can_round`);
        where the program has one length alone, since what inputs are padded with would count like
        them; where there are no products.

    Raises:
        ExportError, PlanError: see :attr:`Subject.serving`.
        LengthsError, ModelError, MissingDependencyError: see :func:`text_samples`.
    """
    model, exports = subject.model, subject.exports
    if not can_round(model):
        return None
    bucket = subject.serving.bucket
    exported = exports.get(bucket)
    if exported.static:
        return None
    samples, shares = _samples(subject, judges)
    path = subject.work / f"gptq-{_key(exports.key(bucket), samples)}.npz"
    if path.is_file():
        with contextlib.suppress(CompileError):  # a damaged one is made again
            return replace(RoundedWeights.load(path), inputs=samples.source)
    program = QuantizedProgram(model, exported, samples.inputs, [{}] * len(samples.inputs))
    count = len(program.groups)
    step.update(text=f"running {samples.source}")
    rounded = program.round_weights(
        shares,
        lambda done: step.update(done, count, f"rounding weights, {done} of {count} products"),
    )
    if not rounded.packed:
        return None
    rounded.keep(path)
    return replace(rounded, inputs=samples.source)


def _samples(subject: Subject, judges: Samples | None) -> tuple[Samples, list[float]]:
    """The inputs, and the weight of a row of each."""
    model, request = subject.model, subject.request
    own, seed = subject.serving.bucket.axes[0][1], request.seed + _SEED
    usual = text_samples(model, request.texts, own.hi, 2 * DEFAULT_SAMPLES)
    if usual is not None:
        usual = usual.within(own.sizes)
    if usual is not None and judges is not None:
        usual = _without(usual, judges)
    if usual is None or not usual.inputs:
        usual = draw_samples(
            model, request.traffic, own.hi, shortest=own.lo, step=own.step, seed=seed
        )
    unusual = add_drawn(
        Samples((), (), ""),
        model,
        own.hi,
        shortest=own.lo,
        step=own.step,
        count=_DRAWN,
        seed=seed + len(usual.inputs),
    )
    both = Samples(
        usual.inputs + unusual.inputs,
        usual.lengths + unusual.lengths,
        f"{usual.source} and {_DRAWN} drawn inputs of all lengths",
        usual.real,
    )
    shares = [1 / sum(part.lengths) for part in (usual, unusual) for _ in part.lengths]
    return both, shares


def _without(samples: Samples, others: Samples) -> Samples:
    """The samples that aren't among the others."""
    contents = {_bytes(inputs) for inputs in others.inputs}
    indices = [i for i, inputs in enumerate(samples.inputs) if _bytes(inputs) not in contents]
    return Samples(
        tuple(samples.inputs[i] for i in indices),
        tuple(samples.lengths[i] for i in indices),
        samples.source
        if len(indices) == len(samples.inputs)
        else f"{len(indices)} of {samples.source}",
        samples.real,
    )


def _bytes(inputs: Mapping[str, npt.NDArray[np.generic]]) -> bytes:
    parts = [
        f"{name} {array.dtype} {array.shape}\n".encode() + np.ascontiguousarray(array).tobytes()
        for name, array in sorted(inputs.items())
    ]
    return b"".join(parts)


def _key(export_key: str, samples: Samples) -> str:
    """Identifies everything that shapes what weights are rounded to."""
    parts = hashlib.sha256(export_key.encode())  # of edgecompile's own sources, among others
    for inputs in samples.inputs:
        parts.update(_bytes(inputs))
    return parts.hexdigest()[:16]
