"""build(): a tiny model all the way to a bundle that runs in a process without torch."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from edgecompile.buckets.plan import BucketPlan
from edgecompile.errors import (
    AuditError,
    BundleWriteError,
    CompileError,
    LengthsError,
    MissingKernelError,
    PlanError,
    TargetError,
    VerificationError,
)
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.load import load_model
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.pipeline.result import BuildResult
from edgecompile.planning.request import PlanRequest
from edgecompile.runtime import open_bundle
from tests.cli.command import run

LENGTHS = LengthDistribution.from_samples([2, 3, 5, 5, 8, 13, 13, 13, 21, 30])
#: Few programs to measure: short ones that hardly differ.
FEW = {"lengths": LengthDistribution.from_samples([2, 3, 3, 4]), "max_length": 4}
#: For what a build does whatever the model is.
SMALL = "tests.factories.tiny_models:masked_mlp"


def request(model: Path | str, folder: Path, **changes: object) -> BuildRequest:
    names = {field.name for field in dataclasses.fields(PlanRequest)}
    wanted = {name: changes.pop(name) for name in list(changes) if name in names}
    plan = PlanRequest(**{"lengths": LENGTHS, "max_length": 32, **wanted})  # type: ignore[arg-type]
    values = {"target": "cpu-x86-64-v3", "output": folder / "made.ecb", **changes}
    return BuildRequest(model=str(model), plan=plan, **values)  # type: ignore[arg-type]


def ids(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(3, 15, shape)


@pytest.fixture(scope="module")
def padded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    folder = tmp_path_factory.mktemp("padded")
    return build(request(tiny_model, folder, mode="pad", buckets=2, work_dir=folder / "work"))


def test_the_bundle_agrees_with_eager_at_every_length(tiny_bundle: Path, tiny_model: Path) -> None:
    eager = load_model(str(tiny_model), batch=(1, 2))
    with open_bundle(tiny_bundle) as model:
        assert len(model.manifest.buckets) == 3
        for length in range(1, 33):
            for batch in (1, 2):
                tokens = ids(batch, length)
                mask = np.ones_like(tokens)
                mask[-1, length // 2 + 1 :] = 0
                inputs = {"input_ids": tokens, "attention_mask": mask}
                got = model.run(inputs)
                want = eager.run({k: torch.from_numpy(v) for k, v in inputs.items()})
                assert set(got) == set(want)
                for name, value in want.items():
                    np.testing.assert_allclose(
                        got[name], value.numpy(), rtol=1e-4, atol=2e-5, err_msg=f"{name} {length}"
                    )


def test_padded_buckets_give_what_eager_gives_unpadded(
    padded: BuildResult, tiny_model: Path
) -> None:
    assert [b.mode for b in padded.plan.buckets] == ["pad"] * len(padded.plan.buckets)
    assert padded.verify.ok
    eager = load_model(str(tiny_model))
    with open_bundle(padded.bundle_path) as model:
        for length in (1, 2, 13, 14, 31, 32):
            inputs = {"input_ids": ids(1, length), "attention_mask": np.ones((1, length), int)}
            got = model.run(inputs)
            want = eager.run({k: torch.from_numpy(v) for k, v in inputs.items()})
            for name, value in want.items():
                assert got[name].shape == tuple(value.shape)
                np.testing.assert_allclose(got[name], value.numpy(), rtol=1e-4, atol=2e-5)


def test_a_device_without_torch_runs_its_self_test(tiny_bundle: Path, device_python: str) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    command = [device_python, str(tiny_bundle), "selftest", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["ok"]
    names = [(item["bucket"], item["case"]) for item in answer["cases"]]
    usual = ("hint", "lower", "upper", "rows", "equal-rows", "rows-alone")
    assert sorted(names) == sorted((bucket, name) for bucket in range(3) for name in usual)
    assert "torch" not in answer["imported"]


def test_stages_leave_their_files(padded: BuildResult) -> None:
    work = padded.bundle_path.parent / "work"
    assert {"lengths.json", "plan.json", "exported", "artifacts"} <= {
        p.name for p in work.iterdir()
    }
    assert json.loads((work / "plan.json").read_text())["buckets"]


def test_nothing_of_the_build_machine_is_in_the_bundle(tiny_bundle: Path) -> None:
    here = [str(Path(torch.__file__).parent).encode(), str(tiny_bundle.parent).encode()]
    here.append(str(Path(__file__).parents[2]).encode())
    for path in tiny_bundle.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not [h for h in here if h in data], path
    assert all(path.is_file() for path in tiny_bundle.rglob("__pycache__")), "there is byte code"


def test_the_verification_stands_in_the_bundle(tiny_bundle: Path) -> None:
    report = json.loads((tiny_bundle / "reports" / "verify.json").read_text())
    assert report["ok"] is True
    assert report["torch_loaded"] is False
    assert {r["bucket"] for r in report["results"]} == {0, 1, 2}
    cases = {r["case"] for r in report["results"] if r["bucket"] == 1}
    assert {"lower", "upper", "hint", "random0", "random1", "random2"} <= cases


def test_weights_are_stored_once(tiny_bundle: Path, tiny_model: Path) -> None:
    weights = (tiny_bundle / "weights.fp32").stat().st_size
    original = (tiny_model / "model.safetensors").stat().st_size
    # Three buckets, two variants, one copy; panels of 32 columns pad these tiny matrices.
    assert weights < 2 * original


def test_an_existing_bundle_is_replaced_only_by_force(tiny_model: Path, tmp_path: Path) -> None:
    output = tmp_path / "made.ecb"
    output.mkdir()
    (output / "precious").write_text("x")
    with pytest.raises(BundleWriteError, match="already there"):
        build(request(tiny_model, tmp_path))
    with pytest.raises(BundleWriteError, match="isn't a bundle"):
        build(request(tiny_model, tmp_path, force=True))
    assert (output / "precious").read_text() == "x"


def test_unknown_target(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="cpu-x86-64"):
        build(request(tiny_model, tmp_path, target="cpu-x86_64"))


def test_lengths_over_the_models_limit(tiny_model: Path, tmp_path: Path) -> None:
    long = LengthDistribution.from_samples([5, 41])
    with pytest.raises(LengthsError, match=r"50\.0 % of the lengths are over 40"):
        build(request(tiny_model, tmp_path, lengths=long, max_length=None))
    with pytest.raises(LengthsError, match="`max_length` is 41"):
        build(request(tiny_model, tmp_path, max_length=41))


def test_a_failed_verification_leaves_no_bundle(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgecompile.models.loaded import LoadedModel

    honest = LoadedModel.run

    def lying(self: LoadedModel, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: value + 0.01 for name, value in honest(self, inputs).items()}

    from edgecompile.pipeline import packing

    original = packing.make_cases

    def wrong_cases(*args: object, **kwargs: object) -> object:
        with monkeypatch.context() as patch:
            patch.setattr(LoadedModel, "run", lying)
            return list(original(*args, **kwargs))  # type: ignore[arg-type]

    monkeypatch.setattr(packing, "make_cases", wrong_cases)
    work = tmp_path / "work"
    # The second build finds the first one's programs, which may be to blame.
    for blames_the_model in (True, False):
        with pytest.raises(VerificationError, match="differ from eager") as caught:
            build(request(tiny_model, tmp_path, mode="exact", buckets=1, work_dir=work))
        assert "bucket 0, lower" in str(caught.value)
        assert list(tmp_path.iterdir()) == [work]
        hint = caught.value.hint or ""
        assert ("report the model" in hint) == blames_the_model
        assert ("another `work_dir`" in hint) != blames_the_model


def test_an_unfit_library_stops_the_build(tmp_path: Path) -> None:
    from edgecompile.targets.schema import search_path

    shipped = next(f for f in search_path() if (f / "cpu-x86-64-v3.toml").is_file())
    profile = (
        (shipped / "cpu-x86-64-v3.toml").read_text().replace('glibc = "2.34"', 'glibc = "2.5"')
    )
    shutil.copytree(shipped / "variants", tmp_path / "variants")
    (tmp_path / "old.toml").write_text(profile.replace("cpu-x86-64-v3", "old"))
    with pytest.raises(AuditError, match=r"needs glibc .*; old promises 2\.5"):
        wanted = {"target": str(tmp_path / "old.toml"), "mode": "exact", "buckets": 1}
        build(request(SMALL, tmp_path, **wanted))
    assert not (tmp_path / "made.ecb").exists()


def test_every_missing_kernel_is_listed(tmp_path: Path) -> None:
    source = tmp_path / "exotic.py"
    source.write_text(
        "import torch\n"
        "class M(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.linalg.qr(x @ x.mT)[1] + torch.cholesky_inverse(x @ x.mT)\n"
        "def make():\n"
        "    return {'module': M(), 'inputs': {'x': torch.randn(4, 3, 3)},\n"
        "            'axes': {'x': {0: 'length'}}, 'max_length': 32}\n"
    )
    with pytest.raises(MissingKernelError) as caught:
        build(request(f"{source}:make", tmp_path))
    assert "linalg_qr" in str(caught.value) and "cholesky_inverse" in str(caught.value)
    assert caught.value.exit_code == 37


STEP_BY_STEP = """
import torch

