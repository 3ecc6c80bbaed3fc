"""A bundle with TensorRT's recipe and programs of Triton kernels, on FAKES of TensorRT, CUDA and its driver."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fake_gpu.bundles import FOLDER
from tests.fake_gpu.numpy_engine import embed
from tests.fake_gpu.rig import REPOSITORY, Rig, wait_for_pause
from tests.fake_gpu.triton_bundle import VARIANT, TritonBundle
from tests.runtime.bundles import make_case, pack_weights
from tests.runtime.golden_files import write_case

ENGINE = "jetson-orin"
RUN = """
import json, sys
import numpy as np
from edgecompile.runtime import open_bundle
with open_bundle(sys.argv[1], finish=len(sys.argv) > 2) as model:
    ids = np.arange(7, dtype=np.int64)[None]
    found = model.run({"input_ids": ids, "attention_mask": np.ones_like(ids)})
    info = model.info
    print(json.dumps([info["variant"], info["refused_variants"], found["embedding"].tolist()]))
"""


def make_onnx() -> tuple[bytes, bytes]:
    """(model.onnx, its weights) of what Triton's toy program computes."""
    import onnx

    helper, types = onnx.helper, onnx.TensorProto
    header = {"one": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    weights = pack_weights(json.dumps(header).encode(), np.ones(1, "<f4").tobytes())
    one = onnx.TensorProto(name="one", data_type=types.FLOAT, dims=[1])
    one.data_location = types.EXTERNAL
    place = {"location": "weights.fp16", "offset": str(len(weights) - 4), "length": "4"}
    for key, value in place.items():
        one.external_data.add(key=key, value=value)
    axis = [helper.make_tensor(f"axis{i}", types.INT64, [1], [i]) for i in (1, 2)]
    nodes = [
        helper.make_node("Mul", ["input_ids", "attention_mask"], ["kept"]),
        helper.make_node("Cast", ["kept"], ["ids"], to=types.FLOAT),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=types.FLOAT),
        helper.make_node("ReduceSum", ["ids", "axis1"], ["sum"], keepdims=1),
        helper.make_node("ReduceSum", ["mask", "axis1"], ["count"], keepdims=1),
        helper.make_node("ReduceMax", ["ids", "axis1"], ["largest"], keepdims=1),
        helper.make_node("Sub", ["sum", "sum"], ["zero"]),
        helper.make_node("Add", ["zero", "one"], ["ones"]),
        helper.make_node("Concat", ["sum", "count", "largest", "ones"], ["embedding"], axis=1),
        helper.make_node("Unsqueeze", ["ids", "axis2"], ["left"]),
        helper.make_node("Unsqueeze", ["mask", "axis2"], ["right"]),
        helper.make_node("Concat", ["left", "right"], ["states"], axis=2),
    ]
    value, words = helper.make_tensor_value_info, ["batch", "length"]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [value(name, types.INT64, words) for name in ("input_ids", "attention_mask")],
        [
            value("embedding", types.FLOAT, ["batch", 4]),
            value("states", types.FLOAT, [*words, 2]),
        ],
        [one, *axis],
    )
    opset = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=9)
    return model.SerializeToString(), weights


@pytest.fixture
def both(rig: Rig, fake_driver_path: Path) -> TritonBundle:
    """The bundle, in the rig's place."""
    made = TritonBundle(rig.bundle.folder, "TOY_ARCH=87")
    made.gpu.update(compute_capabilities=["8.7"])
    bundle = made.bundle
    bundle.add_tensorrt()
    bundle.document["variants"][-1].update(arch=made.variant["arch"])
    onnx, weights = make_onnx()
    bundle.files.update({FOLDER + "model.onnx": onnx, FOLDER + "weights.fp16": weights})
    bundle.write()
    rig.environment["EDGECOMPILE_CUDA_DRIVER"] = str(fake_driver_path)
    return made


