"""Verification: the bundle's outputs against eager, through the very runtime that ships.

Eager runs here; the bundle runs in a process of its own that uses the bundle's copy of the runtime
and, as that process reports, never loads torch. The reference is eager in float64
(:mod:`edgecompile.bundle.reference`). Every bucket is tried at its edges, its hint and
random lengths, and again with masked padding of different widths. Where a model computes little,
every length is run (:func:`edgecompile.bundle.cases.length_cases`); the report says how many were. A variant that this host can't
run repeats the golden vectors under an emulator, where there is one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgecompile.bundle.cases import GOLDEN_CASES, Case
from edgecompile.bundle.margins import OPEN, describe_reference
from edgecompile.bundle.verdict import CaseResult, LengthsRun, TextResult, VerifyReport
from edgecompile.bundle.writer import save_case
from edgecompile.errors import UnsupportedHostError, VerificationError
from edgecompile.hosts.emulator import EmulatedModel, Emulator, emulator_for
from edgecompile.runtime.call.dispatch import axis_sizes
from edgecompile.runtime.call.replay import run_cases
from edgecompile.runtime.call.rows import ROWS
from edgecompile.runtime.cpu.loaders import PACKAGES
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.manifest.schema import (
    AOTI_CPU,
    MANIFEST_NAME,
    Manifest,
    Tolerance,
    Variant,
)
from edgecompile.runtime.format.trust.policy import trust_environment
from edgecompile.runtime.model.steps import STEP


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
        cases: the cases from :func:`edgecompile.bundle.cases.make_cases` and the like.
        variants: names of the bundle's variants.
        tolerance: the tolerance for the report; the bundle's own decides.
        min_cosine: a result with a lesser cosine has failed; None: any will do.
        texts: the texts that a generative bundle has to repeat, from its golden/generation.json.
        python: the interpreter that runs the bundle; needs numpy.
        emulate: whether to run variants that this host can't run under qemu, where it is installed:
            those of ``cases`` that are golden vectors.
        tell: takes notes on runs that take long.

    Raises:
        VerificationError: the runtime could not be started at all.
    """
    results: list[CaseResult] = []
    generated: list[TextResult] = []
    refused: dict[str, str] = {}
    emulated: dict[str, str] = {}
    torch_loaded = False
    manifest = _manifest(bundle)
    by_name = {v.name: v for v in manifest.variants}
    known = {(case.bucket, case.name): case for case in cases}
    with tempfile.TemporaryDirectory(prefix="edgecompile-verify-") as name:
        folder = Path(name)
        for case in cases:
            path = folder / f"{case.bucket}-{case.name}.npz"
            save_case(path, case.inputs, case.outputs, case.margins, case.ties)
        if texts is not None:
            (folder / "generation.json").write_bytes(texts)
        for variant in variants:
            answer = run_selftest(bundle, folder, variant, python)
            if "refused" in answer:
                reply = _emulated(
                    bundle, folder, by_name[variant], answer["refused"], emulate, tell
                )
                if isinstance(reply, str):
                    refused[variant] = reply
                    continue
                emulator, answer = reply
                emulated[variant] = emulator.name
            torch_loaded = torch_loaded or "torch" in answer["imported"]
            results += [_result(variant, entry, min_cosine, known) for entry in answer["cases"]]
            generated += [_text(variant, entry) for entry in answer.get("generation", [])]
    ran_here = any(result.variant not in emulated for result in results)
    return VerifyReport(
        tuple(results),
        refused,
        tolerance,
        torch_loaded,
        min_cosine=min_cosine,
        torch_wanted=any(v.backend in PACKAGES for v in manifest.variants),
        texts=tuple(generated),
        emulated=emulated,
        lengths=_lengths_run(manifest, cases if ran_here else ()),
        reference=describe_reference(cases),
    )


def _emulated(
    bundle: Path,
    cases: Path,
    variant: Variant,
    refused: str,
    emulate: bool,
    tell: Callable[[str], None],
) -> tuple[Emulator, dict[str, Any]] | str:
    """The answer of :func:`run_selftest` from an emulator, or why there is none.

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
        name = path.stem.partition("-")[2]
        travels = name in (*GOLDEN_CASES, ROWS) or name.startswith(STEP)
        if travels and not (golden / path.name).exists():
            os.link(path, golden / path.name)
    try:
        with EmulatedModel(bundle, variant.name, emulator) as model:
            results = run_cases(model, str(golden))
    except UnsupportedHostError as error:
        return f"{why}; {emulator.name}: {error.message}"
    return emulator, {"cases": results, "imported": []}


def _lengths_run(manifest: Manifest, cases: Sequence[Case]) -> LengthsRun | None:
    """The number of the bundle's lengths that the cases have."""
    axis = manifest.length_axis
    if axis is None:
        return None
    total = end = 0
    for lo, hi in sorted((b.axes[axis].lo, b.axes[axis].hi) for b in manifest.buckets):
        total += max(0, hi - max(end, lo - 1))  # buckets may overlap
        end = max(end, hi)
    shapes = [{name: array.shape for name, array in case.inputs.items()} for case in cases]
    return LengthsRun(axis, len({axis_sizes(manifest, item)[axis] for item in shapes}), total)


