"""The precisions tried for a model and the one chosen: for reports and people."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgecompile.precision import Precision
from edgecompile.quantization.quality import Quality, max_mean_kl

if TYPE_CHECKING:
    from edgecompile.quantization.program import Deviation


@dataclass(frozen=True)
class Trial:
    """The time and error of a precision in the shipped runtime.

    Attributes:
        precision: the tried precision.
        deviation: the largest deviation from eager over the samples; infinite where none was run.
        ms: mean of the runs at the traffic's quantiles; None where it wasn't timed.
        within: whether it stays within the bounds.
        kept: the number of matmuls that stay wider.
        size_bytes: the size of the weights; None: no program was built.
        quality: the figures of a language model, which is judged by them; None: of another one.
    """

    precision: Precision
    deviation: Deviation
    ms: float | None
    within: bool
    kept: int
    size_bytes: int | None
    quality: Quality | None = None

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
            **({} if self.quality is None else {"quality": self.quality.to_json()}),
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
        max_perplexity_ratio: the bound of a language model, which takes the place of ``max_error``; None: it
            is another model.
    """

    precision: Precision
    trials: tuple[Trial, ...]
    products: int
    max_error: float
    samples: str
    notes: tuple[str, ...]
    max_perplexity_ratio: float | None = None

    @property
    def allowed(self) -> str:
        """The bound, in words."""
        if self.max_perplexity_ratio is not None:
            return (
                f"a perplexity of {self.max_perplexity_ratio:g} times the original's, and a mean KL of "
                f"{max_mean_kl(self.max_perplexity_ratio):.2g}"
            )
        return (
            f"a largest difference of {100 * self.max_error:g} % of each output's largest magnitude"
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Headings of :meth:`rows`."""
        if self.max_perplexity_ratio is None:
            return COLUMNS
        return (*COLUMNS[:4], "perplexity ×", "mean KL", "")

    def to_json(self) -> dict[str, Any]:
        return {
            "precision": self.precision.to_json(),
            "label": self.precision.label,
            "max_error": self.max_error if self.max_perplexity_ratio is None else None,
            **(
                {}
                if self.max_perplexity_ratio is None
                else {"max_perplexity_ratio": self.max_perplexity_ratio}
            ),
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
                "–" if trial.size_bytes is None else f"{trial.size_bytes / 1e6:.1f} MB",
                *self._figures(trial),
                "chosen" if trial.precision == self.precision else _verdict(trial),
            )
            for trial in self.trials
        )

    def _figures(self, trial: Trial) -> tuple[str, str]:
        """The two cells of a trial's error."""
        if self.max_perplexity_ratio is None:
            cosine = trial.deviation.cosine
            return (
                f"{100 * trial.deviation.error:.2g} %",
                "–" if cosine is None else f"{cosine:.6f}",
            )
        found = trial.quality
        if found is None:
            return "1", "0"
        return f"{found.perplexity_ratio:.5f}", f"{found.mean_kl:.2g}"


#: Of a table of trials.
COLUMNS = ("precision", "kept wider", "ms a run", "weights", "largest error", "cosine", "")


def _verdict(trial: Trial) -> str:
    return "slower" if trial.within else "over the bound"
