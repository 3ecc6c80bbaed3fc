"""The results of a verification, and whether they allow to name the bundle."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgecompile.buckets.ranges import Bucket
from edgecompile.bundle.cases import LENGTH
from edgecompile.errors import VerificationError
from edgecompile.files import plain, plain_fields
from edgecompile.models.rounding import FACTOR, WIDEST
from edgecompile.runtime.format.golden.compare import NOT_FINITE
from edgecompile.runtime.format.manifest.schema import Tolerance
from edgecompile.units import format_share

#: The last cell of a result that isn't right.
FAILED = "FAILED"


@dataclass(frozen=True)
class CaseResult:
    """The result of the bundle on one case.

    Attributes:
        max_abs_error: largest difference over all outputs.
        scale: largest magnitude of eager's outputs.
        ok: whether every output is within its tolerance.
        error: the runtime's message, if it refused or failed; the numbers are NaN then.
        cosine: least of the outputs'; None where there is none, as of whole numbers or zeros.
        limit: the allowed difference; None: the report's tolerance.
        rounding: largest difference of eager in float32 from eager in float64; None: not known.
    """

    variant: str
    bucket: int
    case: str
    max_abs_error: float
    scale: float
    ok: bool
    error: str = ""
    cosine: float | None = None
    limit: float | None = None
    rounding: float | None = None


@dataclass(frozen=True)
class TextResult:
    """The result of the bundle on one text that it was to generate, token by token.

    Attributes:
        prompt, tokens: the number of tokens of the prompt, and of new ones.
        ties: tokens where another one was as likely, within the tolerance.
        error: the difference that was found; "" if there is none.
    """

    variant: str
    prompt: int
    tokens: int
    ties: int
    ok: bool
    error: str = ""


@dataclass(frozen=True)
class LengthsRun:
    """The number of sizes of the length axis that were run, of those that the bundle serves."""

    axis: str
    run: int
    total: int

    def __str__(self) -> str:
        what = "lengths" if self.axis == LENGTH else f"sizes of {self.axis}"
        if self.run < self.total:
            return f"{self.run} of {self.total} {what}"
        return f"all {self.total} {what}" if self.total > 1 else "the one size that there is"


@dataclass(frozen=True)
class VerifyReport:
    """The runs and their results.

    Attributes:
        results: the results by variant, bucket and case.
        not_executed: reasons, by variant, why this host could not run it.
        tolerance: the allowed difference.
        torch_loaded: whether the process that ran the bundle had torch loaded; must be as
            ``torch_wanted``.
        notes: further remarks.
        min_cosine: the least that outputs' cosines may be; None: any.
        torch_wanted: whether torch is what runs the bundle.
        texts: the generated texts, by variant; () for a model that generates none.
        emulated: the emulator that ran a variant, by variant, on the golden vectors alone.
        lengths: the number of lengths that were run; None where there is no length axis.
        reference: the reference of the comparison, in words.
    """

    results: tuple[CaseResult, ...]
    not_executed: Mapping[str, str]
    tolerance: Tolerance
    torch_loaded: bool
    notes: tuple[str, ...] = field(default=())
    min_cosine: float | None = None
    torch_wanted: bool = False
    texts: tuple[TextResult, ...] = ()
    emulated: Mapping[str, str] = field(default_factory=dict)
    lengths: LengthsRun | None = None
    reference: str = ""

    @property
    def listed(self) -> tuple[CaseResult, ...]:
        """The results to show one by one: of a bucket's many lengths the worst and what failed."""
        worst: dict[tuple[str, int], CaseResult] = {}
        for result in self.results:
            key = result.variant, result.bucket
            if result.case.startswith(LENGTH) and (
                key not in worst or self._badness(result) > self._badness(worst[key])
            ):
                worst[key] = result
        return tuple(
            result
            for result in self.results
            if not result.ok
            or not result.case.startswith(LENGTH)
            or result is worst[result.variant, result.bucket]
        )

    def table(
        self, buckets: Sequence[Bucket]
    ) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
        """Headings and rows of the results to show, as texts, by variant, bucket and case."""
        columns = (
            "variant", "bucket", "case", "difference", "eager's own", "of allowed", "cosine", "",
        )  # fmt: skip
        rows = tuple(
            (
                result.variant,
                f"{result.bucket}: {buckets[result.bucket].lo}–{buckets[result.bucket].hi}",
                result.case,
                f"{result.max_abs_error:.1e}",
                "–" if result.rounding is None else f"{result.rounding:.1e}",
                format_share(self.used(result)),
                "–" if result.cosine is None else f"{result.cosine:.6f}",
                "ok" if result.ok else FAILED,
            )
            for result in sorted(self.listed, key=_natural)
        )
        return columns, rows

    def used(self, result: CaseResult) -> float:
        """The difference of a result as a share of the allowed one."""
        allowed = self.allowed(result)
        if allowed == 0:  # of whole numbers, which have to be equal
            return math.inf if result.max_abs_error else 0.0
        return result.max_abs_error / allowed

    def allowed(self, result: CaseResult) -> float:
        """The difference that a result may have."""
        return self.tolerance.limit(result.scale) if result.limit is None else result.limit

    def rule(self) -> str:
        """The allowed difference, in words."""
        text = f"|got − want| ≤ {self.tolerance.atol:g} + {self.tolerance.rtol:g} · max |want|"
        if any(result.rounding is not None for result in self.results):
            text += f" + {FACTOR:g} · eager's own error in float32 (to {WIDEST:g} · max |want|)"
        return text + (
            "" if self.min_cosine is None else f", and a cosine of at least {self.min_cosine:g}"
        )

    def not_run(self) -> tuple[str, ...]:
        """A sentence for each variant that this host could not run."""
        return tuple(
            f"{name} built, not run: {_plain(name, why)}."
            for name, why in self.not_executed.items()
        )

    @property
    def cosine(self) -> float | None:
        """The least cosine of all results; None where none has one."""
        return min((r.cosine for r in self.results if r.cosine is not None), default=None)

    @property
    def ok(self) -> bool:
        """Whether every case passed, and torch was absent unless it is what runs the bundle."""
        alone = self.torch_loaded == self.torch_wanted
        passed = all(r.ok for r in self.results) and all(r.ok for r in self.texts)
        return bool(self.results) and passed and alone

    @property
    def worst(self) -> CaseResult | None:
        """The result with the largest error relative to the allowed one."""
        return max(self.results, key=self._badness, default=None)

    def _badness(self, result: CaseResult) -> float:
        used = self.used(result)
        return float("inf") if math.isnan(used) else used

    @property
    def summary(self) -> str:
        """The variants that were run, how, and why the others weren't, in a line."""
        here = dict.fromkeys(r.variant for r in self.results if r.variant not in self.emulated)
        parts = [f"{name}: run on the build host" for name in here]
        parts += [f"{name}: run under {how}" for name, how in self.emulated.items()]
        parts += [f"{name}: not run, {why}" for name, why in self.not_executed.items()]
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        return {
            **plain_fields(self),
            # Nothing that was run is neither right nor wrong.
            "ok": self.ok if self.results else None,
            "cosine": self.cosine,
            "cases": len(self.results),
            "worst": plain(self.worst),
            "results": plain(self.listed),
        }


