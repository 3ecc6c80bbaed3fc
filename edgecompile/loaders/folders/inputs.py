"""The inputs of a folder's model by modality, with their axes, pad values and bounds.

Texts are tokens; audio is samples of a waveform, or frames of features; images are pixel values of one size,
or of dynamic height and width. Layouts are those of transformers' classes and of their processors' outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgecompile.errors import ModelError
from edgecompile.loaders.folders.files import optional_object
from edgecompile.loaders.folders.position_limits import max_positions
from edgecompile.models.options import LoadOptions
from edgecompile.models.specs import AxisLimits, InputSpec
from edgecompile.models.tasks import Task, reads

BATCH, LENGTH = "batch", "length"
HEIGHT, WIDTH = "height", "width"
_PROCESSOR = "preprocessor_config.json"
_USUAL_EDGE = 224

#: Models that take nothing but one size, by model_type: the dimensions behind the batch.
_FIXED: Mapping[str, Callable[[Any], tuple[int, int]]] = {
    # Thirty seconds; two frames make a position.
    "whisper": lambda config: (config.num_mel_bins, 2 * config.max_source_positions),
    "audio-spectrogram-transformer": lambda config: (config.max_length, config.num_mel_bins),
}
#: Convolutions over samples, their kernels and strides, of models whose configuration doesn't have them.
_CONVOLUTIONS = {"moonshine": ((127, 7, 3), (64, 3, 2))}
#: Where configurations keep the number of features of a frame.
_BINS = ("feature_projection_input_dim", "num_mel_bins", "input_feat_per_channel")


@dataclass(frozen=True)
class FolderInputs:
    """The inputs.

    Attributes:
        inputs: the inputs in the order of the program.
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


def find_inputs(
    model: Any,
    folder: Path,
    config: Mapping[str, Any],
    options: LoadOptions,
    task: Task,
    *,
    pooled: bool,
) -> FolderInputs:
    """The inputs of a model: ``task`` is what it is for, ``pooled`` whether a pooling follows.

    Raises:
        ModelError: options don't go with the modality, or :func:`text_inputs`, :func:`audio_inputs`
            or :func:`image_inputs` says why.
    """
    kind = reads(model.main_input_name)
    if kind is None:
        raise ModelError(
            f"'{folder}': {type(model).__name__} takes {model.main_input_name}",
            hint="folders of models of text, audio and images are supported; for others write a "
            "factory (file.py:function) that returns the module with example inputs and its axes",
        )
    if kind != "text" and options.token_type_ids:
        raise ModelError(f"'{folder}': {type(model).__name__} takes no token_type_ids")
    if kind != "image" and options.image_size is not None:
        raise ModelError(f"`image_size` is for images, but this model reads {kind}")
    if kind == "audio":
        return audio_inputs(model, folder, options)
    if kind == "image":
        return image_inputs(model, folder, options)
    return text_inputs(model, folder, config, options, task, pooled=pooled)


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
        model: the model that takes them.
        folder: the folder of its tokenizer and of limits that aren't the model's own.
        config: its config.json.
        options: the options that were given.
        task: its task; pairs of texts are usual for question-answering.
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
    token_types = options.token_type_ids
    if token_types and types < 1:
        raise ModelError(f"'{folder}': {type(model).__name__} takes no token_type_ids")
    if token_types or (token_types is None and task.name == "question-answering" and types > 1):
        specs.append(InputSpec("token_type_ids", "int64", shape, 0, (0, types - 1)))
    usual = optional_object(
        folder / "sentence_bert_config.json", "the sentence encoder's configuration"
    ).get("max_seq_length")
    axes = {
        BATCH: _batch_limits(options),
        LENGTH: limit_length(max_positions(model), usual, 1, options),
    }
    return FolderInputs(tuple(specs), axes)


