"""The model that a bundle is compared with: the original, or a language model with its weights rounded.

How far the rounded model lies from the original is the precision's error, which texts judge
(:mod:`edgecompile.quantization.quality`). The bundle has to compute what the rounded model does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

from edgecompile.backends.compilation import CompiledModel
from edgecompile.bundle.cases import Case
from edgecompile.bundle.margins import scale
from edgecompile.bundle.reference import run_eager
from edgecompile.models.language_texts import LanguageTexts, language_texts
from edgecompile.models.loaded import LoadedModel
from edgecompile.precision import FP32, INT4, ROUNDED_PRODUCTS, TOLERANCES
from edgecompile.progress import NULL_STEP, StepHandle
from edgecompile.quantization.judged import JudgedModel, is_judged
from edgecompile.quantization.quality import MAX_PERPLEXITY_RATIOS, Quality, check_quality
from edgecompile.quantization.reference import (
    activations_share,
    own_limit,
    rounds_activations,
)
from edgecompile.runtime.format.compare import compare_arrays
from edgecompile.runtime.format.schema import Tolerance

_ANY = Tolerance(0.0, 0.0)
_ACTIVATIONS_NOTE = "rounding activations alone changes outputs by over half the tolerance, so the reference rounds them, too"


@dataclass(frozen=True)
class ReferenceModel:
    """What a bundle has to compute.

    Attributes:
        model: the model.
        compiled: its programs.
        judged: the model with rounded weights; None: the original is the reference.
        quality: the figures of the rounded weights; None: there are none.
        activations: whether the reference rounds activations, too.
    """

    model: LoadedModel
    compiled: CompiledModel
    judged: JudgedModel | None = None
    quality: Quality | None = None
    activations: bool = False

    @property
    def rounded(self) -> bool:
        """Whether the rounded model is the reference."""
        return self.judged is not None

    @property
    def notes(self) -> tuple[str, ...]:
        """The figures, as a sentence or none."""
        if self.quality is None:
            return ()
        name = self.compiled.precision.name
        return (
            f"the bundle is compared with the model of weights rounded to {name}, whose own error is: "
            + self.quality.describe(name),
            *([_ACTIVATIONS_NOTE] if self.activations else []),
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """The model is the reference for as long as the context lasts."""
        judged = self.judged
        with nullcontext() if judged is None else judged.narrowed(self.compiled.precision):
            yield

    def needs_activations(self, cases: Sequence[Case]) -> bool:
        """Whether rounding activations alone, as each variant does, may change an output by over half the tolerance.

        Models of random weights amplify that. A bundle is then compared with eager that rounds them, too.

        Args:
            cases: Cases of the rounded model, within :meth:`running`.
        """
        name = self.compiled.precision.name
        variants = self.compiled.variants
        if self.judged is None or name not in ROUNDED_PRODUCTS:
            return False
        if not all(rounds_activations([variant], name) for variant in variants):
            return False
        for case in cases:
            errors = self._differences(case, self.rounding_activations())
            if any(
                2 * e > TOLERANCES[name].limit(scale(case, output)) for output, e in errors.items()
            ):
                return True
        return False

    def rounding_activations(self) -> AbstractContextManager[None]:
        """The model rounds activations, too, for as long as the context lasts."""
        assert self.judged is not None
        return self.judged.rounding_activations(self.compiled.precision)

    def limit(
        self, cases: Sequence[Case], tell: Callable[[int], None] = lambda done: None
    ) -> list[Case]:
        """The cases of the rounded model with their largest differences, within :meth:`running`.

        These are a tenth of the precision's tolerance; where kernels round activations, too, some times the
        effect of the weights' rounding on the case beside, but no more than the tolerance. Weights of int4 are
        rounded far more coarsely than its activations. There the effect of those counts. A reference that rounds
        activations itself leaves the tolerance.
        """
        if self.activations:
            return list(cases)
        share = activations_share(self.compiled.variants, self.compiled.precision)
        made = []
        for case in cases:
            errors = self._differences(case, self._beside() if share else None)
            limits = {
                name: own_limit(case, name, self.compiled.precision.name, error, share)
                + case.margins.get(name, 0.0)
                for name, error in errors.items()
            }
            made.append(replace(case, limits=limits))
            tell(len(made))
        return made

    def _differences(
        self, case: Case, beside: AbstractContextManager[None] | None
    ) -> dict[str, float]:
        """The largest difference of each output of floats from that of eager in a context; 0 without one."""
        names = [name for name, value in case.outputs.items() if value.dtype.kind == "f"]
        if beside is None:
            return dict.fromkeys(names, 0.0)
        with beside:
            outputs = run_eager(self.model, case.inputs)
        return {
            name: compare_arrays(case.outputs[name], outputs[name], _ANY).max_abs_error
            for name in names
        }

    def _beside(self) -> AbstractContextManager[None]:
        """The model is the one whose difference from the reference counts."""
        assert self.judged is not None
        if self.compiled.precision.name == INT4:
            return self.rounding_activations()
        return self.judged.narrowed(FP32)


def find_reference_model(
    model: LoadedModel,
    compiled: CompiledModel,
    quality: Quality | None = None,
    *,
    seed: int = 0,
    step: StepHandle = NULL_STEP,
) -> ReferenceModel:
    """The reference of a model and its programs.

    Args:
        model: the model.
        compiled: its programs.
        quality: the figures of its precision, if they are known and were judged.
        seed: the seed of texts, where the figures aren't known.
        step: told what is being done.

    Raises:
        VerificationError: the figures weren't known, and are beyond the bound.
        ModelError: the model fails on texts.
    """
    name = compiled.precision.name
    if not is_judged(model) or name == FP32.name:
        return ReferenceModel(model, compiled)
    step.update(text="running the rounded model")
    texts = LanguageTexts((), (), "", False) if quality else language_texts(model, None, seed=seed)
    judged = JudgedModel(model, compiled.exported[0], texts)
    if judged.problem:
        return ReferenceModel(model, compiled)
    if quality is None:
        quality = judged.quality(compiled.precision, step)
        quality = check_quality(quality, name, MAX_PERPLEXITY_RATIOS[name])
    return ReferenceModel(model, compiled, judged, quality)