class StepByStep(torch.nn.Module):
    '''A loop in Python over the positions: tracing unrolls it, for one length.'''

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.table = torch.nn.Embedding(20, 32)
        self.cell = torch.nn.GRUCell(32, 8)

    def forward(self, ids, mask):
        vectors = self.table(ids)
        state = vectors.new_zeros(ids.shape[0], 8)
        for position in range(ids.shape[1]):
            new = self.cell(vectors[:, position], state)
            state = torch.where(mask[:, position, None] == 1, new, state)
        return torch.tanh(state)

def make():
    ones = torch.ones(1, 6, dtype=torch.int64)
    return {
        "module": StepByStep(),
        "inputs": {"ids": ones, "mask": ones},
        "axes": {"ids": {1: "length"}, "mask": {1: "length"}},
        "pad": {"ids": 0, "mask": 0},
        "bounds": {"ids": (0, 19), "mask": (0, 1)},
        "limits": {"length": (1, 6)},
    }
"""


@pytest.mark.slow
def test_a_model_that_has_no_dynamic_export_gets_padded_buckets(tmp_path: Path) -> None:
    source = tmp_path / "step_by_step.py"
    source.write_text(STEP_BY_STEP)
    lengths = LengthDistribution.from_samples([2, 3, 3, 5, 6])
    wanted = {"lengths": lengths, "max_buckets": 2, "max_length": None}
    result = build(request(f"{source}:make", tmp_path, **wanted))
    assert {b.mode for b in result.plan.buckets} == {"pad"}
    assert any("Padded programs, since" in note for note in result.notes)
    model_of = load_model(f"{source}:make")
    with open_bundle(result.bundle_path) as model:
        for length in range(1, 7):
            inputs = {"ids": ids(1, length), "mask": np.ones((1, length), np.int64)}
            got = model.run(inputs)
            want = model_of.run({k: torch.from_numpy(v) for k, v in inputs.items()})
            for name, value in want.items():
                np.testing.assert_allclose(got[name], value.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_variable_for_the_variant_does_not_reach_the_build(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGECOMPILE_VARIANT", "no-such-variant")
    assert build(request(tiny_model, tmp_path, **FEW)).verify.ok


def test_programs_of_another_plan_are_not_packed(padded: BuildResult) -> None:
    from edgecompile.backends.compilation import CompileOptions, compile_buckets
    from edgecompile.export.program import ExportedModel
    from edgecompile.targets.profile import load_target

    work = padded.bundle_path.parent / "work"
    marks = {
        json.dumps(json.loads(mark.read_text()), sort_keys=True): mark.parent
        for mark in (work / "exported").glob("*/done.json")
    }
    folders = [marks[json.dumps(b.program_json(), sort_keys=True)] for b in padded.plan.buckets]
    exported = [ExportedModel.load(folder) for folder in folders]
    profile, folder = load_target("cpu-x86-64-v3"), work / "artifacts"
    arguments = (exported, padded.plan.buckets, profile, folder, CompileOptions(only_known=True))
    keys = [folder.name for folder in folders]
    assert compile_buckets(*arguments, keys=keys).artifacts
    with pytest.raises(CompileError, match="bucket 1, x86-64-v3"):
        compile_buckets(*arguments, keys=[keys[0], "another"])


PERHAPS = """
import torch

