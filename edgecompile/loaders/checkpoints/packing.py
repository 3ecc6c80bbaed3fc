"""How a folder's config.json says that its weights are packed; nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompile.errors import ModelError

GPTQ, AWQ, PACKED, MXFP4 = "gptq", "awq", "compressed-tensors", "mxfp4"
_MXFP4_BLOCK = 32
_CURE = (
    "start from the folder with the plain float weights; `precision` then rounds them as you like"
)


@dataclass(frozen=True)
class Packing:
    """How a folder's weights are packed.

    Attributes:
        method: :data:`GPTQ`, :data:`AWQ`, :data:`PACKED`, or :data:`MXFP4` for gpt-oss's experts.
        bits: bits of a number.
        group: inputs that share a scale; -1: all of them.
        less_one: whether zeros are stored less one.
        floats: whether numbers are those of MXFP4.
    """

    method: str
    bits: int
    group: int
    less_one: bool = False
    floats: bool = False

    @property
    def name(self) -> str:
        """Its name, for people."""
        return {GPTQ: "GPTQ", AWQ: "AWQ", MXFP4: "MXFP4"}.get(self.method, self.method)


def read_packing(folder: Path, config: Mapping[str, Any]) -> Packing | None:
    """How the weights of a folder are packed, by its parsed config.json; None: they are floats.

    Raises:
        ModelError: they are quantized in another way.
    """
    settings = config.get("quantization_config")
    if not settings:
        return None
    settings = dict(settings) if isinstance(settings, dict) else {}
    method, group, bits = (settings.get(key) for key in ("quant_method", "group_size", "bits"))
    known, said, less_one, floats = False, "", False, method == MXFP4
    if method == GPTQ:
        form = settings.get("checkpoint_format", "gptq")
        known = form in ("gptq", "gptq_v2") and bits in (4, 8)
        less_one = form == "gptq"
        said = f"{bits} bits, the format {form!r}"
    elif method == AWQ:
        form = str(settings.get("version", "gemm")).lower()
        known = form == "gemm" and bits == 4
        said = f"{bits} bits, the version {form!r}"
    elif method == PACKED:
        groups = settings.get("config_groups")
        schemes = list(groups.values()) if isinstance(groups, dict) else []
        first: Any = schemes[0] if len(schemes) == 1 and isinstance(schemes[0], dict) else {}
        weights: Any = first.get("weights") if isinstance(first.get("weights"), dict) else {}
        form, bits = settings.get("format"), weights.get("num_bits")
        channel = weights.get("strategy") == "channel"
        group = -1 if channel else weights.get("group_size")
        floats = form == "mxfp4-pack-quantized"
        if floats:
            kinds = bits == 4 and group == _MXFP4_BLOCK and weights.get("symmetric") is not False
        else:
            kinds = form == "pack-quantized" and bits in (4, 8)
        known = (
            kinds
            and weights.get("type") == ("float" if floats else "int")
            and weights.get("strategy") in ("group",) + (() if floats else ("channel",))
            and not first.get("input_activations")
        )
        said = f"{len(schemes)} groups, {bits} bits, the format {form!r}"
    elif method == MXFP4:
        known, group, bits = True, _MXFP4_BLOCK, 4
    else:
        raise ModelError(
            f"'{folder}': the weights are quantized by {method!r}, which isn't read",
            hint=f"read are {GPTQ}, {AWQ}, {PACKED} and {MXFP4}; or {_CURE}",
        )
    if not known:
        raise ModelError(
            f"'{folder}': {method} weights of another kind than is read: {said}", hint=_CURE
        )
    if not isinstance(group, int) or isinstance(group, bool) or not (group == -1 or group > 0):
        raise ModelError(f"'{folder}': the group of quantized weights is {group!r}", hint=_CURE)
    return Packing(str(method), int(bits or 0), group, less_one, floats)
