"""build, verify, plan and explain from end to end, on a module that compiles within seconds."""

from __future__ import annotations

import json
import warnings
from html import escape
from pathlib import Path

import numpy as np
import pytest
import torch

import edgecompile
from edgecompile.errors import VerificationError
from edgecompile.units import sentence
from tests.api.tiny import AXES, EXAMPLE, Tiny, program

TARGET = "cpu-x86-64-v3"


@pytest.fixture(scope="module")
def module() -> Tiny:
    return Tiny().train()


@pytest.fixture(scope="module")
def events() -> list[edgecompile.ProgressEvent]:
    return []


@pytest.fixture(scope="module")
def bundle(
    module: Tiny,
    events: list[edgecompile.ProgressEvent],
    tmp_path_factory: pytest.TempPathFactory,
) -> edgecompile.Bundle:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)  # a caller's screen shows none of torch's
        return edgecompile.build(
            module,
            example_inputs=EXAMPLE,
            axes=AXES,
            lengths=np.array([3, 5, 9, 16]),
            quick=True,
            target=TARGET,
            output=tmp_path_factory.mktemp("api") / "tiny",
            progress=events.append,
        )


def test_a_module_becomes_a_bundle(bundle: edgecompile.Bundle, module: Tiny) -> None:
    assert bundle.path.name == "tiny.ecb" and bundle.path.is_dir()
    assert bundle.size_bytes > 10_000 and len(bundle.sha256) == 64 and bundle.cases > 5
    assert [(b.lo, b.hi, b.mode) for b in bundle.plan.buckets] == [(1, 16, "exact")]
    assert module.training and module.drop.training, "it is left as it was"
    x = torch.randn(1, 7, 8)
    with bundle.open() as model:
        got = model.run({"x": x.numpy()})["output"]
    with torch.no_grad():
        want = Tiny.forward(module.eval(), x).numpy()
    module.train()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    with edgecompile.open_bundle(bundle.path) as model:
        np.testing.assert_array_equal(model.run({"x": x.numpy()})["output"], got)


def test_progress_is_told(
    bundle: edgecompile.Bundle, events: list[edgecompile.ProgressEvent]
) -> None:
    steps = list(dict.fromkeys(event.step for event in events))
    assert steps[:2] == ["read the lengths", "check what is needed"] and "export" in steps
    assert "export and plan" in steps, "a quick build measures nothing"
    for step in steps:
        kinds = [event.kind for event in events if event.step == step]
        assert kinds[0] == "start" and kinds[-1] == "end"
    assert str(events[-1]).startswith(f"{steps[-1]}: done in")


def test_results_show_themselves(bundle: edgecompile.Bundle) -> None:
    assert repr(bundle).startswith(f"<Bundle {bundle.path}: ")
    count = len(bundle.notes)
    assert "1 program, verified in" in repr(bundle) and count > 0
    assert repr(bundle).endswith(f" cases, {count} note{'s' * (count > 1)}>")
    assert repr(bundle.plan) == "<Plan of length 1–16 exact>"
    page = bundle._repr_html_()
    assert "<table>" in page and "1–16" in page and "<html" not in page
    assert all(escape(sentence(note)) in page for note in bundle.notes)
    assert json.loads(json.dumps(bundle.to_json()))["sha256"] == bundle.sha256


def test_verify_against_the_module_and_the_golden_vectors(
    bundle: edgecompile.Bundle, module: Tiny, tmp_path: Path
) -> None:
    golden = edgecompile.verify(bundle)
    fresh = bundle.verify(module, example_inputs=EXAMPLE, axes=AXES, seed=7)
    assert golden.ok and fresh.ok and len(fresh.report.results) > len(golden.report.results)
    assert repr(fresh).startswith("<Verification of tiny.ecb: agrees, ")
    assert "Against eager" in fresh._repr_html_()
    assert fresh.write_report(tmp_path / "page.html").read_text().startswith("<!")
    with pytest.raises(FileNotFoundError):
        fresh.write_report(tmp_path / "missing" / "page.html")
    torch.manual_seed(5)
    other = Tiny()
    with pytest.raises(VerificationError) as caught:
        edgecompile.verify(bundle, other, example_inputs=EXAMPLE, axes=AXES)
    assert "with the same weights?" in str(caught.value.hint)
    wrong = bundle.verify(other, example_inputs=EXAMPLE, axes=AXES, check=False)
    assert not wrong.ok and "DIFFERS" in repr(wrong) and not wrong.to_json()["ok"]


@pytest.mark.slow  # the test of plans builds one too
def test_an_exported_program_becomes_a_bundle(tmp_path: Path) -> None:
    made = program()
    bundle = edgecompile.build(
        made, lengths={3: 2, 16: 1}, quick=True, target=TARGET, output=tmp_path / "exported.ecb"
    )
    x = torch.randn(1, 7, 8)
    with bundle.open() as model:
        got = model.run({"x": x.numpy()})["output"]
    np.testing.assert_allclose(got, made.module()(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_callback_that_raises_ends_the_build(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(event: edgecompile.ProgressEvent) -> None:
        if event.step == "export":
            raise Stop

    with pytest.raises(Stop):
        edgecompile.build(
            program(), lengths=[5], quick=True, target=TARGET, output=tmp_path / "m", progress=stop
        )
    assert list(tmp_path.iterdir()) == []


def test_a_plan_is_made_saved_and_built(tmp_path: Path) -> None:
    options = edgecompile.PlanOptions(max_buckets=2)
    plan = edgecompile.plan(program(), lengths=[3, 5, 16], target=TARGET, plan_options=options)
    assert plan.buckets[-1].hi == 16 and plan.expected_ms and plan.judgement is not None
    assert "mean run" in repr(plan) and "<svg" in plan._repr_html_()
    assert plan.to_json()["policies"] and plan.notes
    assert f", {len(plan.notes)} note" in repr(plan)
    file = plan.save(tmp_path / "plan.json")
    assert plan.write_report(tmp_path / "plan.html").is_file()
    bundle = edgecompile.build(
        program(), lengths=[3, 5, 16], plan=file, target=TARGET, output=tmp_path / "planned"
    )
    assert bundle.plan.buckets == plan.buckets


def test_an_explanation(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        explanation = edgecompile.explain(Tiny(), example_inputs=EXAMPLE, axes=AXES, max_length=16)
    assert not any(item.category is UserWarning for item in shown), "torch gives one of oneDNN"
    assert explanation.verdict == "dynamic" and explanation.summary in repr(explanation)
    assert "<table>" in explanation._repr_html_()
    assert explanation.to_json()["verdict"] == "dynamic"
    assert explanation.write_report(tmp_path / "why.html").is_file()
