"""In which precision the weights of linear layers are stored, layer by layer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from edgecompile.errors import CompileError
from edgecompile.runtime.format.manifest.schema import Tolerance

INT8 = "int8"
INT4 = "int4"
#: What a weight can be stored in, the widest first.
PRECISIONS = ("fp32", "bf16", INT8, INT4)
#: Those whose products round activations, too, on CPUs that multiply pairs or fours of small integers.
ROUNDED_PRODUCTS = (INT8, INT4)

#: The largest bound on the ratio of perplexities (``max_perplexity_ratio``).
MOST_PERPLEXITY_RATIO = 1000.0

#: Least cosine of each output with eager's, by precision. bf16 rounds a weight by 2**-9 of itself
#: at most (0.1 % rms; CPUs with bf16 products round the activations alike), int8 by 1/254 of the
#: largest of its block (0.5 % rms of an ordinary one; some CPUs round the activations alike):
#: independent errors of a few layers in a row stay within these. fp32 is held to its tolerance, which is narrower than any cosine says. fp16,
#: in which a GPU calculates all of a model, rounds by 2**-11 at each step; GPUs may sum in it, too, so
#: it is given what bf16 is. fp8 (e4m3, of GPUs) rounds each weight and each activation of a product by 1/16 of itself at
#: most: all-MiniLM-L6-v2 has 0.995 at least on 24 texts, and a difference of 11 % at most.
COSINES: Mapping[str, float] = {"bf16": 0.9999, "fp16": 0.9999, "int8": 0.999, "fp8": 0.99}

#: Allowed difference by precision: ``|got - want| <= atol + rtol * max|want|`` for each output.
#: fp32 sums in another order than eager: a few ulp of the output's scale, times the depth.
#: The others follow from their cosine c: errors at its limit are sqrt(2 - 2c) of the output's rms
#: (1.4 %, 4.5 % and 14 %); the largest of some thousand errors is about 4 times their rms, the largest of
#: as many values about 3 times theirs. It holds on every variant, however its kernels round.
#: int4 is for language models alone, whose bundles are compared with the rounded model: products are then as
#: near as int8's, whatever the rounding did, which next tokens judge. It has no cosine for that reason.
TOLERANCES: Mapping[str, Tolerance] = {
    "fp32": Tolerance(atol=1e-6, rtol=2e-5),
    "bf16": Tolerance(atol=1e-6, rtol=2e-2),
    "fp16": Tolerance(atol=1e-6, rtol=2e-2),
    "int8": Tolerance(atol=1e-6, rtol=6e-2),
    "int4": Tolerance(atol=1e-6, rtol=6e-2),
    "fp8": Tolerance(atol=1e-6, rtol=2e-1),
}
#: At least, where a model stores keys and values in bfloat16: a program and the reference round alike, but where they
#: differ by float32's error, a number between two neighbours may become the one or the other.
STORED = Tolerance(atol=1e-6, rtol=1e-3)


def min_cosine(precision: str) -> float | None:
    """The least cosine that a bundle's precision allows; None if it isn't judged by that."""
    return COSINES.get(base_name(precision))


def widest(names: Iterable[str]) -> str:
    """The widest of some precisions."""
    return min(names, key=PRECISIONS.index)


def base_name(label: str) -> str:
    """The start of a label (:attr:`Precision.label`): the precision of most weights."""
    return label.partition("-")[0]


class Rounded(Protocol):
    """int8 and int4 weights that were rounded together: :class:`edgecompile.quantization.gptq.RoundedWeights`."""

    @property
    def digest(self) -> str:
        """Tells unlike ones apart."""

    @property
    def inputs(self) -> str:
        """The data that they were rounded for, in words."""

    def take(self, name: str, weight: Any, precision: str) -> Any:
        """The stand-in for this matrix as the kernels read it, by the packed weight's attribute.

        None where it isn't among those of this precision; raises CompileError where it had other values.
        """

    def save(self, path: Path) -> None:
        """Writes them as a file, whole or not at all; raises OSError."""


@dataclass(frozen=True)
class Precision:
    """The storage of linear layers' weights; activations and all else are float32.

    Attributes:
        name: the name of the weights, one of :data:`PRECISIONS`.
        kept: (name of a weight, its precision) for those that stay wider, ascending by name.
        rounded: int8 and int4 weights that were rounded with the model's inputs in mind; None, or where
            one isn't among them, each is rounded to the nearest.
        pairs: permission for int8 products on x86-64 without VNNI to round activations so that four
            products add up in 16 bits. For models that are judged by cosine.

    Raises:
        CompileError: a name isn't a precision, or what is kept isn't wider than the rest.
    """

    name: str = "fp32"
    kept: tuple[tuple[str, str], ...] = ()
    rounded: Rounded | None = None
    pairs: bool = False

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
        """Its name in bundles, calibrations and weights files.

        Unlike ones differ in it, unless they only round otherwise: those are as fast and as large.
        """
        if not self.kept:
            return self.name
        digest = hashlib.sha256(json.dumps(self.kept).encode()).hexdigest()[:8]
        return f"{self.name}-mixed-{digest}"

    def of(self, weights: Iterable[str]) -> str:
        """The precision of one product that these weights make up: the widest of theirs."""
        by_weight = dict(self.kept)
        return widest(by_weight.get(weight, self.name) for weight in weights)

    def __str__(self) -> str:
        if not self.kept:
            return self.name
        wider = sorted({wider for _, wider in self.kept}, key=PRECISIONS.index)
        count = len(self.kept)
        noun = "weight" if count == 1 else "weights"
        return f"{self.name}, {count} {noun} in {' or '.join(wider)}"

    def to_json(self) -> dict[str, Any]:
        """{"name", "kept", "rounded", "pairs"}: kept by name of the weight, rounded as its digest.

        The last two only where they are set.
        """
        value: dict[str, Any] = {"name": self.name, "kept": dict(self.kept)}
        if self.rounded is not None:
            value["rounded"] = self.rounded.digest
        return {**value, "pairs": True} if self.pairs else value

    @classmethod
    def from_json(cls, value: Mapping[str, Any], rounded: Rounded | None = None) -> Precision:
        """The inverse of :meth:`to_json`, but for ``rounded``, of which that has the digest alone.

        Raises:
            CompileError: it isn't one.
        """
        name, by_weight = value.get("name"), value.get("kept", {})
        if not isinstance(name, str) or not isinstance(by_weight, dict):
            raise CompileError(f"{value!r} is no precision")
        kept = tuple((str(weight), str(wider)) for weight, wider in by_weight.items())
        return cls(name, kept, rounded, value.get("pairs") is True)


FP32 = Precision()


def describe_label(label: str, plan: Mapping[str, Any]) -> str:
    """A label with the number of weights that stay wider, as far as a manifest's ``plan`` tells it."""
    written = plan.get("precision")
    if not isinstance(written, dict):
        return label
    try:
        named = str(Precision.from_json(written))
    except CompileError:
        return label
    return label if named == label else f"{label} ({named})"