class Perhaps(torch.nn.Module):
    '''Pools by a softmax whose mask is finite: right only as long as scores are small.'''

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.table = torch.nn.Embedding(20, 8)
        self.score = torch.nn.Linear(8, 1)

    def forward(self, ids, mask):
        x = self.table(ids)
        scores = self.score(x).squeeze(-1) + (1.0 - mask.to(x.dtype)) * -1e4
        return (scores.softmax(-1).unsqueeze(-1) * x).sum(1)

def make():
    ones = torch.ones(1, 6, dtype=torch.int64)
    return {
        "module": Perhaps(),
        "inputs": {"ids": ones, "mask": ones},
        "axes": {"ids": {1: "length"}, "mask": {1: "length"}},
        "pad": {"ids": 0, "mask": 0},
        "bounds": {"ids": (0, 19), "mask": (0, 1)},
        "limits": {"length": (1, 30)},
    }
"""


def test_padding_that_is_assumed_is_told_by_the_bundle(tmp_path: Path) -> None:
    source = tmp_path / "perhaps.py"
    source.write_text(PERHAPS)
    wanted = {"mode": "pad", "buckets": 1, "max_length": 30}
    with pytest.raises(
        PlanError, match=r"isn't proven harmless.*_softmax.*perhaps\.py:16"
    ) as error:
        build(request(f"{source}:make", tmp_path, **wanted))
    assert "`assume_paddable=True`" in str(error.value.hint)
    result = build(request(f"{source}:make", tmp_path, **wanted, assume_paddable=True))
    assert result.plan.padding == "assumed"
    assert any("Nothing proves that padding" in note for note in result.notes)
    with open_bundle(result.bundle_path) as model:
        assert model.manifest.plan["padding"] == model.info["padding"] == "assumed"
    document = json.loads(run("inspect", str(result.bundle_path), "--json").stdout)
    assert document["manifest"]["plan"]["padding"] == "assumed"
    assert "--assume-paddable" in run("inspect", str(result.bundle_path)).stdout


def test_padding_that_is_proven_is_told_by_the_bundle(padded: BuildResult) -> None:
    with open_bundle(padded.bundle_path) as model:
        assert model.manifest.plan["padding"] == "proven"
    assert BucketPlan.from_json(padded.plan.to_json()).padding == "proven"


@pytest.mark.slow
def test_each_answer_is_found_once_and_handed_on(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a build that tries precisions, measures and packs: scope, length support, padding, model."""
    from edgecompile.pipeline import stages
    from edgecompile.planning import length_support, padding, subject

    calls: Counter[str] = Counter()

    def counted(module: ModuleType, name: str) -> None:
        honest = getattr(module, name)

        def call(*arguments: object, **options: object) -> object:
            calls[name] += 1
            return honest(*arguments, **options)

        monkeypatch.setattr(module, name, call)

    counted(stages, "load_model")
    counted(subject, "plan_scope")
    counted(subject, "find_length_support")
    counted(subject, "runnable_variants")
    counted(length_support, "require_paddable")
    counted(padding, "check_padding")
    made = build(request(tiny_model, tmp_path, precision="auto", max_error=1.0, threads=1, **FEW))
    assert made.choice is not None and made.verify is not None and made.verify.ok
    padded = any(bucket.mode == "pad" for bucket in made.plan.buckets)
    assert calls.pop("check_padding") == 1 + padded  # once more for the plan, which may pad less
    assert set(calls.values()) == {1}, calls
