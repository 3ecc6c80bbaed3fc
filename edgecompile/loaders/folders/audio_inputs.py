"""The inputs of a folder's audio model: samples of a waveform, or frames of features.

Layouts are those of transformers' classes and of their feature extractors' outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgecompile.errors import ModelError
from edgecompile.loaders.folders.files import optional_object
from edgecompile.loaders.folders.text_inputs import (
    BATCH,
    LENGTH,
    FolderInputs,
    batch_limits,
    limit_length,
)
from edgecompile.models.loaded import LoadOptions
from edgecompile.models.specs import InputSpec

__all__ = ["audio_inputs"]

#: Models that take nothing but one size, by model_type: the dimensions behind the batch.
_FIXED: Mapping[str, Callable[[Any], tuple[int, int]]] = {
    # Thirty seconds; two frames make a position.
    "whisper": lambda config: (config.num_mel_bins, 2 * config.max_source_positions),
    "audio-spectrogram-transformer": lambda config: (config.max_length, config.num_mel_bins),
}
#: Where configurations keep the number of features of a frame.
_BINS = ("feature_projection_input_dim", "num_mel_bins", "input_feat_per_channel")


def audio_inputs(model: Any, folder: Path, options: LoadOptions) -> FolderInputs:
    """``input_values`` [batch, length] in samples, or ``input_features`` [batch, length, bins].

    The mask goes with it, int64 [batch, length], where the model's feature extractor makes one.
    Models of one fixed size (Whisper's encoder, AST) have no length axis but the batch.

    Args:
        model: takes them.
        folder: of its preprocessor_config.json.
        options: what was asked for.

    Raises:
        ModelError: the layout isn't known, or the maximum length is outside the model's limits.
    """
    config = model.config
    name = model.main_input_name
    fixed = _FIXED.get(str(config.model_type))
    if fixed is not None:
        if options.max_length is not None:
            raise ModelError(
                f"{type(model).__name__} takes inputs of one size only",
                hint="leave --max-length out",
            )
        shape = (BATCH, *fixed(config))
        batch = {BATCH: batch_limits(options)}
        note = f"{name} has one size, {shape[1]} by {shape[2]}: the traffic is the batch"
        return FolderInputs((InputSpec(name, "float32", shape),), batch, BATCH, notes=(note,))
    lo, hi = 1, getattr(config, "max_source_positions", None)
    dims: tuple[int | str, ...] = (BATCH, LENGTH)
    if name == "input_values":
        lo, hi = _least_samples(config), None
    else:
        dims = (*dims, _bins(model))
    specs = [InputSpec(name, "float32", dims, 0.0)]
    masked, note = _wants_mask(model, folder)
    if masked:
        specs.append(InputSpec("attention_mask", "int64", (BATCH, LENGTH), 0, (0, 1), (1, 1)))
    axes = {BATCH: batch_limits(options), LENGTH: limit_length(hi, None, lo, options)}
    return FolderInputs(tuple(specs), axes, notes=(note,))


def _least_samples(config: Any) -> int:
    """Samples of which the convolutions make two positions: with one, sizes lose their meaning."""
    kernels, strides = getattr(config, "conv_kernel", None), getattr(config, "conv_stride", None)
    if not kernels or not strides:
        return 1
    least = 2
    for kernel, stride in zip(reversed(kernels), reversed(strides), strict=True):
        least = (least - 1) * stride + kernel
    return int(least)


def _bins(model: Any) -> int:
    for config in (model.config, getattr(model.config, "encoder_config", None)):
        for key in _BINS:
            value = getattr(config, key, None)
            if isinstance(value, int) and value >= 1:
                return value * int(getattr(config, "input_channels", 1) or 1)
    raise ModelError(
        f"{type(model).__name__}: its config.json doesn't say how many features a frame has",
        hint="write a factory (file.py:function) that returns the module with example inputs",
    )


def _wants_mask(model: Any, folder: Path) -> tuple[bool, str]:
    """Whether the model is to be given a mask, as its feature extractor's file says."""
    if "attention_mask" not in inspect.signature(model.forward).parameters:
        return False, f"{type(model).__name__} takes no mask"
    said = optional_object(
        folder / "preprocessor_config.json", "the feature extractor's configuration"
    ).get("return_attention_mask")
    if isinstance(said, bool):
        return said, f"preprocessor_config.json asks for {'a' if said else 'no'} mask"
    # wav2vec 2.0 with group norm was trained on zeros behind the content, without a mask.
    norm = getattr(model.config, "feat_extract_norm", None)
    if norm == "group":
        return False, "no mask: the model normalizes over all samples"
    return True, "a mask tells content from padding"
