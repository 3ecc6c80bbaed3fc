"""Verification: the bundle's outputs against eager, through the very runtime that ships.

Eager runs here; the bundle runs in a process of its own that uses the bundle's copy of the runtime
and, as that process reports, never loads torch. Every bucket is tried at its edges, its hint and
random lengths, and again with masked padding of different widths. Where a model computes little,
every length is run (:func:`edgecompile.bundle.cases.length_cases`); the report says how many were. A variant that this host can't
run repeats the golden vectors under an emulator, where there is one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgecompile.bundle.cases import (
    GOLDEN_CASES,
    LENGTH,
    Case,
    length_cases,
    make_cases,
    sample_cases,
)
from edgecompile.bundle.writer import save_case
from edgecompile.errors import UnsupportedHostError, VerificationError
from edgecompile.machines.emulator import EmulatedModel, Emulator, emulator_for
from edgecompile.precision import COSINES, TOLERANCES, min_cosine
from edgecompile.runtime.loaders import PACKAGES
from edgecompile.runtime.manifest import (
    AOTI_CPU,
    MANIFEST_NAME,
    Manifest,
    Tolerance,
    Variant,
    parse_manifest,
)
from edgecompile.runtime.selftest import run_cases


@dataclass(frozen=True)
class CaseResult:
    """How the bundle did on one case.

    Attributes:
        max_abs_error: largest difference over all outputs.
        scale: largest magnitude of eager's outputs.
        ok: whether every output is within its tolerance.
        error: what the runtime said, if it refused or failed; the numbers are NaN then.
        cosine: least of the outputs'; None where there is none, as of whole numbers or zeros.
    """

    variant: str
    bucket: int
    case: str
    max_abs_error: float
    scale: float
    ok: bool
    error: str = ""
    cosine: float | None = None


@dataclass(frozen=True)
class TextResult:
    """How the bundle did on one text that it was to generate, token by token.

    Attributes:
        prompt, tokens: how many there are.
        ties: tokens where another one was as likely, within the tolerance.
        error: what differed; "" if nothing did.
    """

    variant: str
    prompt: int
    tokens: int
    ties: int
    ok: bool
    error: str = ""


@dataclass(frozen=True)
class LengthsRun:
    """How many sizes of the length axis were run, of those that the bundle serves."""

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
    """What was run and how it came out.

    Attributes:
        results: by variant, bucket and case.
        not_executed: reasons, by variant, why this host could not run it.
        tolerance: what was allowed.
        torch_loaded: whether the process that ran the bundle had torch loaded; must be as
            ``torch_wanted``.
        notes: what is worth knowing beside.
        min_cosine: the least that outputs' cosines may be; None: any.
        torch_wanted: whether torch is what runs the bundle.
        texts: what was generated, by variant; () for a model that doesn't.
        emulated: by variant, the emulator that ran it, on the golden vectors alone.
        lengths: how many lengths were run; None where there is no length axis.
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
        """The result with the largest error relative to what was allowed."""
        return max(self.results, key=self._badness, default=None)

    def _badness(self, result: CaseResult) -> float:
        limit = self.tolerance.limit(result.scale)
        error = result.max_abs_error
        return float("inf") if error != error else error / limit

    @property
    def summary(self) -> str:
        """Which variants were run, how, and why the others weren't, in a line."""
        here = dict.fromkeys(r.variant for r in self.results if r.variant not in self.emulated)
        parts = [f"{name}: run on the build host" for name in here]
        parts += [f"{name}: run under {how}" for name, how in self.emulated.items()]
        parts += [f"{name}: not run, {why}" for name, why in self.not_executed.items()]
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        worst = self.worst
        return {
            # Nothing that was run is neither right nor wrong.
            "ok": self.ok if self.results else None,
            "tolerance": self.tolerance.to_json(),
            "cosine": self.cosine,
            "min_cosine": self.min_cosine,
            "torch_loaded": self.torch_loaded,
            "torch_wanted": self.torch_wanted,
            "cases": len(self.results),
            "lengths": None if self.lengths is None else dataclasses.asdict(self.lengths),
            "worst": None if worst is None else _result_json(worst),
            "emulated": dict(self.emulated),
            "not_executed": dict(self.not_executed),
            "results": [_result_json(r) for r in self.listed],
            "texts": [dataclasses.asdict(text) for text in self.texts],
            "notes": list(self.notes),
        }


# Features that one word stands for.
_FAMILIES = (("avx512", "AVX-512"), ("amx", "AMX"), ("avx", "AVX"))


def _plain(variant: str, reason: str) -> str:
    """Why a host can't run a variant, in few words."""
    text = reason.removeprefix(f"the variant {variant} can't run here: ")
    lacking = re.fullmatch(r"the CPU or the system lacks ([^;]+)", text)
    if lacking is None:
        return re.sub(r"^is for (\S+), this is", r"it is for \1, this host is", text)
    names = [
        next((word for start, word in _FAMILIES if feature.startswith(start)), feature)
        for feature in lacking[1].split(", ")
    ]
    return f"this CPU has no {' and no '.join(dict.fromkeys(names))}"


