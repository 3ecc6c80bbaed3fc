"""docs/python.md: its examples run, one after the other, and its tables name what there is."""

from __future__ import annotations

import dataclasses
import re
import runpy
from pathlib import Path

import pytest

import edgecompile
from tests.project.test_docs import DOCS, blocks, rows

PAGE = DOCS / "python.md"


def test_groups_of_options_are_complete() -> None:
    for argument, name, held in rows(PAGE, "argument"):
        group = getattr(edgecompile, name.strip("`"))
        fields = {field.name for field in dataclasses.fields(group)}
        assert argument == "`" + name.strip("`").replace("Options", "").lower() + "_options`"
        # Of how a model is loaded, these are arguments of their own.
        assert set(re.findall(r"`(\w+)`", held)) == fields - {"batch", "max_length"}


@pytest.mark.slow
def test_the_examples_run(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all-MiniLM-L6-v2").symlink_to(tiny_model)
    program = tmp_path / "page.py"
    program.write_text("\n".join(blocks(PAGE, "python")))
    runpy.run_path(str(program))
    printed = capsys.readouterr().out
    assert "<Bundle net.ecb: " in printed and "(1, 12)" in printed
    assert "<Plan of length 1–500 exact" in printed
    assert "run the bundle: done in" in printed and "\nTrue " in printed
    assert "dynamic" in printed
    assert "without `example_inputs` | give tensors" in printed
    assert {"net.ecb", "encoder.ecb", "plan.json", "plan.html"} <= set(
        path.name for path in tmp_path.iterdir()
    )


@pytest.mark.slow
def test_the_plan_and_the_exports_for_torch_tensorrt_run(tmp_path: Path) -> None:
    """Its last example, which needs a GPU, is left out."""
    program = tmp_path / "page.py"
    program.write_text("\n".join(blocks(DOCS / "torch-tensorrt.md", "python")[:2]))
    made = runpy.run_path(str(program))
    (bucket,), (exported,) = made["plan"].buckets, made["programs"]
    ranges = sorted(
        (int(span.lower), int(span.upper)) for span in exported.range_constraints.values()
    )
    assert ranges == [(1, 8), (1, 300)] and bucket.serves({"batch": 8, "length": 300})
