"""In which precision the weights of linear layers are stored, layer by layer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from edgecompile.errors import CompileError
from edgecompile.runtime.manifest import Tolerance

__all__ = [
    "COSINES",
    "FP32",
    "PRECISIONS",
    "TOLERANCES",
    "Precision",
    "base_name",
    "min_cosine",
    "widest",
]

#: What a weight can be stored in, the widest first.
PRECISIONS = ("fp32", "bf16", "int8")


#: Least cosine of each output with eager's, by precision. bf16 rounds a weight by 2**-9 of itself
#: at most (0.1 % rms; CPUs with bf16 products round the activations alike), int8 by 1/254 of the
#: largest of its block (0.5 % rms of an ordinary one; some CPUs round the activations alike):
#: independent errors of a few layers in a row stay within these. fp32 is held to its tolerance, which is narrower than any cosine says. fp16,
#: in which a GPU calculates all of a model, rounds by 2**-11 at each step; GPUs may sum in it, too, so
#: it is given what bf16 is.
COSINES: Mapping[str, float] = {"bf16": 0.9999, "fp16": 0.9999, "int8": 0.999}

#: Allowed difference by precision: ``|got - want| <= atol + rtol * max|want|`` for each output.
#: fp32 sums in another order than eager: a few ulp of the output's scale, times the depth.
#: The others follow from their cosine c: errors at its limit are sqrt(2 - 2c) of the output's rms
#: (1.4 % and 4.5 %); the largest of some thousand errors is about 4 times their rms, the largest of
#: as many values about 3 times theirs. It holds on every variant, however its kernels round.
TOLERANCES: Mapping[str, Tolerance] = {
    "fp32": Tolerance(atol=1e-6, rtol=2e-5),
    "bf16": Tolerance(atol=1e-6, rtol=2e-2),
    "fp16": Tolerance(atol=1e-6, rtol=2e-2),
    "int8": Tolerance(atol=1e-6, rtol=6e-2),
}


def min_cosine(precision: str) -> float | None:
    """The least cosine that a bundle's precision allows; None if it isn't judged by that."""
    return COSINES.get(base_name(precision))


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