def _result_json(result: CaseResult) -> dict[str, Any]:
    """JSON has no NaN."""
    values = dataclasses.asdict(result)
    return {k: None if isinstance(v, float) and v != v else v for k, v in values.items()}


def verify_bundle(
    bundle: Path,
    cases: Sequence[Case],
    variants: Sequence[str],
    tolerance: Tolerance,
    *,
    min_cosine: float | None = None,
    texts: bytes | None = None,
    python: str = sys.executable,
    emulate: bool = True,
    tell: Callable[[str], None] = lambda text: None,
) -> VerifyReport:
    """Runs ``cases`` through ``bundle`` with every variant that this host can run, itself or under an
    emulator.

    Args:
        bundle: a bundle, named or still staged.
        cases: from :func:`make_cases` and the like.
        variants: names of the bundle's variants.
        tolerance: what is recorded in the report; the bundle's own decides.
        min_cosine: a result with a lesser cosine has failed; None: any will do.
        texts: what a generative bundle has to repeat, as its golden/generation.json has it.
        python: the interpreter that runs the bundle; needs numpy.
        emulate: whether to run variants that this host can't run under qemu, where it is installed:
            those of ``cases`` that are golden vectors.
        tell: is told what is being run where that takes long.

    Raises:
        VerificationError: the runtime could not be started at all.
    """
    results: list[CaseResult] = []
    generated: list[TextResult] = []
    refused: dict[str, str] = {}
    emulated: dict[str, str] = {}
    torch_loaded = False
    known = {v.name: v for v in _manifest(bundle).variants}
    with tempfile.TemporaryDirectory(prefix="edgecompile-verify-") as name:
        folder = Path(name)
        for case in cases:
            save_case(folder / f"{case.bucket}-{case.name}.npz", case.inputs, case.outputs)
        if texts is not None:
            (folder / "generation.json").write_bytes(texts)
        for variant in variants:
            answer = _selftest(bundle, folder, variant, python)
            if "refused" in answer:
                found = _emulated(bundle, folder, known[variant], answer["refused"], emulate, tell)
                if isinstance(found, str):
                    refused[variant] = found
                    continue
                emulator, answer = found
                emulated[variant] = emulator.name
            torch_loaded = torch_loaded or "torch" in answer["imported"]
            results += [_result(variant, entry, min_cosine) for entry in answer["cases"]]
            generated += [_text(variant, entry) for entry in answer.get("generation", [])]
    ran_here = any(result.variant not in emulated for result in results)
    return VerifyReport(
        tuple(results),
        refused,
        tolerance,
        torch_loaded,
        min_cosine=min_cosine,
        torch_wanted=runtime_command(bundle) != RUNTIME_COMMAND,
        texts=tuple(generated),
        emulated=emulated,
        lengths=_lengths_run(bundle, cases if ran_here else ()),
    )


def _emulated(
    bundle: Path,
    cases: Path,
    variant: Variant,
    refused: str,
    emulate: bool,
    tell: Callable[[str], None],
) -> tuple[Emulator, dict[str, Any]] | str:
    """The answer of :func:`_selftest` from an emulator, or why there is none.

    What has to be generated isn't: the loop around the programs is Python's, and ran in the tests.
    """
    if variant.backend != AOTI_CPU:
        return refused
    why = refused.removeprefix(f"the variant {variant.name} can't run here: ")
    emulator = emulator_for(variant, emulate)
    if isinstance(emulator, str):
        return f"{why}; {emulator}"
    tell(f"running {variant.name} under {emulator.name}")
    golden = cases / "golden"
    golden.mkdir(exist_ok=True)
    for path in cases.glob("*.npz"):
        if path.stem.partition("-")[2] in GOLDEN_CASES and not (golden / path.name).exists():
            os.link(path, golden / path.name)
    try:
        with EmulatedModel(bundle, variant.name, emulator) as model:
            results = run_cases(model, str(golden))
    except UnsupportedHostError as error:
        return f"{why}; {emulator.name}: {error.message}"
    return emulator, {"cases": results, "imported": []}


def _lengths_run(bundle: Path, cases: Sequence[Case]) -> LengthsRun | None:
    """How many of the bundle's lengths the cases have."""
    manifest = parse_manifest((bundle / MANIFEST_NAME).read_bytes(), str(bundle))
    axis = manifest.length_axis
    if axis is None:
        return None
    name, dim = next((i.name, i.shape.index(axis)) for i in manifest.inputs if axis in i.shape)
    total = end = 0
    for lo, hi in sorted((b.axes[axis].lo, b.axes[axis].hi) for b in manifest.buckets):
        total += max(0, hi - max(end, lo - 1))  # buckets may overlap
        end = max(end, hi)
    return LengthsRun(axis, len({case.inputs[name].shape[dim] for case in cases}), total)


