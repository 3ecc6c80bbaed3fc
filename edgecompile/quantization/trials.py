"""The precisions tried for a model and the one chosen: for reports and people."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgecompile.precision import Precision

if TYPE_CHECKING:
    from edgecompile.quantization.program import Deviation


@dataclass(frozen=True)
class Trial:
    """The time and error of a precision in the shipped runtime.

    Attributes:
        precision: the tried precision.
        deviation: the largest deviation from eager over the samples.
        ms: mean of the runs at the traffic's quantiles; None where it wasn't timed.
        within: whether it stays within the bounds.
        kept: the number of matmuls that stay wider.
        size_bytes: the size of the weights.
    """

    precision: Precision
    deviation: Deviation
    ms: float | None
    within: bool
    kept: int
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            "precision": self.precision.to_json(),
            "label": self.precision.label,
            "max_error": self.deviation.error if math.isfinite(self.deviation.error) else None,
            "cosine": self.deviation.cosine,
            "ms": self.ms,
            "within": self.within,
            "wider_products": self.kept,
            "weights_bytes": self.size_bytes,
        }


@dataclass(frozen=True)
class PrecisionChoice:
    """The choice, and the trials it was made from.

    Attributes:
        precision: the fastest within the bound.
        trials: the candidates, the widest first; () where there was nothing to choose.
        products: the number of the model's linear matmuls.
        max_error: the bound, of an output's scale.
        samples: the samples that it was tried on, in words.
        notes: sentences.
    """

    precision: Precision
    trials: tuple[Trial, ...]
    products: int
    max_error: float
    samples: str
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "precision": self.precision.to_json(),
            "label": self.precision.label,
            "max_error": self.max_error,
            "samples": self.samples,
            "products": self.products,
            "trials": [trial.to_json() for trial in self.trials],
            "notes": list(self.notes),
        }

    def rows(self) -> tuple[tuple[str, ...], ...]:
        """A row of text for each trial: :data:`COLUMNS`."""
        return tuple(
            (
                trial.precision.name,
                f"{trial.kept} of {self.products}" if trial.kept else "–",
                "–" if trial.ms is None else f"{trial.ms:.3g}",
                f"{trial.size_bytes / 1e6:.1f} MB",
                f"{100 * trial.deviation.error:.2g} %",
                "–" if trial.deviation.cosine is None else f"{trial.deviation.cosine:.6f}",
                "chosen" if trial.precision == self.precision else _verdict(trial),
            )
            for trial in self.trials
        )


#: Of a table of trials.
COLUMNS = ("precision", "kept wider", "ms a run", "weights", "largest error", "cosine", "")


def _verdict(trial: Trial) -> str:
    return "slower" if trial.within else "over the bound"
