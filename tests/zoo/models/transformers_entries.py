"""Factories for transformers' families: a tiny configuration, random weights, one output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from edgecompile.loaders.factory_specs import ModelSpec
from tests.zoo import families
from tests.zoo.entry import LONGEST, Entry, seeded
from tests.zoo.models.tiny import tiny_config

__all__ = ["TRANSFORMERS_ENTRIES"]


class First(nn.Module):
    """The first thing that a model returns, from inputs in the order of their names.

    Args:
        model: of transformers.
        constants: further arguments, always the same.
        pick: the output's index.
    """

    def __init__(self, model: nn.Module, pick: int = 0, **constants: Any) -> None:
        super().__init__()
        self.model, self.pick, self.constants = model, pick, constants

    def call(self, **inputs: Tensor) -> Tensor:
        """The output for inputs by name."""
        output = self.model(**inputs, **self.constants)
        return output if isinstance(output, Tensor) else output[self.pick]


class Text(First):
    """Of tokens with a mask."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.call(input_ids=input_ids, attention_mask=attention_mask)


class Tokens(First):
    """Of tokens alone, for families that know no padding."""

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.call(input_ids=input_ids)


class Pixels(First):
    """Of images."""

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.call(pixel_values=pixel_values)


class NoisyPixels(First):
    """Of images, and of numbers that say which patches are left out."""

    def forward(self, pixel_values: Tensor, noise: Tensor) -> Tensor:
        return self.call(pixel_values=pixel_values, noise=noise)


class Samples(First):
    """Of a waveform."""

    def forward(self, input_values: Tensor) -> Tensor:
        return self.call(input_values=input_values)


class Features(First):
    """Of frames of a spectrogram."""

    def forward(self, input_features: Tensor) -> Tensor:
        return self.call(input_features=input_features)


class Past(First):
    """Of values of a time series."""

    def forward(self, past_values: Tensor) -> Tensor:
        return self.call(past_values=past_values)


def _auto(name: str, model_type: str, settings: Mapping[str, Any]) -> nn.Module:
    import transformers

    made: nn.Module = getattr(transformers, name).from_config(tiny_config(model_type, settings))
    return made


def _tokens(build: Callable[[], nn.Module], mask: bool = True) -> ModelSpec:
    ids = torch.randint(5, 90, (1, 12), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids, **({"attention_mask": torch.ones_like(ids)} if mask else {})}
    return ModelSpec(
        module=seeded(build, outliers=inputs),
        inputs=inputs,
        axes={name: {0: "batch", 1: "length"} for name in inputs},
        limits={"length": (1, LONGEST)},
        pad={"input_ids": 0},
        # Special tokens stand below: some families look for them.
        bounds={"input_ids": (0, 98)},
    )


def _text(model_type: str, settings: Mapping[str, Any]) -> ModelSpec:
    return _tokens(lambda: Text(_auto("AutoModelForMaskedLM", model_type, settings)))


def _decoder(model_type: str, settings: Mapping[str, Any]) -> ModelSpec:
    mask = settings.get("mask", True)
    rest = {k: v for k, v in settings.items() if k != "mask"}

    def build() -> nn.Module:
        model = _auto("AutoModelForCausalLM", model_type, rest)
        return (Text if mask else Tokens)(model, use_cache=False)

    return _tokens(build, mask)


def _encoder(model_type: str, settings: Mapping[str, Any]) -> ModelSpec:
    return _tokens(lambda: Text(_auto("AutoModel", model_type, settings).get_encoder()))


def _vision(model_type: str, settings: Mapping[str, Any]) -> ModelSpec:
    name = settings.get("auto", "AutoModelForImageClassification")
    side = settings.get("side", 32)
    noise = settings.get("noise")  # how many numbers an image has beside
    rest = {k: v for k, v in settings.items() if k not in ("auto", "side", "noise")}
    kind = Pixels if noise is None else NoisyPixels
    inputs = {"pixel_values": torch.randn(2, 3, side, side)}
    if noise is not None:
        inputs["noise"] = torch.rand(2, noise)
    return ModelSpec(
        module=seeded(lambda: kind(_auto(name, model_type, rest))),
        inputs=inputs,
        axes={name: {0: "batch"} for name in inputs},
        limits={"batch": (1, 8)},
        length_axis="batch",
        pad=dict.fromkeys(inputs, 0.0),
    )


def _audio(model_type: str, settings: Mapping[str, Any]) -> ModelSpec:
    name = settings.get("auto", "AutoModel")
    lo, hi, width = settings["input"]
    part = settings.get("part")
    rest = {k: v for k, v in settings.items() if k not in ("auto", "input", "part", "axes", "name")}
    input_name = settings.get("name", "input_values" if width is None else "input_features")

    def build() -> nn.Module:
        model = _auto(name, model_type, rest)
        model = getattr(model, part)() if part else model
        return Samples(model) if input_name == "input_values" else Features(model)

    samples = width is None
    shape: tuple[Any, ...] = (1, (lo + hi) // 2) if samples else (1, (lo + hi) // 2, width)
    dim = 1
    if settings.get("axes") == "channels first":
        shape, dim = (shape[0], shape[2], shape[1]), 2
    varies = {0: "batch"} if lo == hi else {0: "batch", dim: "length"}
    fixed = lo == hi
    return ModelSpec(
        module=seeded(build),
        inputs={input_name: torch.randn(*shape)},
        axes={input_name: varies},
        limits={"batch": (1, 8)} if fixed else {"length": (lo, hi)},
        length_axis="batch" if fixed else "length",
        pad={input_name: 0.0},
    )


def _series(model_type: str, settings: Mapping[str, Any]) -> ModelSpec:
    name = settings["auto"]
    rest = {k: v for k, v in settings.items() if k != "auto"}

    def build() -> nn.Module:
        import transformers

        return Past(getattr(transformers, name)(tiny_config(model_type, rest)))

    return ModelSpec(
        module=seeded(build),
        inputs={"past_values": torch.randn(2, 32, 3)},
        axes={"past_values": {0: "batch"}},
        limits={"batch": (1, 8)},
        length_axis="batch",
        pad={"past_values": 0.0},
    )


_Make = Callable[[str, Mapping[str, Any]], ModelSpec]
_GROUPS: tuple[tuple[str, families.Settings, _Make], ...] = (
    ("text", families.TEXT, _text),
    ("decoder", families.DECODERS, _decoder),
    ("encoder-decoder", families.ENCODERS, _encoder),
    ("vision", families.VISION, _vision),
    ("audio", families.AUDIO, _audio),
    ("time series", families.SERIES, _series),
)


def _entry(group: str, make: _Make, model_type: str, settings: Mapping[str, Any]) -> Entry:
    name = model_type.replace("-", "_")
    if group == "encoder-decoder":
        name += "_encoder"
    # A family may be there twice, as a decoder and as an encoder of text, say.
    kind = str(settings.get("type", model_type))
    rest = {key: value for key, value in settings.items() if key != "type"}
    sources = ("transformers_entries", "tiny", repr(sorted(rest.items(), key=str)))
    return Entry(name, group, lambda: make(kind, rest), sources)


TRANSFORMERS_ENTRIES: tuple[Entry, ...] = tuple(
    _entry(group, make, model_type, settings)
    for group, table, make in _GROUPS
    for model_type, settings in table.items()
)
