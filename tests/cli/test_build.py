"""The command build, and its stages one by one."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.bundle.names import bundle_name
from edgecompile.cli.terminal.build_view import next_step
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.targets.profile import load_target
from tests.cli.command import run
from tests.factories import tiny_models

#: For what a build says whatever the model is.
SMALL = f"{tiny_models.__file__}:masked_mlp"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("/models/minilm", "minilm"),
        ("/models/minilm/", "minilm"),
        ("net.py:make_model", "make_model"),
        ("package.module:factory", "factory"),
        ("saved/encoder.pt2", "encoder"),
        ("vad.v5.onnx", "vad.v5"),
        ("smol.Q4_0.gguf", "smol.Q4_0"),
        ("/models/my model (v2)", "my-model-v2"),
        ("/", "model"),
    ],
)
def test_bundle_names(model: str, name: str) -> None:
    assert bundle_name(model) == name


@pytest.mark.parametrize(
    ("target", "backend", "expected"),
    [
        ("cpu-x86-64", "cpu", "Next: python3 'out dir/a.ecb' selftest"),
        (
            "raspberry-pi-5",
            "auto",
            "Next: copy 'out dir/a.ecb' to the device, and there: python3 a.ecb selftest",
        ),
        (
            "jetson-orin-nano",
            "both",
            "Next: copy 'out dir/a.ecb' to the device, and there: python3 a.ecb finish",
        ),
        (
            "cpu-x86-64",
            "torch",
            "Next: python3 -m edgecompile.torch_runtime selftest 'out dir/a.ecb'",
        ),
        (
            "jetson-orin-nano",
            "triton",
            "Next: copy 'out dir/a.ecb' to the device, and there: python3 a.ecb selftest",
        ),
    ],
)
def test_what_to_type_next(target: str, backend: str, expected: str) -> None:
    assert next_step(load_target(target), Path("out dir/a.ecb"), backend) == expected


def test_verbose_prints_the_defaults_too(files: Path) -> None:
    (files / "m.py").write_text("def make(): raise ValueError('stop here')")
    arguments = ("build", "m.py:make", "--lengths", "lengths.txt")
    plain, full = (run(*arguments, *more).stderr.split("\n\n")[0] for more in ((), ("-v",)))
    assert [line.split()[0] for line in plain.splitlines()] == [
        "model",
        "target",
        "lengths",
        "output",
    ]
    assert "seed" in full and "one for each CPU" in full and "as many as pay" in full


def test_build_prints_the_path_of_a_verified_bundle(files: Path) -> None:
    (files / "short.csv").write_text("length,count\n3,5\n9,20\n20,4\n")
    arguments = ["build", SMALL, "--lengths", "short.csv", "--max-length", "24"]
    result = run(*arguments, "--target", "cpu-x86-64-v3", "-o", "out/tiny", "--jobs", "1")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "out/tiny.ecb\n"
    assert [path.name for path in (files / "out").iterdir()] == ["tiny.ecb"]
    shown = re.search(r"^  sha256 +([0-9a-f]{64})  manifest.json$", result.stderr, re.MULTILINE)
    assert shown is not None
    digest = hashlib.sha256((files / "out/tiny.ecb/manifest.json").read_bytes()).hexdigest()
    assert shown.group(1) == digest
    order = ["read the lengths", "load the model", "plan", "export", "compile", "pack"]
    places = [result.stderr.index(f" {step}") for step in order]
    assert result.stderr.startswith("  model") and "29 inputs, 3 to 20" in result.stderr
    asked = [line.split()[0] for line in result.stderr.split("\n\n")[0].splitlines()]
    assert asked == ["model", "target", "lengths", "output", "max-length", "jobs"]
    assert result.stderr.endswith("\n\n  Next: python3 out/tiny.ecb selftest\n")
    assert places == sorted(places)
    again = run(*arguments, "-o", "out/tiny.ecb")
    assert again.exit_code == 40 and "--force" in again.stderr


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("--plan plan.json --quick --buckets 2", "--quick, --buckets: --plan leaves nothing"),
        ("--plan plan.json --mode pad", "--mode: --plan leaves nothing to choose"),
        (
            "--quick --max-buckets 2 --max-size 1MB --max-build-time 9s --price-per-bucket 1 --runs 9 "
            "--calibration c.json --measure-again",
            "--max-buckets, --max-size, --max-build-time, --price-per-bucket, --runs, --calibration, "
            "--measure-again: --quick leaves nothing to choose",
        ),
    ],
)
def test_what_is_decided_already_can_not_be_decided_otherwise(
    files: Path, tiny_model: Path, given: str, says: str
) -> None:
    bucket = Bucket("exact", (("length", AxisRange(1, 40, 9)),))
    (files / "plan.json").write_text(json.dumps(BucketPlan("length", (bucket,)).to_json()))
    result = run("build", str(tiny_model), "--lengths", "lengths.txt", *given.split())
    assert result.exit_code == 2 and says in " ".join(result.stderr.split())


def test_a_plan_that_is_none_ends_a_build_at_its_start(files: Path, tiny_model: Path) -> None:
    (files / "plan.json").write_text('{"buckets": []}')
    for file, says in (("plan.json", "plan.json"), ("absent.json", "there is no plan absent.json")):
        result = run("build", str(tiny_model), "--lengths", "lengths.txt", "--plan", file)
        assert result.exit_code == 34 and says in result.stderr and result.stdout == ""
    (files / "bad.csv").write_text("length,count")
    result = run("build", str(tiny_model), "--lengths", "lengths.txt", "--plan", "bad.csv")
    assert "hint: edgecompile plan --output FILE writes one" in result.stderr


def test_a_quick_build_and_a_build_from_a_plan(files: Path, tiny_model: Path) -> None:
    """Neither measures; the bundle of the first has a plan without costs, and pages all the same."""
    (files / "short.csv").write_text("length,count\n3,5\n9,20\n20,4\n")
    arguments = ["build", str(tiny_model), "--lengths", "short.csv", "--max-length", "24"]
    arguments += ["--target", "cpu-x86-64-v3", "--work-dir", "work"]
    quick = run(*arguments, "--quick", "-o", "quick")
    assert quick.exit_code == 0, quick.stderr
    assert "nothing was measured" in quick.stderr
    reports = files / "quick.ecb" / "reports"
    plan = json.loads((reports / "plan.json").read_text())
    assert [(b["mode"], b["lo"], b["hi"]) for b in plan["buckets"]] == [("exact", 1, 24)]
    assert plan["cost_model"] is None and plan["expected_ms"] is None
    assert json.loads((files / "quick.ecb" / "manifest.json").read_text())["expected"] == {}
    page = (reports / "report.html").read_text()
    assert "Nothing was measured" in page and "Against eager" in page
    assert run("inspect", "quick.ecb", "--json").exit_code == 0
    given = run(*arguments, "--plan", str(reports / "plan.json"), "-o", "given", "--json")
    assert given.exit_code == 0, given.stderr
    assert json.loads(given.stdout)["plan"]["buckets"] == plan["buckets"]
    same = run(*arguments, "--plan", str(reports / "plan.json"), "-o", "given", "--json")
    assert json.loads(same.stdout)["unchanged"] is True
    edited = files / "edited.json"
    edited.write_text((reports / "plan.json").read_text().replace("cpu-x86-64-v3", "cpu-any"))
    refused = run(*arguments, "--plan", "edited.json", "-o", "other")
    assert refused.exit_code == 34 and "made for the target cpu-any" in refused.stderr


@pytest.mark.parametrize(
    "name", ["unmasked_mean", pytest.param("token_mlp", marks=pytest.mark.slow)]
)
def test_the_stages_take_no_plan_s_word_on_padding(files: Path, name: str) -> None:
    model, target = f"{tiny_models.__file__}:{name}", ("--target", "cpu-x86-64-v3")
    one = {"lo": 1, "hi": 24, "mode": "pad", "axes": {"batch": {"lo": 1, "hi": 1}}}
    padded = {"buckets": [one], "padding": "proven" if name == "unmasked_mean" else ""}
    (files / "padded.json").write_text(json.dumps(padded))
    # The same export, which as such serves one length.
    (files / "w").mkdir()
    single = {"buckets": [{**one, "lo": 24, "mode": "exact"}]}
    (files / "w" / "plan.json").write_text(json.dumps(single))
    given = ("-w", "w", "--plan", "padded.json")
    for stage in (
        ("export", model, "-w", "w"),
        ("compile", *given, "--precision", "fp32", *target),
    ):
        made = run(*stage)
        assert made.exit_code == 0, made.stderr
    packed = run("pack", model, *given, *target, "-o", "made.ecb")
    exported = run("export", model, *given)
    if name == "token_mlp":
        assert exported.exit_code == packed.exit_code == 0, exported.stderr + packed.stderr
        assert BundleFolder("made.ecb").manifest.plan["padding"] == "proven"
        return
    for refused in (exported, packed):
        assert refused.exit_code == 34 and "can't run in padded buckets" in refused.stderr
    assert not (files / "made.ecb").exists()


def test_the_stages_one_by_one(files: Path, tiny_model: Path) -> None:
    (files / "short.csv").write_text("length,count\n3,5\n9,20\n20,4\n")
    model, target = str(tiny_model), ("--target", "cpu-x86-64-v3")
    options = ("-w", "w", "--max-length", "24", "--buckets", "1")
    stage = run("plan", "short.csv", "--model", model, *target, *options)
    assert stage.exit_code == 0, stage.stderr
    stage = run("export", model, "-w", "w", "--json")
    assert stage.exit_code == 0, stage.stderr
    programs = json.loads(stage.stdout)["programs"]
    assert [Path(program["path"]).is_dir() for program in programs] == [True]
    stage = run("compile", "-w", "w", *target, "--json")
    assert stage.exit_code == 0, stage.stderr
    compiled = json.loads(stage.stdout)
    assert set(compiled) == {"target", "precision", "variants", "audit"}
    assert all(verdict["ok"] for verdict in compiled["audit"])
    stage = run("pack", model, "-w", "w", *target, "-o", "t.ecb", "--json")
    assert stage.exit_code == 0, stage.stderr
    packed = json.loads(stage.stdout)
    assert set(packed) >= {"bundle", "size_bytes", "sha256", "plan", "verify", "audit", "notes"}
    assert packed["bundle"] == "t.ecb" and packed["verify"]["ok"]
    softened = run("pack", model, "-w", "w", *target, "--pooling", "mean", "-o", "v.ecb")
    assert softened.exit_code == 36 and "exported from other files" in softened.stderr
    library = Path(compiled["variants"]["x86-64-v3"]["programs"][0]["library"])
    library.write_bytes(library.read_bytes() + b"x")
    changed = run("pack", model, "-w", "w", *target, "-o", "u.ecb")
    assert changed.exit_code == 36 and "changed since they were built" in changed.stderr
    assert not (files / "u.ecb").exists()


@pytest.mark.parametrize("command", ["build", "plan", "compile", "pack"])
def test_two_spellings_of_the_backend_that_differ_are_refused_before_work(
    command: str, tmp_path: Path
) -> None:
    folder = ["--work-dir", str(tmp_path / "work")]
    model = {"build": ["no.py:model"], "plan": ["--model", "no.py:model"], "pack": ["no.py:model"]}
    options = ["--runtime", "torch", "--backend", "cpu", "--json"]
    result = run(command, *model.get(command, []), *folder, *options)
    assert result.exit_code == 2
    said = json.loads(result.stdout)["error"]
    assert said["message"] == "--runtime torch and --backend cpu contradict each other"
    assert list(tmp_path.iterdir()) == []


def test_the_old_spelling_of_the_backend_is_understood_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("3\n")
    options = ["--lengths", str(tmp_path / "lengths.txt"), "--target", "jetson-orin"]
    result = run("build", SMALL, *options, "--runtime", "torch")
    assert result.exit_code == 2
    text = " ".join(result.stderr.split())
    assert "--runtime is the old spelling of --backend hint: give --backend torch" in text
    assert "jetson-orin does not support --backend torch" in text
    # Nothing is said to who doesn't use it, and --help doesn't offer it.
    assert "--runtime" not in run("build", "--help").output
