"""finish builds an engine for each graph where a model takes several ways by its length."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.fake_gpu.bundles import FOLDER, TABLE, run_eager
from tests.fake_gpu.rig import Rig
from tests.finish.outcome import serve
from tests.runtime.bundles import LENGTHS
from tests.runtime.golden_files import write_case


def twice_as_much(data: bytes) -> bytes:
    """The model, with each of its outputs doubled."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load_from_string(data)
    for node in model.graph.node:
        names = [
            f"{name}_once" if name in ("embedding", "states") else name for name in node.output
        ]
        node.output[:] = names
        node.input[:] = ["states_once" if name == "states" else name for name in node.input]
    for name in ("embedding", "states"):
        once = [f"{name}_once", f"{name}_once"]
        model.graph.node.append(onnx.helper.make_node("Add", once, [name], f"{name}-twice"))
    return bytes(model.SerializeToString())


def add_side(rig: Rig, *buckets: int) -> None:
    """A second graph, which gives twice as much, for these buckets."""
    bundle = rig.bundle
    bundle.files[FOLDER + "side.onnx"] = twice_as_much(bundle.files[FOLDER + "model.onnx"])
    side = {"onnx": "side.onnx", "opset": 20, "strongly_typed": True, "buckets": list(buckets)}
    bundle.recipe["sides"] = [side]
    for bucket in buckets:
        inputs, outputs = run_eager(LENGTHS[bucket], bucket)
        twice = {name: 2 * array for name, array in outputs.items()}
        bundle.files[f"golden/{bucket}-hint.npz"] = write_case(inputs, twice)


@pytest.mark.parametrize("bucket", [0, 1])
def test_each_bucket_runs_in_the_engine_of_its_graph(bucket: int, rig: Rig) -> None:
    add_side(rig, bucket)
    report = rig.finish().report
    # The graph of the other bucket comes first in the file.
    assert report["profile_of"] == ([1, 0] if bucket == 0 else [0, 1])
    assert {item["bucket"] for item in report["selftest"]["cases"]} == {0, 1}
    stamp = json.loads((Path(report["engine"]["path"]).parent / "stamp.json").read_text())
    sizes = stamp["engine"]["plans"]
    assert len(sizes) == 2 and sum(sizes) == report["engine"]["size"]
    done = serve(rig, [3, 40])
    assert done.returncode == 0, done.stderr
    for index, (length, line) in enumerate(zip((3, 40), done.stdout.splitlines(), strict=True)):
        total = TABLE[np.arange(length) % 100].sum(axis=0) * (2 if index == bucket else 1)
        np.testing.assert_allclose(json.loads(line), [[*total, *total]], rtol=1e-5)
    assert rig.finish().report["state"] == "already finished"


def test_a_graph_that_is_wrong_isn_t_served(rig: Rig) -> None:
    add_side(rig, 1)
    inputs, outputs = run_eager(LENGTHS[1], 1)  # what the other graph would give
    rig.bundle.files["golden/1-hint.npz"] = write_case(inputs, outputs)
    done = rig.finish()
    assert done.code == 27 and "bucket 1 " in done.stderr and rig.names() == []


def test_plans_that_don_t_fill_the_file_aren_t_served(rig: Rig) -> None:
    add_side(rig, 1)
    path = Path(rig.finish().report["engine"]["path"]).parent / "stamp.json"
    stamp = json.loads(path.read_text())
    stamp["engine"]["plans"][0] += 1
    path.write_text(json.dumps(stamp))
    assert "its engines aren't those of the recipe" in serve(rig, [3]).stderr
