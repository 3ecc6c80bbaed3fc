"""``--precision auto``: the fastest precision that stays within a bound, by trial.

Each candidate is a program for all lengths, compiled for this host's best variant of the target
and run by the shipped runtime: its outputs on the samples against eager's, and its time at the
traffic's lengths. Where a precision is too coarse for some layers, those that cause most of the
error alone are kept wider, as few of them as will do.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edgecompile.backends.compilation import CompileOptions, compile_buckets
from edgecompile.bundle.assembly import stage_calibration_bundle
from edgecompile.bundle.cases import Case
from edgecompile.bundle.reference import Arrays, run_eager
from edgecompile.bundle.verdict import VerifyReport
from edgecompile.bundle.verify import verify_bundle
from edgecompile.errors import PlanError, UsageError, VerificationError
from edgecompile.models.samples import Samples, add_drawn, draw_samples, text_samples
from edgecompile.models.tasks import LOGITS
from edgecompile.planning.costs.measure import run_calibration
from edgecompile.planning.request import AUTO_PRECISION
from edgecompile.planning.subject import Subject
from edgecompile.precision import COSINES, FP32, INT8, TOLERANCES, Precision, Rounded
from edgecompile.progress import NULL_STEP, StepHandle
from edgecompile.quantization.calibrated import round_for, rounding_notes
from edgecompile.quantization.program import Deviation, QuantizedProgram, fewest_kept
from edgecompile.quantization.quality import Quality
from edgecompile.quantization.reference import adds_pairs
from edgecompile.quantization.trials import PrecisionChoice, Trial

#: Of an output's scale.
DEFAULT_MAX_ERROR = 0.02

#: A narrower precision has to save this share of a run's time: less can't be told from noise.
_LEAST_GAIN = 0.03
_QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
_ROUNDS = 2
_SECONDS = 2.0
_RANK_SAMPLES = 8
#: Of what the verification allows: its inputs are others, and may come out worse.
_MARGIN = 0.6
_MAX_RETRIES = 4


@dataclass(frozen=True)
class ResolvedPrecision:
    """The precision of a request, resolved for a model.

    Attributes:
        precision: the data type of the linear layers' weights.
        choice: the record of ``auto``'s choice; None: the precision was named.
        samples: inputs to verify with; None: there are no texts, and nothing was tried.
        quality: the figures of a language model's narrow weights; None: there are none.
    """

    precision: Precision
    choice: PrecisionChoice | None = None
    samples: Samples | None = None
    quality: Quality | None = None

    def without_pairs(self, note: str) -> ResolvedPrecision:
        """The same with int8 products that add no pairs in 16 bits; ``note`` says why in the record of a choice."""
        precision, choice = replace(self.precision, pairs=False), self.choice
        if choice is not None:
            choice = replace(choice, precision=precision, notes=(*choice.notes, note))
        return replace(self, precision=precision, choice=choice)


def resolve_precision(
    subject: Subject, *, rounding: bool = True, step: StepHandle = NULL_STEP
) -> ResolvedPrecision:
    """The request's precision: itself, or the choice that ``auto`` makes.

    Args:
        subject: the model, its target and its traffic.
        rounding: round int8 weights for the model's inputs (:mod:`edgecompile.quantization.calibrated`),
            and activations in pairs where these allow it.
        step: told what is being done.

    Raises:
        As :func:`choose_precision` and :func:`edgecompile.models.samples.text_samples`.
        UsageError: a bound is for models of another kind.
    """
    request, model = subject.request, subject.model
    name = request.precision_for(subject.profile)
    if request.max_perplexity_ratio is not None:
        raise UsageError(
            f"`max_perplexity_ratio` is no bound for {model.name}, which is no language model",
            hint="leave it out; `max_error` bounds `precision` auto",
        )
    samples = None
    if model.length_axis is not None:
        samples = text_samples(model, request.texts, subject.scope.axes[0][1].hi)
    rounded = None
    if rounding and name in (AUTO_PRECISION, INT8):
        rounded = round_for(subject, judges=samples, step=step)
    paired = rounding and name == INT8 and _may_pair(subject)
    if name != AUTO_PRECISION and not paired:
        precision = Precision(name, rounded=rounded)
        subject.notes.add(*rounding_notes(precision))
        return ResolvedPrecision(precision, samples=samples)
    served, usual = subject.serving.bucket.axes[0][1], samples
    if samples is not None:
        samples = samples.within(served.sizes)
    if samples is None:
        samples = draw_samples(
            model,
            request.traffic,
            served.hi,
            shortest=served.lo,
            step=served.step,
            seed=request.seed,
        )
    # What is chosen has to pass the bundle's verification, which draws inputs too.
    tried = add_drawn(
        samples, model, served.hi, shortest=served.lo, step=served.step, seed=request.seed
    )
    if name != AUTO_PRECISION:
        step.update(text=f"running {name} in torch")
        precision = _pair_within(subject, tried, Precision(name, rounded=rounded))
        subject.notes.add(*rounding_notes(precision))
        return ResolvedPrecision(precision, samples=usual)
    choice = choose_precision(subject, tried, rounded=rounded, step=step)
    subject.notes.add(*choice.notes, *rounding_notes(choice.precision))
    return ResolvedPrecision(choice.precision, choice, samples)


def choose_precision(
    subject: Subject,
    samples: Samples,
    *,
    rounded: Rounded | None = None,
    step: StepHandle = NULL_STEP,
) -> PrecisionChoice:
    """Tries int8, bf16 and fp32, and mixtures where a pure one is too coarse.

    The least cosine of each precision (:data:`edgecompile.precision.COSINES`) has to hold as well as
    the request's bound on the error.

    Args:
        subject: the model, its target and its traffic.
        samples: real inputs.
        rounded: weights to use where a product is int8.
        step: told what is being done.

    Raises:
        VerificationError: not even fp32 stays within the bound.
        PlanError: this host can't run the target's code, so there is nothing to try.
        ExportError, CompileError: a program can't be built.
    """
    require_runnable(subject)
    trials = Trials(subject, samples, rounded, step)
    return trials.run()


def require_runnable(subject: Subject) -> None:
    """Refuses to choose where nothing can be tried.

    Raises:
        PlanError: this host can't run the target's code.
    """
    if not subject.runnable:
        raise PlanError(
            f'`precision="auto"` tries what it chooses from, and this host can\'t run the code of '
            f"{subject.profile.name}",
            hint='name one: `precision="bf16"` or `precision="int8"`; verify on the device',
        )


class Trials:
    """The candidates of one choice, their programs and their results."""

    def __init__(
        self, subject: Subject, samples: Samples, rounded: Rounded | None, step: StepHandle
    ) -> None:
        request, exports, scope = subject.request, subject.exports, subject.serving.scope
        self.subject, self.exports, self.samples = subject, exports, samples
        self.variant, self.rounded, self.step = subject.runnable[-1], rounded, step
        self.max_error = DEFAULT_MAX_ERROR if request.max_error is None else request.max_error
        self.folder = subject.work / "precisions"
        # The program that most of the traffic runs in: a dynamic one, or the longest static one.
        self.bucket = subject.serving.bucket
        fixed = {name: extent.lo for name, extent in scope.axes}
        lengths = {scope.traffic.quantile(q) for q in _QUANTILES}
        if self.bucket.mode == "pad":
            lengths = {self.bucket.hi}
        lo, hi = self.bucket.lo, self.bucket.hi
        self.sizes = [
            {**fixed, scope.axis: n} for n in sorted({min(max(n, lo), hi) for n in lengths})
        ]
        self.wanted = [run_eager(subject.model, inputs) for inputs in samples.inputs]

    def run(self) -> PrecisionChoice:
        """:meth:`choose`, without leaving anything behind."""
        self.clear()  # what an ended build left may be of other weights
        try:
            return self.choose()
        finally:
            with suppress(OSError):
                self.clear()

    def tell(self, text: str) -> None:
        self.step.update(text=text)

    def clear(self) -> None:
        for bundle in self.folder.glob("*.ecb"):
            shutil.rmtree(bundle)

    def choose(self) -> PrecisionChoice:
        self.tell("trying fp32")
        program = self._program(len(self.samples.inputs))
        products = len(program.groups)
        if not products:
            note = f"{self.exports.model.name} has no linear layer to store narrower, so it is fp32"
            return PrecisionChoice(FP32, (), 0, self.max_error, self.samples.source, (note,))
        first = self._try(FP32, 0)
        if not first.within:
            raise VerificationError(
                f"no precision reaches a `max_error` of {self.max_error:g}: fp32 itself differs by "
                f"{first.deviation.error:.2g} of an output's scale on {self.samples.source}",
                hint='give a larger `max_error`, or `precision="fp32"`',
            )
        trials = [first]
        wide = program.deviation(Precision("bf16"))
        for name in ("bf16", "int8"):
            wider = "bf16" if name == "int8" and self._holds("bf16", wide) else "fp32"
            trials.append(self._search(name, wider, program))
        timed = self._time(trials)
        chosen = fastest(timed)
        return PrecisionChoice(
            chosen.precision,
            tuple(timed),
            products,
            self.max_error,
            self.samples.source,
            self._notes(chosen, timed[0], products),
        )

    def _program(self, count: int) -> QuantizedProgram:
        inputs, expected = self.samples.inputs[:count], self.wanted[:count]
        return QuantizedProgram(self.exports.model, self.exports.get(self.bucket), inputs, expected)

    def _holds(self, name: str, deviation: Deviation) -> bool:
        # The bundle's verification asks for its own tolerance too, whatever the bound is.
        most, cosine = self.max_error, COSINES.get(name)
        if name != "fp32":
            most = min(most, _MARGIN * TOLERANCES[name].rtol)
        if cosine is not None:
            cosine = 1 - _MARGIN * (1 - cosine)
        return deviation.within(most, cosine)

    def _search(self, name: str, wider: str, program: QuantizedProgram) -> Trial:
        """The trial of ``name``, with as few products kept as the bounds need.

        Where none will do, that of the pure precision, which is over the bounds.
        """
        pure = Precision(name, rounded=self.rounded if name == INT8 else None)
        paired = name == INT8 and _may_pair(self.subject)
        self.tell(f"running {name} in torch")
        for pairs in (True, False) if paired else (False,):
            pure = replace(pure, pairs=pairs)
            predicted = program.deviation(pure)
            if self._holds(name, predicted):
                trial = self._try(pure, 0, predicted)
                if trial.within:
                    return trial
        products = len(program.groups)
        few = self._program(_RANK_SAMPLES)
        ranked = [
            group
            for group, _ in few.rank(
                pure, lambda done: self.tell(f"{name}: error of each layer, {done} of {products}")
            )
        ]
        fewest = fewest_kept(ranked, pure, wider, lambda p: self._holds(name, program.deviation(p)))
        count = products if fewest is None else fewest[1]
        for _ in range(_MAX_RETRIES):
            if count >= products:
                break
            exceptions = tuple((weight, wider) for group in ranked[:count] for weight in group)
            mixed = replace(pure, kept=exceptions)
            trial = self._try(mixed, count, program.deviation(mixed))
            if trial.within:
                return trial
            # The CPU's own kernels round a little more than torch's stand-in does.
            count += max(1, count // 2)
        return self._try(pure, 0, predicted)

    def _try(
        self, precision: Precision, wider_count: int, predicted: Deviation | None = None
    ) -> Trial:
        """Builds the program in a precision, runs the samples, and compares.

        ``predicted`` counts where it is worse: another variant may round activations more coarsely.
        """
        path, report = self._run(precision, self.wanted)
        broken = [r for r in report.results if r.max_abs_error != r.max_abs_error]
        if broken or not report.results:
            reason = broken[0].error if broken else "; ".join(report.not_executed.values())
            raise VerificationError(f"{precision} can't be tried: {reason}")
        errors = [r.max_abs_error / (r.scale or 1.0) for r in report.results]
        odd = any(not r.ok and "NaN" in r.error for r in report.results)
        deviation = Deviation(float("inf") if odd else max(errors), report.cosine)
        if predicted is not None:
            deviation = deviation.or_worse(predicted)
        weights = path / f"weights.{precision.label}"
        return Trial(
            precision,
            deviation,
            None,
            self._holds(precision.name, deviation),
            wider_count,
            weights.stat().st_size,
        )

    def _run(self, precision: Precision, wanted: Sequence[Arrays]) -> tuple[Path, VerifyReport]:
        """The bundle of a precision, and how its outputs compare with the wanted ones."""
        self.tell(f"building {precision}")
        path = self._bundle(precision)
        self.tell(f"running {precision}")
        cases = [
            Case(0, f"sample{index}", inputs, expected)
            for index, (inputs, expected) in enumerate(
                zip(self.samples.inputs, wanted, strict=True)
            )
        ]
        return path, verify_bundle(path, cases, [self.variant.name], TOLERANCES[precision.name])

    def _bundle(self, precision: Precision) -> Path:
        name = precision.label + ("-pairs" if precision.pairs else "")
        path = self.folder / f"{name}.ecb"
        if path.exists():
            return path
        exported = self.exports.get(self.bucket)
        compiled = compile_buckets(
            [exported],
            [self.bucket],
            self.subject.profile,
            self.folder / name,
            CompileOptions(
                variants=[self.variant],
                precision=precision,
                jobs=self.subject.request.jobs,
                on=self.subject.request.on,
            ),
            keys=[self.exports.key(self.bucket)],
        )
        runs = [(0, sizes) for sizes in self.sizes]
        return stage_calibration_bundle(
            self.exports.model, [self.bucket], compiled, path, runs, force=True
        )

    def _time(self, trials: Sequence[Trial]) -> list[Trial]:
        """Times those within the bounds, in rounds over all, so that a busy moment hits none alone."""
        times: dict[str, list[float]] = {trial.precision.label: [] for trial in trials}
        for number in range(_ROUNDS):
            for trial in trials:
                if not trial.within:
                    continue
                self.tell(f"timing {trial.precision}, {number + 1} of {_ROUNDS}")
                result = run_calibration(
                    self._bundle(trial.precision),
                    threads=self.subject.request.threads,
                    seconds=_SECONDS,
                )
                times[trial.precision.label].append(
                    statistics.fmean(point.ms for point in result.points)
                )
        return [replace(t, ms=min(times[t.precision.label], default=None)) for t in trials]

    def _notes(self, chosen: Trial, first: Trial, products: int) -> tuple[str, ...]:
        error = f"{100 * chosen.deviation.error:.2g} % of an output's scale at most"
        judged = (
            f"it differs by {error} (allowed: {100 * self.max_error:g} %) on {self.samples.source}"
        )
        return self._said(chosen, first, products, judged)

    def _said(self, chosen: Trial, first: Trial, products: int, judged: str) -> tuple[str, ...]:
        """Notes for people on the choice; ``judged`` says what is known of its error."""
        notes = [
            f"precision auto chose {chosen.precision.name}: {chosen.ms:.3g} ms a run against "
            f"{first.ms:.3g} ms in fp32 with {self.variant.name} on this machine; {judged}"
        ]
        if chosen.kept:
            wider = sorted({wider for _, wider in chosen.precision.kept})
            names = [name for name, _ in chosen.precision.kept]
            listed = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
            notes.append(
                f"{chosen.kept} of {products} linear products stay in {' or '.join(wider)}: {listed}"
            )
        return tuple(notes)


def _may_pair(subject: Subject) -> bool:
    """Whether int8 products may add pairs in 16 bits (:attr:`edgecompile.precision.Precision.pairs`).

    Not those of language models, also where no texts judge them: decoders behind a source, and ``--task logits``.
    """
    model = subject.model
    scores_tokens = model.generation is not None or model.source.details.get("task") == LOGITS
    return not scores_tokens and any(map(adds_pairs, subject.profile.variants))


def _pair_within(subject: Subject, samples: Samples, precision: Precision) -> Precision:
    """The precision with pairs if outputs stay within its bounds, run in torch; without pairs otherwise.

    A build whose own cases are harder than the samples goes on without them.
    """
    exported = subject.exports.get(subject.serving.bucket)
    wanted = [run_eager(subject.model, inputs) for inputs in samples.inputs]
    program = QuantizedProgram(subject.model, exported, samples.inputs, wanted)
    paired, name = replace(precision, pairs=True), precision.name
    held = program.deviation(paired).within(TOLERANCES[name].rtol, COSINES[name])
    return paired if held else precision


def fastest(trials: Sequence[Trial]) -> Trial:
    """The trial to choose: the first, or a later one within the bounds that is faster beyond noise."""
    chosen = trials[0]
    for trial in trials[1:]:
        if trial.within and trial.ms is not None and chosen.ms is not None:
            chosen = trial if trial.ms < (1 - _LEAST_GAIN) * chosen.ms else chosen
    return chosen
