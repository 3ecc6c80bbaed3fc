"""What batches cost on parts of the CPUs: measured on the real bundle, and the points chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgecompile.planning.costs.serving import read_text_serving
from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import InputError
from edgecompile.runtime.format.manifest.schema import Extent
from edgecompile.runtime.measure.serving import (
    Point,
    batch_axis,
    choose_points,
    measure_serving,
    thread_counts,
)
from edgecompile.runtime.measure.texts import choose_sizes


def test_costs_of_every_point(native_bundle: str, tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    report = measure_serving(native_bundle, str(file), cpus=3, seconds=0)
    assert json.loads(file.read_text()) == report
    assert report["cpus"] == 3 and report["serving_version"] == 1
    with open_bundle(native_bundle, warmup=False) as model:
        counts = thread_counts(model, 3)
        assert counts == ([1, 2, 3] if model.info["run_threads"] else [3])
        wanted = choose_points(model.manifest, counts)
    assert [Point(*point[:3]) for point in report["points"]] == wanted
    assert all(ms > 0 for *_, ms in report["points"])


def test_points_are_powers_of_two_and_the_ends(native_bundle: str) -> None:
    with open_bundle(native_bundle, warmup=False) as model:
        manifest = model.manifest
    batch, length = batch_axis(manifest), str(manifest.length_axis)
    axes = {batch: Extent(1, 100, None), length: Extent(3, 600, None)}
    points = choose_points(manifest._replace(axes=axes), [1, 4])
    assert {p.threads for p in points} == {1, 4}
    assert {p.rows for p in points} == {1, 2, 4, 8, 16, 32}
    assert {3, 4, 6, 8, 12, 512, 600} <= {p.length for p in points}
    assert all(p.rows == 1 or p.rows * p.length <= 1024 for p in points)


def test_a_bundle_of_one_row_is_refused(native_bundle: str) -> None:
    with open_bundle(native_bundle, warmup=False) as model:
        manifest = model.manifest
    fixed = manifest._replace(
        inputs=[x._replace(shape=(1, *x.shape[1:])) for x in manifest.inputs],
        outputs=[x._replace(shape=(1, *x.shape[1:])) for x in manifest.outputs],
    )
    twice = "2*" + batch_axis(manifest)
    sums = manifest._replace(
        inputs=[x._replace(shape=(twice, *x.shape[1:])) for x in manifest.inputs],
        outputs=[x._replace(shape=(twice, *x.shape[1:])) for x in manifest.outputs],
    )
    for other in (fixed, sums):
        with pytest.raises(InputError, match="no batch of rows"):
            choose_points(other, [2])
    with pytest.raises(InputError, match="file of costs"):
        measure_serving(native_bundle, "/nowhere/costs.json", seconds=0)


def test_costs_of_texts(together_bundle: Path, tmp_path: Path) -> None:
    """Parts of prompts up to the longest run, and a token of each of one to all texts."""
    file = tmp_path / "costs.json"
    report = measure_serving(str(together_bundle), str(file), seconds=0)
    assert json.loads(file.read_text()) == json.loads(json.dumps(report))
    runs = report["texts"]
    assert "points" not in report and report["cpus"] >= 1
    assert [tokens for tokens, _ in runs["prompts"]] == [1, 2, 4, 8, 16, 24]
    assert [texts for texts, _ in runs["steps"]] == [1, 2, 3, 4]
    assert all(ms > 0 for _, ms in (*runs["prompts"], *runs["steps"]))
    assert runs["rows"] == 128 - 4 - 1
    serving = read_text_serving(together_bundle, file)
    assert serving is not None and serving.cpus == report["cpus"]
    assert serving.costs.longest == 24 and set(serving.costs.step_s) == {1, 2, 3, 4}


@pytest.mark.parametrize("texts", [0, 2, 8])
@pytest.mark.parametrize("context", [3, 4, 8, 9, 10, 4096])
def test_measured_texts_fit_into_the_context(texts: int, context: int) -> None:
    most, rows = choose_sizes(texts, context)
    assert 1 <= most <= max(1, texts) and rows >= 1
    assert rows + 1 + most <= context, "a token before the runs, and one behind each"
    assert most == max(1, texts) or rows == 1, "as many as there is room for"


def test_a_context_without_room_for_a_run_is_refused() -> None:
    with pytest.raises(InputError, match="the context has 2 tokens"):
        choose_sizes(4, 2)