def _text(variant: str, entry: Mapping[str, Any]) -> TextResult:
    prompt, tokens, ties = (int(entry.get(name) or 0) for name in ("prompt", "tokens", "ties"))
    error = str(entry.get("error") or "")
    return TextResult(variant, prompt, tokens, ties, bool(entry["ok"]), error)


def _result(variant: str, entry: Mapping[str, Any], least: float | None) -> CaseResult:
    """One case of the self-test's answer, judged by its cosine too."""
    cosine = None if entry.get("cosine") is None else float(entry["cosine"])
    error = str(entry.get("error") or "")
    far = least is not None and cosine is not None and cosine < least
    if far and not error:
        error = f"cosine {cosine:.6f}, at least {least:g} is asked for"
    return CaseResult(
        variant=variant,
        bucket=int(entry["bucket"]),
        case=str(entry["case"]),
        # None where the run itself failed.
        max_abs_error=_number(entry["max_abs_error"]),
        scale=_number(entry["scale"]),
        ok=bool(entry["ok"]) and not far,
        error=error,
        cosine=cosine,
    )


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


RUNTIME_COMMAND = "edgecompile.runtime"


def _manifest(bundle: Path) -> Manifest:
    return parse_manifest((bundle / MANIFEST_NAME).read_bytes(), str(bundle))


def runtime_command(bundle: Path) -> str:
    """What ``python -m`` is given to run a bundle: the runtime, or that which brings torch."""
    manifest = _manifest(bundle)
    packages = [PACKAGES[v.backend] for v in manifest.variants if v.backend in PACKAGES]
    return packages[0] if packages else RUNTIME_COMMAND


def device_environment(bundle: Path) -> dict[str, str]:
    """The environment of a process that runs a bundle as a device would, by its own runtime.

    Variables that change Python's or the runtime's behaviour stay behind: the result must not
    depend on who builds.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "EDGECOMPILE_"))}
    return {
        **kept,
        "PYTHONPATH": str((bundle / "runtime").resolve()),
        "PYTHONDONTWRITEBYTECODE": "1",  # the bundle's folder is what ships
    }


def _selftest(bundle: Path, cases: Path, variant: str, python: str) -> dict[str, Any]:
    """Runs the bundle's own self-test command on a folder of cases."""
    environment = device_environment(bundle)
    command = [python, "-m", runtime_command(bundle), "selftest", str(bundle.resolve())]
    command += ["--cases", str(cases), "--variant", variant, "--json"]
    # The working directory must not hold a package of the same name: -m looks there first.
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cases)
    if done.returncode == 23:
        reason = (done.stderr.strip().splitlines() or [""])[0]
        return {"refused": reason.removeprefix("error: ")}
    if done.returncode < 0:
        raise VerificationError(
            f"the bundle's runtime was killed by signal {-done.returncode} with variant {variant}",
            hint="this is a defect of edgecompile; please report it with the model's architecture",
        )
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise VerificationError(
            f"the bundle's runtime failed with exit code {done.returncode} and variant {variant}:\n"
            + done.stderr.strip()
        ) from None
    return answer


def check_report(report: VerifyReport, *, reused: bool = False, unrun: bool = False) -> None:
    """Raises VerificationError unless the report is clean; names every failing bucket.

    Args:
        report: of :func:`verify_bundle`.
        reused: whether programs of an earlier build were used again.
        unrun: whether a bundle will do of which this host can run nothing, with reasons why.

    Raises:
        VerificationError: a case failed, nothing could be run, or torch was loaded.
    """
    if report.ok or (unrun and not report.results and report.not_executed):
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
        + (r.error or f"error {r.max_abs_error:.3g}, allowed {report.tolerance.limit(r.scale):.3g}")
        for r in failed[:20]
    ]
    lines += [
        f"  {t.variant}, {t.tokens} tokens behind a prompt of {t.prompt}: {t.error}"
        for t in report.texts
        if not t.ok
    ]
    if len(failed) > 20:
        lines.append(f"  … and {len(failed) - 20} more")
    hint = "no bundle was written; keep the work folder with --work-dir and report the model"
    if reused:
        hint = (
            "no bundle was written; programs of an earlier build in the work folder were used again: "
            "delete that folder or name another --work-dir, and build once more"
        )
    elif report.min_cosine is not None:
        hint = "no bundle was written; --precision auto keeps the layers wider that need it"
    raise VerificationError(
        f"{len(failed)} of {len(report.results)} cases"
        + (f" and {bad} of {len(report.texts)} texts" if report.texts else "")
        + " differ from eager:\n"
        + "\n".join(lines),
        hint=hint,
    )


__all__ = [
    "COSINES",
    "TOLERANCES",
    "Case",
    "CaseResult",
    "LengthsRun",
    "TextResult",
    "VerifyReport",
    "check_report",
    "length_cases",
    "make_cases",
    "min_cosine",
    "sample_cases",
    "verify_bundle",
]
