"""Other CPUs under qemu, for tests: interpreters, and what they run with a bundle's own runtime."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import one_at_a_time
from tests.emulated import leave_no_core, run_emulated
from tests.needs import need, need_aarch64_compiler

if TYPE_CHECKING:
    from edgecompile.buckets.plan import BucketPlan

#: (variant, qemu's CPU): the least CPU that qemu knows for each variant.
X86 = (("x86-64-v2", "Nehalem"), ("x86-64-v3", "Haswell"))
ARM = (("aarch64-neon", "cortex-a53"), ("aarch64-dotprod", "cortex-a76"))
#: No emulator here runs AVX-512; the tests of this machine's own CPU cover it where it can.
NOT_EMULATED = "x86-64-v4"


def interpreter(variant: str, request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The command that runs an emulated Python for the variant's architecture."""
    if variant.startswith("aarch64"):
        return (request.getfixturevalue("arm64_python"),)
    return (need("qemu-x86_64", "qemu-user"), request.getfixturevalue("device_python"))


def run(
    command: Sequence[str], bundle: Path, cpu: str, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs an emulated Python on ``cpu`` with the runtime that the bundle brings."""
    environment = {
        **os.environ,
        "QEMU_CPU": cpu,
        "PYTHONPATH": str(bundle / "runtime"),
        "PYTHONDONTWRITEBYTECODE": "1",
        # numpy's OpenBLAS takes the host's kernels on some hosts, which the emulated CPU can't run.
        **({"OPENBLAS_CORETYPE": cpu} if cpu in dict(X86).values() else {}),
        **(variables or {}),
    }
    environment.pop("EDGECOMPILE_VARIANT", None)
    return run_emulated(command, env=environment, cwd=bundle, preexec_fn=leave_no_core)


def selftest(
    python: Sequence[str], bundle: Path, cpu: str, *options: str
) -> subprocess.CompletedProcess[str]:
    return run(
        [*python, "-m", "edgecompile.runtime", "selftest", str(bundle), *options], bundle, cpu
    )


def report_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON that a command printed; it must have succeeded."""
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def build_for_any(
    folder: Path,
    name: str,
    model: str,
    *,
    lengths: Sequence[int] = (3, 4, 4, 7, 9, 9, 9, 20, 31),
    longest: int = 32,
    plan: BucketPlan | None = None,
) -> Path:
    """A model for all five variants of cpu-any, once for all processes of a run.

    By ``plan``, where one is given: then nothing is measured. Else one program for all lengths.
    """
    from edgecompile.lengths.distribution import LengthDistribution
    from edgecompile.models.options import LoadOptions
    from edgecompile.pipeline.build import build
    from edgecompile.pipeline.request import BuildRequest
    from edgecompile.planning.request import PlanRequest

    need_aarch64_compiler()
    output = folder / f"{name}.ecb"
    chosen: dict[str, Any] = {"buckets": 1, "mode": "exact"} if plan is None else {"plan": plan}
    with one_at_a_time(folder / f"{name}.lock"):
        if not output.exists():
            build(
                BuildRequest(
                    model=model,
                    target="cpu-any",
                    plan=PlanRequest(
                        LengthDistribution.from_samples(lengths),
                        max_length=longest,
                        emulation=False,  # that is what the tests do
                        **chosen,
                    ),
                    output=output,
                    load=LoadOptions(batch=plan.extent("batch") if plan is not None else (1, 1)),
                    work_dir=folder / f"{name}.work",
                )
            )
    return output


def build_encoder_for_any(folder: Path, tiny_model: Path) -> Path:
    """A two-layer BERT so, in two buckets: matrix products, attention, layer norm, look-ups."""
    from tests.plans import exact_plan

    return build_for_any(folder, "encoder-any", str(tiny_model), plan=exact_plan(9, 32, batch=2))
