"""The precision of a language model, judged by next tokens of texts rather than by its outputs' difference.

``auto`` tries what it tries for other models (:mod:`edgecompile.quantization.choice`), and int4. Where a precision alone
is too coarse, :mod:`edgecompile.quantization.mixture` mixes it with a wider one. The model's own library tells the error
of a precision. A trial of its program checks that this computes what its weights say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from edgecompile.bundle.reference import run_eager
from edgecompile.errors import UsageError, VerificationError
from edgecompile.models.language_texts import LanguageTexts, language_texts
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.samples import draw_samples
from edgecompile.planning.request import AUTO_PRECISION, CHECKPOINT_PRECISION
from edgecompile.planning.subject import Subject
from edgecompile.precision import FP32, INT4, INT8, ROUNDED_PRODUCTS, Precision
from edgecompile.progress import NULL_STEP, StepHandle
from edgecompile.quantization.calibrated import rounding_notes
from edgecompile.quantization.checkpoint import keep_checkpoint
from edgecompile.quantization.choice import (
    ResolvedPrecision,
    Trials,
    fastest,
    require_runnable,
    resolve_precision,
)
from edgecompile.quantization.judged import (
    JudgedModel,
    cache_quality,
    is_judged,
    stores_rounded,
)
from edgecompile.quantization.mixture import find_mixture
from edgecompile.quantization.program import Deviation
from edgecompile.quantization.quality import MAX_PERPLEXITY_RATIOS, Quality, check_quality
from edgecompile.quantization.trials import PrecisionChoice, Trial

#: Of ``auto``, whatever it chooses.
_AUTO_RATIO = MAX_PERPLEXITY_RATIOS[INT8]


def resolve(
    subject: Subject, *, rounding: bool = True, step: StepHandle = NULL_STEP
) -> ResolvedPrecision:
    """The precision of any model's request; as :func:`edgecompile.quantization.choice.resolve_precision`.

    Raises:
        UsageError: a bound or int4 is for models of another kind.
        VerificationError: narrow weights of a language model are beyond the bound.
        As :func:`edgecompile.models.language_texts.language_texts`.
    """
    request, model, name = subject.request, subject.model, subject.precision
    if name == CHECKPOINT_PRECISION and model.stored is None:
        raise UsageError(
            f'`precision="checkpoint"` keeps the numbers of quantized checkpoints, but {model.name} has floats',
            hint="leave it out",
        )
    if not is_judged(model):
        if name == INT4:
            raise _refuse_int4(f"{model.name} has no next tokens that texts could judge")
        return resolve_precision(subject, rounding=rounding, step=step)
    if request.max_error is not None:
        raise UsageError(
            f"`max_error` is no bound for {model.name}, which is judged by the perplexity of texts",
            hint="give `max_perplexity_ratio`",
        )
    if model.stored is not None and name != CHECKPOINT_PRECISION:
        subject.notes.add(
            f"the {model.stored.kind} checkpoint's own numbers aren't kept: `precision` is {name}"
        )
    rounded_caches = stores_rounded(model)
    if name == FP32.name and not rounded_caches:
        return ResolvedPrecision(FP32)
    auto = name == AUTO_PRECISION
    if auto:
        require_runnable(subject)
    bucket = subject.serving.bucket
    step.update(text="reading texts" if request.texts else "writing texts")
    texts = language_texts(model, request.texts, seed=request.seed)
    caches = None
    if rounded_caches and (auto or name == FP32.name):
        caches = _judge_caches(subject, texts)
        if not auto:
            return ResolvedPrecision(FP32, quality=caches)
    judged = JudgedModel(model, subject.exports.get(bucket), texts)
    if name == CHECKPOINT_PRECISION:
        kept = _keep_checkpoint(subject, judged, step)
        if rounded_caches and kept.quality is None:
            return replace(kept, quality=_judge_caches(subject, texts))
        return kept
    if judged.problem and name == INT4:
        raise _refuse_int4(f"of {model.name} {judged.problem}, so no text can judge it")
    precision = judged.default_precision(INT8 if auto else name)
    narrow = [precision, judged.default_precision(INT4)] if auto else [precision]
    calibrates = rounding and texts.calibrating and judged.program.groups
    if calibrates and precision.name in ROUNDED_PRODUCTS and not (auto and judged.problem):
        key = subject.exports.key(bucket)
        rounded = judged.round_weights(subject.work, key, *narrow, step=step)
        narrow = [replace(p, rounded=r) for p, r in zip(narrow, rounded, strict=True)]
        precision = narrow[0]
    if judged.problem:
        subject.notes.add(f"narrow weights aren't judged by texts: {judged.problem}")
        if auto:
            return ResolvedPrecision(FP32, quality=caches)
        if rounded_caches:
            caches = _judge_caches(subject, texts)
        subject.notes.add(*rounding_notes(precision))
        return ResolvedPrecision(precision, quality=caches)
    if auto:
        choice, quality = LanguageTrials(subject, judged, narrow, step).find()
        subject.notes.add(*choice.notes, *rounding_notes(choice.precision))
        return ResolvedPrecision(choice.precision, choice, quality=quality or caches)
    step.update(text=f"running {texts.source}")
    bound = request.max_perplexity_ratio or MAX_PERPLEXITY_RATIOS[name]
    quality = check_quality(judged.quality(precision, step), name, bound)
    subject.notes.add(quality.describe(name), *rounding_notes(precision))
    return ResolvedPrecision(precision, quality=quality)


def check_caches(model: LoadedModel, texts: LanguageTexts) -> Quality:
    """The figures of rounded caches alone; a narrow weight is judged together with them.

    Raises:
        VerificationError: they are beyond the bound of weights in as many bits.
    """
    precision = _cache_precision(model)
    quality, bound = cache_quality(model, texts), MAX_PERPLEXITY_RATIOS[precision]
    if quality.within(bound):
        return replace(quality, bound=bound, caches_alone=True)
    caches = f"keys and values in {precision}"
    raise VerificationError(
        f"{caches} change what the model says by more than is allowed: {quality.describe(caches)}",
        hint="leave `cache_precision` out",
    )


def _judge_caches(subject: Subject, texts: LanguageTexts) -> Quality:
    """The same, with a note for people."""
    quality = check_caches(subject.model, texts)
    subject.notes.add(quality.describe(f"keys and values in {_cache_precision(subject.model)}"))
    return quality


def _cache_precision(model: LoadedModel) -> str:
    return INT8 if any(spec.has_scales for spec in model.inputs) else "bf16"


def _keep_checkpoint(subject: Subject, judged: JudgedModel, step: StepHandle) -> ResolvedPrecision:
    """The precision of a quantized checkpoint; its reference is the model of its numbers in float32."""
    stored, request = subject.model.stored, subject.request
    assert stored is not None  # resolve() saw to it
    count, said = len(judged.program.groups), f"reading the {stored.kind} checkpoint's numbers"
    found = keep_checkpoint(
        judged.program,
        subject.model.module,
        stored,
        lambda done: step.update(done, count, f"{said}, {done} of {count} products"),
    )
    subject.notes.add(*found.notes)
    name = found.precision.name
    if name == FP32.name:
        return ResolvedPrecision(FP32)
    if judged.problem:
        subject.notes.add(f"narrow weights aren't judged by texts: {judged.problem}")
        return ResolvedPrecision(found.precision)
    step.update(text=f"running {judged.texts.source}")
    bound = request.max_perplexity_ratio or MAX_PERPLEXITY_RATIOS[INT8]
    quality = check_quality(judged.quality(found.precision, step), name, bound)
    subject.notes.add(quality.describe(name))
    return ResolvedPrecision(found.precision, quality=quality)


def _refuse_int4(reason: str) -> UsageError:
    return UsageError(
        f'`precision="int4"` is for language models on CPUs, which texts judge: {reason}',
        hint='give `precision="int8"`',
    )


class LanguageTrials(Trials):
    """The candidates of one choice for a language model.

    Args:
        subject: the model and its traffic.
        judged: the model and its texts.
        narrow: int8, and int4 as it is stored where nothing else is asked for.
        step: told what is being done.
    """

    def __init__(
        self, subject: Subject, judged: JudgedModel, narrow: Sequence[Precision], step: StepHandle
    ) -> None:
        request, served = subject.request, subject.serving.bucket.axes[0][1]
        drawn = draw_samples(
            subject.model,
            request.traffic,
            served.hi,
            shortest=served.lo,
            step=served.step,
            seed=request.seed,
        )
        super().__init__(subject, drawn, None, step)
        if self.bucket.mode != "pad":
            # Most runs of a text are of a single token. The shortest run of a prompt takes about as long.
            self.sizes = [{**self.sizes[0], subject.serving.scope.axis: self.bucket.lo}]
        self._judged, self._narrow = judged, narrow
        self.ratio = request.max_perplexity_ratio or _AUTO_RATIO

    def find(self) -> tuple[PrecisionChoice, Quality | None]:
        """The choice, and the figures of what is chosen; None: it is fp32."""
        choice = self.run()
        chosen = [trial for trial in choice.trials if trial.precision == choice.precision]
        return choice, chosen[0].quality if chosen else None

    def choose(self) -> PrecisionChoice:
        self.tell("trying fp32")
        products, source = len(self._judged.program.groups), self._judged.texts.source
        if not products:
            note = f"{self.exports.model.name} has no linear layer to store narrower, so it is fp32"
            return PrecisionChoice(FP32, (), 0, 0.0, source, (note,), self.ratio)
        trials, wider = [self._check(FP32, 0, None)], FP32
        for pure in (Precision("bf16"), *self._narrow):
            trial = self._find(pure, wider)
            if trial is None:
                continue
            trials.append(trial)
            # Narrower ones keep products as wide as this one has them. Beside a mixture of bf16 they keep float32.
            if trial.within and (pure.name == INT8 or not trial.kept):
                wider = trial.precision
        timed = self._time(trials)
        chosen = fastest(timed)
        judged = "its weights are the original's"
        if chosen.quality is not None:
            judged = chosen.quality.describe(chosen.precision.name)
        return PrecisionChoice(
            chosen.precision,
            tuple(timed),
            products,
            0.0,
            source,
            self._said(chosen, timed[0], products, judged),
            self.ratio,
        )

    def _find(self, pure: Precision, wider: Precision) -> Trial | None:
        """The trial of a precision mixed with a wider one; None if it is the wider one itself."""
        found = find_mixture(self._judged, pure, wider, self.ratio, self.tell)
        if found is None:
            return None
        if found.quality.within(self.ratio):
            return self._check(found.precision, found.kept, found.quality)
        over = replace(found.quality, bound=self.ratio)
        return Trial(found.precision, Deviation(math.inf, None), None, False, 0, None, over)

    def _check(self, precision: Precision, kept: int, quality: Quality | None) -> Trial:
        """The trial of a precision whose figures are known: its program has to compute what its weights say."""
        wanted = self.wanted
        if precision != FP32:
            with self._judged.narrowed(precision):
                wanted = [run_eager(self.subject.model, inputs) for inputs in self.samples.inputs]
        path, report = self._run(precision, wanted)
        wrong = [result.error or "it differs" for result in report.results if not result.ok]
        if not report.results or (wrong and quality is None):
            reason = (wrong or list(report.not_executed.values()) or ["nothing was run"])[0]
            raise VerificationError(f"{precision} can't be tried: {reason}")
        # An activation that a CPU rounds too coarsely is a reason to stay wider, too.
        within = not wrong and (quality is None or quality.within(self.ratio))
        error = max(r.max_abs_error / (r.scale or 1.0) for r in report.results)
        size = (path / f"weights.{precision.label}").stat().st_size
        if quality is not None:
            quality = replace(quality, bound=self.ratio)
        return Trial(precision, Deviation(error, report.cosine), None, within, kept, size, quality)
