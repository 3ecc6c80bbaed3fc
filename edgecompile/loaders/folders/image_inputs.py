"""The inputs of a folder's image model: pixel values of one size, or of dynamic height and width."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgecompile.errors import ModelError
from edgecompile.loaders.folders.files import optional_object
from edgecompile.loaders.folders.text_inputs import BATCH, FolderInputs, batch_limits
from edgecompile.models.loaded import LoadOptions
from edgecompile.models.specs import AxisLimits, InputSpec

__all__ = ["image_inputs"]

HEIGHT, WIDTH = "height", "width"
_USUAL = 224


def image_inputs(model: Any, folder: Path, options: LoadOptions) -> FolderInputs:
    """``pixel_values`` float32 [batch, channels, height, width], normalized as its processor does.

    Height and width are fixed, as preprocessor_config.json or config.json says, unless a range is
    asked for; then each is an axis of its own. What varies with traffic is the batch, or the height.

    Args:
        model: takes them.
        folder: of its preprocessor_config.json.
        options: what was asked for.

    Raises:
        ModelError: a maximum length is asked for, or a dynamic size where the model has one only.
    """
    if options.max_length is not None:
        raise ModelError("images have no length", hint="leave --max-length out; see --image-size")
    config, notes = model.config, []
    own = _pair(getattr(config, "image_size", None))
    said = _processed(folder)
    usual = said or own
    if usual is None:
        usual = (_USUAL, _USUAL)
        notes.append(f"the folder names no size of images: {_USUAL} by {_USUAL}; see --image-size")
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
    axes = {BATCH: batch_limits(options), **sizes}
    return FolderInputs(
        (InputSpec("pixel_values", "float32", shape),),
        axes,
        next(iter(sizes), BATCH),
        constants,
        tuple(notes),
    )


def _processed(folder: Path) -> tuple[int, int] | None:
    """Height and width of what the folder's image processor gives."""
    found = optional_object(
        folder / "preprocessor_config.json", "the image processor's configuration"
    )
    if found.get("do_center_crop"):
        return _pair(found.get("crop_size")) or _pair(found.get("size"))
    return _pair(found.get("size"))


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