def _natural(result: CaseResult) -> tuple[str, int, list[str | int]]:
    """Sorts by variant, bucket and case, text2 before text10."""
    parts = re.split(r"(\d+)", result.case)
    numbered: list[str | int] = [int(part) if part.isdigit() else part for part in parts]
    return result.variant, result.bucket, numbered


# Features that one word stands for.
_FAMILIES = (("avx512", "AVX-512"), ("amx", "AMX"), ("avx", "AVX"))


def _plain(variant: str, reason: str) -> str:
    """The reason that a host can't run a variant, in few words."""
    text = reason.removeprefix(f"the variant {variant} can't run here: ")
    lacking = re.fullmatch(r"the CPU or the system lacks ([^;]+)", text)
    if lacking is None:
        return re.sub(r"^is for (\S+), this is", r"it is for \1, this host is", text)
    names = [
        next((word for start, word in _FAMILIES if feature.startswith(start)), feature)
        for feature in lacking[1].split(", ")
    ]
    return f"this CPU has no {' and no '.join(dict.fromkeys(names))}"


def check_report(report: VerifyReport, *, reused: bool = False, packing: bool = False) -> None:
    """Raises VerificationError unless the report is clean; names every failing bucket.

    Args:
        report: the report of :func:`verify_bundle`.
        reused: whether programs of an earlier build were used again.
        packing: whether the bundle isn't written yet. One of which this host can run nothing will
            do then, with reasons why.

    Raises:
        VerificationError: a case failed, nothing could be run, or torch was loaded.
    """
    if report.ok or (packing and not report.results and report.not_executed):
        return
    if report.torch_loaded and not report.torch_wanted:
        raise VerificationError("torch was loaded in the process that verifies the bundle")
    if not report.results:
        reasons = "\n".join(f"  {k}: {v}" for k, v in report.not_executed.items())
        raise VerificationError(
            f"no variant of the bundle can run on this host, so nothing was verified:\n{reasons}",
            hint="build on a host that can run one of them, or add a variant that this one can",
        )
    failed = [r for r in report.results if not r.ok]
    bad = sum(not text.ok for text in report.texts)
    lines = [
        f"  {r.variant}, bucket {r.bucket}, {r.case}: "
        + (r.error or f"error {r.max_abs_error:.3g}, allowed {report.allowed(r):.3g}")
        for r in failed[:20]
    ]
    lines += [
        f"  {t.variant}, {t.tokens} tokens behind a prompt of {t.prompt}: {t.error}"
        for t in report.texts
        if not t.ok
    ]
    if len(failed) > 20:
        lines.append(f"  … and {len(failed) - 20} more")
    hint = "no bundle was written; keep the work folder with `work_dir` and report the model"
    if not packing:
        hint = (
            "is this the model that the bundle was built from, with the same weights? `edgecompile "
            "selftest` tells whether this machine reproduces the bundle's own golden vectors"
        )
    elif reused:
        hint = (
            "no bundle was written; programs of an earlier build in the work folder were used again: "
            "delete that folder or name another `work_dir`, and build once more; a factory has to make the "
            "same weights each time"
        )
    elif failed and not bad and all(NOT_FINITE in (r.error or "") for r in failed):
        hint = (
            "no bundle was written; if eager gives NaN or infinity at its smallest sizes, such as means of nothing, "
            'leave these out: a factory\'s `limits={"length": (3, 512)}` say which are served'
        )
    elif report.min_cosine is not None:
        hint = 'no bundle was written; `precision="auto"` keeps the layers wider that need it'
    raise VerificationError(
        f"{len(failed)} of {len(report.results)} cases"
        + (f" and {bad} of {len(report.texts)} texts" if report.texts else "")
        + " differ from eager:\n"
        + "\n".join(lines),
        hint=hint,
        differs=bool(failed),
    )
