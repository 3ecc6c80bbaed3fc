"""In which precision the weights of linear layers are stored, layer by layer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from edgecompile.errors import CompileError

__all__ = ["FP32", "PRECISIONS", "Precision", "base_name", "widest"]

#: What a weight can be stored in, the widest first.
PRECISIONS = ("fp32", "bf16", "int8")


def widest(names: Iterable[str]) -> str:
    """The widest of some precisions."""
    return min(names, key=PRECISIONS.index)


def base_name(label: str) -> str:
    """What a label (:attr:`Precision.label`) begins with: the precision of most weights."""
    return label.partition("-")[0]


@dataclass(frozen=True)
class Precision:
    """What linear layers' weights are stored in; activations and all else are float32.

    Attributes:
        name: of the weights, one of :data:`PRECISIONS`.
        kept: (name of a weight, its precision) for those that stay wider, ascending by name.

    Raises:
        CompileError: a name isn't a precision, or what is kept isn't wider than the rest.
    """

    name: str = "fp32"
    kept: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name in (self.name, *(wider for _, wider in self.kept)):
            if name not in PRECISIONS:
                raise CompileError(
                    f"{name!r} is no precision", hint=f"one of {', '.join(PRECISIONS)}"
                )
        narrow = [
            weight
            for weight, wider in self.kept
            if PRECISIONS.index(wider) >= PRECISIONS.index(self.name)
        ]
        if narrow:
            raise CompileError(
                f"{', '.join(narrow)}: what is kept from {self.name} has to be wider than that"
            )
        object.__setattr__(self, "kept", tuple(sorted(self.kept)))

    @property
    def label(self) -> str:
        """What bundles, calibrations and weights files call it: unlike ones differ in it."""
        if not self.kept:
            return self.name
        digest = hashlib.sha256(json.dumps(self.kept).encode()).hexdigest()[:8]
        return f"{self.name}-mixed-{digest}"

    def of(self, weights: Iterable[str]) -> str:
        """The precision of one product that these weights make up: the widest of theirs."""
        kept = dict(self.kept)
        return widest(kept.get(weight, self.name) for weight in weights)

    def __str__(self) -> str:
        if not self.kept:
            return self.name
        wider = sorted({wider for _, wider in self.kept}, key=PRECISIONS.index)
        count = len(self.kept)
        noun = "weight" if count == 1 else "weights"
        return f"{self.name}, {count} {noun} in {' or '.join(wider)}"

    def to_json(self) -> dict[str, Any]:
        """{"name", "kept"}; kept by name of the weight."""
        return {"name": self.name, "kept": dict(self.kept)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Precision:
        """The inverse of :meth:`to_json`.

        Raises:
            CompileError: it isn't one.
        """
        name, kept = value.get("name"), value.get("kept", {})
        if not isinstance(name, str) or not isinstance(kept, dict):
            raise CompileError(f"{value!r} is no precision")
        return cls(name, tuple((str(weight), str(wider)) for weight, wider in kept.items()))


FP32 = Precision()
