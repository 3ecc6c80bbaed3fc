"""The inputs of a folder's model by modality, with their axes, pad values and bounds."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgecompile.errors import ModelError
from edgecompile.loaders.folders.files import optional_object
from edgecompile.loaders.folders.position_limits import max_positions
from edgecompile.models.loaded import LoadOptions
from edgecompile.models.specs import AxisLimits, InputSpec
from edgecompile.models.tasks import Task

__all__ = ["BATCH", "LENGTH", "FolderInputs", "text_inputs", "with_pads"]

BATCH, LENGTH = "batch", "length"


@dataclass(frozen=True)
class FolderInputs:
    """The inputs.

    Attributes:
        inputs: in the order of the program.
        axes: limits of every axis in their shapes.
        length_axis: the axis that varies with traffic: ``batch`` where nothing else does.
        constants: further arguments of the model that are always the same.
        notes: choices that a person may want to know.
    """

    inputs: tuple[InputSpec, ...]
    axes: Mapping[str, AxisLimits]
    length_axis: str = LENGTH
    constants: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def batch_limits(options: LoadOptions) -> AxisLimits:
    """Of the first dimension: 1 unless more is asked for."""
    lo, hi = options.batch or (1, 1)
    return AxisLimits(lo, hi)


def text_inputs(
    model: Any,
    folder: Path,
    config: Mapping[str, Any],
    options: LoadOptions,
    task: Task,
    *,
    pooled: bool,
) -> FolderInputs:
    """``input_ids``, ``attention_mask`` and, if wanted, ``token_type_ids``, int64 [batch, length].

    Args:
        model: takes them.
        folder: of its tokenizer and of limits that aren't the model's own.
        config: its config.json.
        options: what was asked for.
        task: what it is for; pairs of texts are usual for question-answering.
        pooled: whether a pooling follows, which needs the mask.

    Raises:
        ModelError: token types are asked for and there are none, or the maximum length is over
            the model's.
    """
    accepted = inspect.signature(model.forward).parameters
    shape = (BATCH, LENGTH)
    embedding = model.get_input_embeddings()
    vocabulary = int(embedding.weight.shape[0])
    pad = _pad_token(folder, config, vocabulary)
    specs = [InputSpec("input_ids", "int64", shape, pad, (0, vocabulary - 1))]
    if "attention_mask" in accepted or pooled:
        specs.append(InputSpec("attention_mask", "int64", shape, 0, (0, 1), (1, 1)))
    types = int(config.get("type_vocab_size") or 0) if "token_type_ids" in accepted else 0
    wanted = options.token_type_ids
    if wanted and types < 1:
        raise ModelError(f"'{folder}': {type(model).__name__} takes no token_type_ids")
    if wanted or (wanted is None and task.name == "question-answering" and types > 1):
        specs.append(InputSpec("token_type_ids", "int64", shape, 0, (0, types - 1)))
    axes = {BATCH: batch_limits(options), LENGTH: _length_limits(model, folder, options)}
    return FolderInputs(tuple(specs), axes)


def with_pads(inputs: tuple[InputSpec, ...], options: LoadOptions) -> tuple[InputSpec, ...]:
    """The inputs with the pad values that were asked for.

    Raises:
        ModelError: there is no such input.
    """
    unknown = sorted(set(options.pad) - {spec.name for spec in inputs})
    if unknown:
        raise ModelError(f"pad values for inputs that don't exist: {', '.join(unknown)}")
    return tuple(replace(s, pad=options.pad.get(s.name, s.pad)) for s in inputs)


def limit_length(hard: int | None, usual: object, lo: int, options: LoadOptions) -> AxisLimits:
    """The limits of the length axis.

    Args:
        hard: the most that the model can do; None: no limit.
        usual: the most that whoever made the folder wants it to do; no number: nothing is said.
        lo: the least that the model can do.
        options: what was asked for.

    Raises:
        ModelError: what was asked for is outside of what the model can do.
    """
    wanted = options.max_length
    if wanted is not None and hard is not None and wanted > hard:
        raise ModelError(
            f"the maximum length {wanted} is over the model's {hard} positions",
            hint=f"give a maximum length of {hard} or less",
        )
    if wanted is not None and wanted < lo:
        raise ModelError(
            f"the maximum length {wanted} is under {lo}, the least that the model takes"
        )
    chosen = wanted or (usual if isinstance(usual, int) and usual >= lo else None) or hard
    return AxisLimits(lo, min(chosen, hard) if chosen and hard else chosen)


def _pad_token(folder: Path, config: Mapping[str, Any], vocabulary: int) -> int:
    tokenizer = optional_object(folder / "tokenizer.json", "the tokenizer").get("padding") or {}
    found = [config.get("pad_token_id"), tokenizer.get("pad_id"), config.get("eos_token_id")]
    for value in found:
        if isinstance(value, int) and 0 <= value < vocabulary:
            return value
    return 0


def _length_limits(model: Any, folder: Path, options: LoadOptions) -> AxisLimits:
    usual = optional_object(
        folder / "sentence_bert_config.json", "the sentence encoder's configuration"
    ).get("max_seq_length")
    return limit_length(max_positions(model), usual, 1, options)