def _text(variant: str, entry: Mapping[str, Any]) -> TextResult:
    prompt, tokens, ties = (int(entry.get(name) or 0) for name in ("prompt", "tokens", "ties"))
    error = str(entry.get("error") or "")
    return TextResult(variant, prompt, tokens, ties, bool(entry["ok"]), error)


def _result(
    variant: str,
    entry: Mapping[str, Any],
    least: float | None,
    cases: Mapping[tuple[int, str], Case],
) -> CaseResult:
    """One case of the self-test's answer, judged by its cosine too."""
    case = cases.get((int(entry["bucket"]), str(entry["case"])))
    cosine = None if entry.get("cosine") is None else float(entry["cosine"])
    error, worst = str(entry.get("error") or ""), dict(entry)
    far = least is not None and cosine is not None and cosine < least
    if far and not error:
        error = f"cosine {cosine:.6f}, at least {least:g} is asked for"
    if case is not None and case.limits and entry["outputs"]:
        judged = [{**entry["outputs"][name], "limit": m} for name, m in case.limits.items()]
        worst = max(judged, key=lambda output: output["max_abs_error"] / output["limit"])
        if worst["max_abs_error"] > worst["limit"] and not error:
            far = True
            error = "differs by {max_abs_error:.3g}, at most {limit:.3g} is allowed".format(**worst)
    for name, least in (case.cosines if case is not None else {}).items():
        own = (entry["outputs"] or {}).get(name, {}).get("cosine")
        if own is not None and own < least and not error:
            far = True
            error = f"{name} has a cosine of {own:.6f}, at least {least:.6f} is allowed"
    if error and case is not None and case.open:
        error += f"; eager has several answers here, {OPEN}"
    return CaseResult(
        variant=variant,
        bucket=int(entry["bucket"]),
        case=str(entry["case"]),
        # None where the run itself failed.
        max_abs_error=_number(worst["max_abs_error"]),
        scale=_number(worst["scale"]),
        ok=bool(entry["ok"]) and not far,
        error=error,
        cosine=cosine,
        limit=worst["limit"],
        rounding=max(case.rounding.values(), default=None) if case is not None else None,
    )


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


RUNTIME_COMMAND = "edgecompile.runtime"


def _manifest(bundle: Path) -> Manifest:
    return parse_manifest((bundle / MANIFEST_NAME).read_bytes(), str(bundle))


def runtime_command(bundle: Path) -> str:
    """The module that ``python -m`` runs a bundle with: the runtime, or the one that brings torch."""
    manifest = _manifest(bundle)
    packages = [PACKAGES[v.backend] for v in manifest.variants if v.backend in PACKAGES]
    return packages[0] if packages else RUNTIME_COMMAND


def device_environment(bundle: Path) -> dict[str, str]:
    """The environment of a process that runs a bundle as a device would, by its own runtime.

    Variables that change Python's or the runtime's behaviour stay behind: the result must not
    depend on who builds. But a new bundle has no signatures, so the builder's word on them holds.
    """
    rest = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "EDGECOMPILE_"))}
    return {
        **rest,
        **trust_environment(),
        "PYTHONPATH": str((bundle / "runtime").resolve()),
        "PYTHONDONTWRITEBYTECODE": "1",  # the bundle's folder is what ships
    }


def run_selftest(
    bundle: Path, cases: Path, variant: str, python: str = sys.executable
) -> dict[str, Any]:
    """Runs the bundle's own self-test command on a folder of cases.

    Returns:
        Its JSON; or {"refused": the reason} where this host can't run the variant.

    Raises:
        VerificationError: the process died, or failed otherwise.
    """
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
    if "error" in answer:
        failure = answer["error"]
        raise VerificationError(
            f"the bundle's runtime failed with variant {variant}: {failure['message']}",
            hint=failure["hint"],
        )
    return answer