def serve(rig: Rig, *arguments: str) -> tuple[str, dict[str, list[str]]]:
    """(the variant that serves, why others don't), in a process of its own."""
    command = [sys.executable, "-c", RUN, str(rig.bundle.folder), *arguments]
    done = subprocess.run(
        command, env=rig.environment, cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    variant, refused, found = json.loads(done.stdout)
    ids = np.arange(7)[None]
    want = embed({"input_ids": ids, "attention_mask": np.ones_like(ids)})["embedding"]
    np.testing.assert_allclose(found, want)
    return variant, refused


def describe(rig: Rig) -> dict[str, Any]:
    """What ``info`` says."""
    command = [
        sys.executable,
        "-m",
        "edgecompile.runtime",
        "info",
        str(rig.bundle.folder),
        "--json",
    ]
    done = subprocess.run(
        command, env=rig.environment, cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    verdicts = {item["name"]: item["verdict"] for item in report["variants"]}
    return {"chosen": report["chosen"], **verdicts}


def set_times(rig: Rig, engine: float, programs: float) -> None:
    """Other times in the engine's stamp."""
    (folder,) = rig.engines
    stamp = json.loads((folder / "stamp.json").read_text())
    stamp["compared"]["ms"] = {ENGINE: engine, VARIANT: programs}
    (folder / "stamp.json").write_text(json.dumps(stamp))


def test_triton_serves_until_the_engine_is_there_and_then_what_is_faster(
    rig: Rig, both: TritonBundle
) -> None:
    variant, refused = serve(rig)
    assert variant == VARIANT and "isn't ready" in refused[ENGINE][0]
    told = describe(rig)
    assert told["chosen"] == VARIANT and "no finished engine" in told[ENGINE]

    report = rig.finish().report
    assert report["state"] == "finished" and not report["notes"]
    times = report["compared"]["ms"]
    assert set(times) == {ENGINE, VARIANT} and min(times.values()) > 0
    assert report["compared"]["rival"]["name"] == VARIANT
    assert serve(rig)[0] == min(times, key=times.__getitem__)
    # Nothing is measured again.
    assert rig.finish().report["compared"] == report["compared"]

    set_times(rig, 0.5, 0.75)
    assert serve(rig)[0] == ENGINE
    told = describe(rig)
    assert told["chosen"] == ENGINE and told[ENGINE].startswith("finished: ")
    set_times(rig, 0.75, 0.5)
    variant, refused = serve(rig)
    assert variant == VARIANT
    assert refused[ENGINE] == [
        f"is slower here: a run takes 0.750 ms, of {VARIANT} 0.500, as finish measured"
    ]
    told = describe(rig)
    assert told["chosen"] == VARIANT and told[ENGINE] == refused[ENGINE][0]


def test_triton_serves_while_the_engine_is_built(rig: Rig, both: TritonBundle) -> None:
    pause = rig.folder / "paused"
    with rig.start(FAKE_TRT_PAUSE=f"build_serialized_network:1:{pause}") as child:
        wait_for_pause(pause, child)
        variant, refused = serve(rig)
        assert variant == VARIANT and "isn't ready" in refused[ENGINE][0]
        assert child.poll() is None
        pause.unlink()
        report = json.loads(child.communicate()[0])
    assert report["state"] == "finished" and rig.names() == ["engine", "stamp.json"]


def test_the_engine_serves_where_the_driver_is_too_old_for_the_programs(
    rig: Rig, both: TritonBundle
) -> None:
    both.gpu["driver"] = 13000
    both.write()
    report = rig.finish().report
    assert report["compared"] is None
    assert "needs a driver for CUDA 13.0" in " ".join(report["notes"])
    assert serve(rig)[0] == ENGINE


def test_programs_that_are_wrong_are_not_taken(rig: Rig, both: TritonBundle) -> None:
    # The engine's tolerance lets both golden values pass, the programs' own doesn't.
    for bucket, length in ((0, 7), (1, 40)):
        inputs = make_case(length)[0]
        outputs = {name: array * (1 + 1e-5) for name, array in embed(inputs).items()}
        both.bundle.files[f"golden/{bucket}-hint.npz"] = write_case(inputs, outputs)
    both.write()
    report = rig.finish().report
    assert set(report["compared"]["ms"]) == {ENGINE}
    assert f"the variant {VARIANT} fails 2 golden vectors" in " ".join(report["notes"])
    assert serve(rig)[0] == ENGINE


def test_opening_finishes_it_where_that_is_asked_for(rig: Rig, both: TritonBundle) -> None:
    serve(rig, "finish")
    assert rig.names() == ["engine", "stamp.json"]
    (folder,) = rig.engines
    assert "compared" in json.loads((folder / "stamp.json").read_text())