def audio_inputs(model: Any, folder: Path, options: LoadOptions) -> FolderInputs:
    """``input_values`` [batch, length] in samples, or ``input_features`` [batch, length, bins].

    The mask goes with it, int64 [batch, length], where the model's feature extractor makes one.
    Models of one fixed size (Whisper's encoder, AST) have no length axis but the batch.

    Args:
        model: the model that takes them.
        folder: the folder of its preprocessor_config.json.
        options: the options that were given.

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
                hint="leave `max_length` out",
            )
        shape = (BATCH, *fixed(config))
        batch = {BATCH: _batch_limits(options)}
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
    axes = {BATCH: _batch_limits(options), LENGTH: limit_length(hi, None, lo, options)}
    return FolderInputs(tuple(specs), axes, notes=(note,))


def _least_samples(config: Any) -> int:
    """Samples of which the convolutions make two positions: with one, sizes lose their meaning."""
    kernels, strides = _CONVOLUTIONS.get(
        config.model_type,
        (getattr(config, "conv_kernel", None), getattr(config, "conv_stride", None)),
    )
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
    config = optional_object(folder / _PROCESSOR, "the feature extractor's configuration")
    said = config.get("return_attention_mask")
    if isinstance(said, bool):
        return said, f"{_PROCESSOR} asks for {'a' if said else 'no'} mask"
    # wav2vec 2.0 with group norm was trained on zeros behind the content, without a mask.
    norm = getattr(model.config, "feat_extract_norm", None)
    if norm == "group":
        return False, "no mask: the model normalizes over all samples"
    return True, "a mask tells content from padding"


def image_inputs(model: Any, folder: Path, options: LoadOptions) -> FolderInputs:
    """``pixel_values`` float32 [batch, channels, height, width], normalized as its processor does.

    Height and width are fixed, as preprocessor_config.json or config.json says, unless a range is
    asked for; then each is an axis of its own. What varies with traffic is the batch, or the height.

    Args:
        model: the model that takes them.
        folder: the folder of its preprocessor_config.json.
        options: the options that were given.

    Raises:
        ModelError: a maximum length is asked for, or a dynamic size where the model has one only.
    """
    if options.max_length is not None:
        raise ModelError("images have no length", hint="leave `max_length` out; see `image_size`")
    config, notes = model.config, []
    own = _pair(getattr(config, "image_size", None))
    said = _processed(folder)
    usual = said or own
    if usual is None:
        usual = (_USUAL_EDGE, _USUAL_EDGE)
        notes.append(
            f"the folder names no size of images: {_USUAL_EDGE} by {_USUAL_EDGE} is taken, as none is asked for"
        )
    spans = options.image_size or ((usual[0], usual[0]), (usual[1], usual[1]))
    sizes: dict[str, AxisLimits] = {}
    dims: list[int | str] = []
    for name, (lo, hi) in zip((HEIGHT, WIDTH), spans, strict=True):
        if lo == hi:
            dims.append(lo)
        else:
            dims.append(name)
            sizes[name] = AxisLimits(lo, hi)
    constants: dict[str, Any] = {}
    changed = bool(sizes) or (own is not None and tuple(dims) != own)
    if changed and "interpolate_pos_encoding" in inspect.signature(model.forward).parameters:
        constants["interpolate_pos_encoding"] = True
        notes.append("positions are interpolated from those of " + _text(own))
    channels = getattr(config, "num_channels", None)
    shape = (BATCH, channels if isinstance(channels, int) else 3, *dims)
    axes = {BATCH: _batch_limits(options), **sizes}
    return FolderInputs(
        (InputSpec("pixel_values", "float32", shape),),
        axes,
        next(iter(sizes), BATCH),
        constants,
        tuple(notes),
    )


def _processed(folder: Path) -> tuple[int, int] | None:
    """Height and width of the output of the folder's image processor."""
    config = optional_object(folder / _PROCESSOR, "the image processor's configuration")
    if config.get("do_center_crop"):
        return _pair(config.get("crop_size")) or _pair(config.get("size"))
    return _pair(config.get("size"))


def _pair(value: Any) -> tuple[int, int] | None:
    """Height and width in any form in which configurations write them."""
    if isinstance(value, Mapping):
        edge = value.get("shortest_edge")
        value = [value.get("height", edge), value.get("width", edge)]
    if isinstance(value, int):
        value = [value, value]
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    height, width = value
    if not (isinstance(height, int) and isinstance(width, int)) or min(height, width) < 1:
        return None
    return height, width


def _text(size: tuple[int, int] | None) -> str:
    return "its training" if size is None else f"{size[0]} by {size[1]}"


def limit_length(hard: int | None, usual: object, lo: int, options: LoadOptions) -> AxisLimits:
    """The limits of the length axis.

    Args:
        hard: the most that the model can do; None: no limit.
        usual: the most that whoever made the folder wants it to do; no number: nothing is said.
        lo: the least that the model can do.
        options: the options that were given.

    Raises:
        ModelError: the request is outside of the model's abilities.
    """
    max_length = options.max_length
    if max_length is not None and hard is not None and max_length > hard:
        raise ModelError(
            f"the maximum length {max_length} is over the model's {hard} positions",
            hint=f"give a maximum length of {hard} or less",
        )
    if max_length is not None and max_length < lo:
        raise ModelError(
            f"the maximum length {max_length} is under {lo}, the least that the model takes"
        )
    chosen = max_length or (usual if isinstance(usual, int) and usual >= lo else None) or hard
    return AxisLimits(lo, min(chosen, hard) if chosen and hard else chosen)


def _pad_token(folder: Path, config: Mapping[str, Any], vocabulary: int) -> int:
    tokenizer = optional_object(folder / "tokenizer.json", "the tokenizer").get("padding") or {}
    tokens = [config.get("pad_token_id"), tokenizer.get("pad_id"), config.get("eos_token_id")]
    for value in tokens:
        if isinstance(value, int) and 0 <= value < vocabulary:
            return value
    return 0


def _batch_limits(options: LoadOptions) -> AxisLimits:
    """The limits of the first dimension: 1 unless more is asked for."""
    return AxisLimits(*(options.batch or (1, 1)))
