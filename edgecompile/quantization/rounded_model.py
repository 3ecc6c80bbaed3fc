"""The model that a bundle is compared with: the original, or a language model with its weights rounded.

How far the rounded model lies from the original is the precision's error, which texts judge
(:mod:`edgecompile.quantization.quality`). The bundle has to compute what the rounded model does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace

from edgecompile.backends.compilation import CompiledModel
from edgecompile.bundle.cases import Case
from edgecompile.bundle.margins import allow_motion, scale
from edgecompile.bundle.reference import run_eager
from edgecompile.models.language_texts import LanguageTexts, language_texts
from edgecompile.models.loaded import LoadedModel
from edgecompile.precision import FP32, INT4, TOLERANCES
from edgecompile.progress import NULL_STEP, StepHandle
from edgecompile.quantization.judged import JudgedModel, is_judged
from edgecompile.quantization.quality import MAX_PERPLEXITY_RATIOS, Quality, check_quality
from edgecompile.quantization.reference import (
    activations_share,
    own_limit,
    rounding_products,
)
from edgecompile.runtime.format.golden.compare import Agreement, compare_arrays
from edgecompile.runtime.format.manifest.schema import Tolerance

_ANY = Tolerance(0.0, 0.0)
_ACTIVATIONS_NOTE = (
    "rounding activations alone takes over half the tolerance, so the reference rounds them, too. Twice its own motion "
    "under differences of float32's size is allowed"
)


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
    _effects: dict[tuple[str, int, str], dict[str, float]] = field(
        default_factory=dict, compare=False, repr=False
    )

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

    def needs_activations(
        self, cases: Sequence[Case], tell: Callable[[int], None] = lambda done: None
    ) -> bool:
        """Whether rounding activations alone, as each variant does, may change an output by over half the tolerance.

        Models of random weights amplify that. A bundle is then compared with eager that rounds them, too.

        Of int8 the weights' effect bounds that of activations (``activations_share``), and is kept for the limits.
        Only where that bound is too wide does a case run with rounded activations.

        Args:
            cases: Cases of the rounded model, within :meth:`running`.
            tell: Function that gets the number of cases that are done.
        """
        name = self.compiled.precision.name
        if self.judged is None or name not in self._rounding:
            return False
        share = activations_share(self.compiled.variants, self.compiled.precision)

        def may_matter(case: Case, errors: Mapping[str, float], times: float = 1.0) -> bool:
            return any(
                2 * times * error > TOLERANCES[name].limit(scale(case, output))
                for output, error in errors.items()
            )

        for done, case in enumerate(cases, 1):
            known = name != INT4 and not may_matter(case, self._own_errors(case), share)
            if not known and may_matter(case, self._effect_of_activations(case)):
                return True
            tell(done)
        return False

    def rounding_activations(self) -> AbstractContextManager[None]:
        """The model rounds activations, too, for as long as the context lasts."""
        assert self.judged is not None
        return self.judged.rounding_activations(self.compiled.precision, self._rounding)

    @property
    def _rounding(self) -> tuple[str, ...]:
        return rounding_products(self.compiled.variants)

    def allow_motion(
        self, cases: Sequence[Case], seed: int, tell: Callable[[int], None] = lambda done: None
    ) -> list[Case]:
        """The cases with margins for differences of float32's size that the rounding of activations amplifies.

        Args:
            cases: the cases of eager that rounds activations, within :meth:`rounding_activations`.
            seed: the seed of the differences.
            tell: a function that gets the number of cases that are done.
        """
        assert self.judged is not None
        motions: list[dict[str, Agreement]] = []
        for case in cases:
            seeded = seed + len(motions)
            moving = self.judged.moving_inputs(self.compiled.precision, self._rounding, seeded)
            motions.append(self._compare(case, moving))
            tell(len(motions))
        return allow_motion(cases, motions)

    def limit(
        self, cases: Sequence[Case], tell: Callable[[int], None] = lambda done: None
    ) -> list[Case]:
        """The cases of the rounded model with their largest differences, within :meth:`running`.

        These are a tenth of the precision's tolerance; where kernels round activations, too, some times the
        effect of the weights' rounding on the case beside, but no more than the tolerance. Weights of int4 are
        rounded far more coarsely than its activations. There the effect of those counts. A reference that rounds
        activations itself leaves the tolerance and the margins of its motion.
        """
        if self.activations:
            return list(cases)
        share = activations_share(self.compiled.variants, self.compiled.precision)
        made = []
        for case in cases:
            errors = self._own_errors(case) if share else dict.fromkeys(_floats(case), 0.0)
            limits = {
                name: own_limit(case, name, self.compiled.precision.name, error, share)
                + case.margins.get(name, 0.0)
                for name, error in errors.items()
            }
            made.append(replace(case, limits=limits))
            tell(len(made))
        return made

    def _own_errors(self, case: Case) -> dict[str, float]:
        """The difference, by output, that counts for a bundle's limit: of int4 the activations', else the weights'."""
        assert self.judged is not None
        if self.compiled.precision.name == INT4:
            return self._effect_of_activations(case)
        return self._effect("weights", case, self.judged.narrowed(FP32))

    def _effect_of_activations(self, case: Case) -> dict[str, float]:
        """The difference, by output, that rounding activations makes to a case of eager that doesn't."""
        return self._effect("activations", case, self.rounding_activations())

    def _effect(
        self, what: str, case: Case, beside: AbstractContextManager[None]
    ) -> dict[str, float]:
        """The largest difference, by output, of eager in a context that ``what`` names; kept."""
        key = what, case.bucket, case.name
        if key not in self._effects:
            self._effects[key] = _largest(self._compare(case, beside))
        return self._effects[key]

    def _compare(self, case: Case, beside: AbstractContextManager[None]) -> dict[str, Agreement]:
        """Each output of floats of eager in a context, compared with the case's."""
        with beside:
            outputs = run_eager(self.model, case.inputs)
        return {
            name: compare_arrays(outputs[name], case.outputs[name], _ANY) for name in _floats(case)
        }


def _largest(comparison: Mapping[str, Agreement]) -> dict[str, float]:
    return {name: item.max_abs_error for name, item in comparison.items()}


def _floats(case: Case) -> list[str]:
    """The outputs of floats."""
    return [name for name, value in case.outputs.items() if value.dtype.kind == "f"]


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
