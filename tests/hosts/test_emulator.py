"""Builds for CPUs that this machine hasn't: what qemu runs was verified, and the rest says that it was
not run. Neither needs a Python of the other architecture.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
from pathlib import Path

import numpy as np
import pytest

from edgecompile.bundle.cases import Case
from edgecompile.bundle.verdict import check_report
from edgecompile.bundle.verify import verify_bundle
from edgecompile.errors import NativeError, VerificationError
from edgecompile.hosts.emulator import EmulatedModel, Emulator, emulator_for, find_emulator
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.pipeline.result import BuildResult
from edgecompile.planning.request import PlanRequest
from edgecompile.targets.profile import load_variant
from tests.cli.command import run
from tests.needs import need, need_aarch64_compiler

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="cross builds start from x86-64"),
]


@pytest.fixture(scope="module")
def request_(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> BuildRequest:
    need_aarch64_compiler()
    folder = tmp_path_factory.mktemp("pi")
    lengths = LengthDistribution.from_samples([3, 4, 9, 9, 41])
    return BuildRequest(
        model=str(tiny_model),
        target="raspberry-pi-5",
        plan=PlanRequest(lengths, buckets=1, mode="exact", cut=True),
        output=folder / "pi.ecb",
        work_dir=folder / "work",
    )


@pytest.fixture(scope="module")
def made(request_: BuildRequest) -> BuildResult:
    need("qemu-aarch64", "qemu-user")
    return build(request_)


def test_a_foreign_bundle_passed_its_golden_vectors(made: BuildResult) -> None:
    report = json.loads((made.bundle_path / "reports" / "verify.json").read_text())
    assert report["ok"] is True and report["not_executed"] == {}
    assert report["emulated"]["aarch64-dotprod"].startswith("qemu-aarch64 ")
    manifest = json.loads((made.bundle_path / "manifest.json").read_text())
    golden = {(item["bucket"], item["case"]) for item in manifest["golden"]}
    ran = {(item["bucket"], item["case"]) for item in report["results"]}
    assert ran == golden == {(0, "lower"), (0, "hint"), (0, "upper")}
    assert {item["variant"] for item in report["results"]} == {"aarch64-dotprod"}
    assert all(item["max_abs_error"] < 1e-5 < item["scale"] for item in report["results"])
    assert manifest["built_by"]["verified"].startswith("aarch64-dotprod: run under qemu-aarch64 ")
    assert any("passed the golden vectors under qemu-aarch64" in note for note in made.notes)
    # Texts over the limit count as cut, and the build says so.
    assert any("20.0 % of the texts have more than 40 tokens" in note for note in made.notes)
    assert manifest["axes"]["length"]["hi"] == 40


@pytest.mark.slow
def test_its_own_hosts_runs_are_the_same(made: BuildResult, arm64_python: str) -> None:
    """The C runtime under qemu, and an emulated Python: the same outputs bit for bit."""
    from tests.hosts.emulation import report_of, selftest

    report = report_of(selftest((arm64_python,), made.bundle_path, "cortex-a76", "--json"))
    with_python = {item["case"]: item["max_abs_error"] for item in report["cases"]}
    with_c = {item.case: item.max_abs_error for item in made.verify.results}
    assert with_python == with_c


def golden_case(bundle: Path) -> Case:
    """The first golden vector."""
    with np.load(bundle / "golden" / "0-lower.npz") as arrays:
        sides = [
            {key[len(side) :]: arrays[key] for key in arrays.files if key.startswith(side)}
            for side in ("in.", "out.")
        ]
    return Case(0, "lower", *sides)


def test_a_wrong_result_is_seen(made: BuildResult) -> None:
    good = golden_case(made.bundle_path)
    outputs = {name: array + 0.01 for name, array in good.outputs.items()}
    wrong = dataclasses.replace(good, outputs=outputs)
    report = verify_bundle(made.bundle_path, [wrong], ["aarch64-dotprod"], made.verify.tolerance)
    assert not report.ok and [r.ok for r in report.results] == [False]
    with pytest.raises(VerificationError, match="aarch64-dotprod, bucket 0, lower"):
        check_report(report, packing=True)


def test_what_fails_there_is_said(made: BuildResult, tmp_path: Path) -> None:
    emulator = find_emulator("aarch64")
    assert emulator is not None
    case = golden_case(made.bundle_path)
    with EmulatedModel(made.bundle_path, "aarch64-dotprod", emulator) as model:
        first = model.run_bucket(0, case.inputs)
        with pytest.raises(NativeError, match="input_ids"):
            model.run_bucket(0, {**case.inputs, "input_ids": case.inputs["input_ids"] + 1000})
        again = model.run_bucket(0, case.inputs)
        assert all(np.array_equal(first[name], again[name]) for name in case.outputs)
        model._process.kill()
        with pytest.raises(NativeError, match="was killed by signal 9"):
            model.run_bucket(0, case.inputs)
    damaged = tmp_path / "damaged.ecb"
    shutil.copytree(made.bundle_path, damaged)
    program = next(damaged.glob("code/aarch64-dotprod/bucket-0.so"))
    program.write_bytes(program.read_bytes()[:-1] + b"x")
    with (
        EmulatedModel(damaged, "aarch64-dotprod", emulator) as model,
        pytest.raises(NativeError, match=r"bucket-0\.so"),
    ):
        model.run_bucket(0, case.inputs)


def test_a_lesser_emulated_cpu_isn_t_asked(
    made: BuildResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QEMU_CPU", "cortex-a53")
    found = emulator_for(load_variant("aarch64-dotprod"))
    assert isinstance(found, str) and "asimddp" in found
    assert isinstance(emulator_for(load_variant("aarch64-neon")), Emulator)
    case = golden_case(made.bundle_path)
    report = verify_bundle(made.bundle_path, [case], ["aarch64-dotprod"], made.verify.tolerance)
    assert report.results == () and report.to_json()["ok"] is None
    assert "is for aarch64" in report.not_executed["aarch64-dotprod"]
    with pytest.raises(VerificationError, match="no variant of the bundle can run"):
        check_report(report)
    check_report(report, packing=True)


def test_avx512_has_no_emulator() -> None:
    need("qemu-x86_64", "qemu-user")
    found = emulator_for(load_variant("x86-64-v4"))
    assert isinstance(found, str) and "avx512f" in found
    assert isinstance(emulator_for(load_variant("x86-64-v3")), Emulator)


def test_without_an_emulator_a_bundle_says_that_it_wasn_t_run(
    request_: BuildRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for tool in Path(folder).glob("*"):
            if not tool.name.startswith("qemu-") and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    monkeypatch.setenv("PATH", str(tools))
    result = build(dataclasses.replace(request_, output=tmp_path / "unrun.ecb"))
    report = json.loads((result.bundle_path / "reports" / "verify.json").read_text())
    assert report["ok"] is None and report["results"] == [] and report["emulated"] == {}
    assert "install qemu-user" in report["not_executed"]["aarch64-dotprod"]
    note = next(note for note in result.notes if "built, not run" in note)
    assert "install qemu-user" in note and "run selftest on the device" in note
    shown = run("inspect", str(result.bundle_path))
    assert "aarch64-dotprod: not run, is for aarch64, this is x86-64" in " ".join(
        shown.stdout.split()
    )
    assert len(list(result.bundle_path.glob("golden/*.npz"))) == 3  # the device repeats them
    again = run("verify", str(result.bundle_path))
    assert again.exit_code == 39 and "nothing was verified" in again.stderr


def test_emulation_can_be_declined(request_: BuildRequest, tmp_path: Path) -> None:
    request = dataclasses.replace(
        request_,
        output=tmp_path / "unrun.ecb",
        plan=dataclasses.replace(request_.plan, emulation=False),
    )
    result = build(request)
    assert result.verify.results == ()
    assert "emulation is off" in result.verify.not_executed["aarch64-dotprod"]
