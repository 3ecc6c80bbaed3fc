"""A bundle that brings an engine: finish tests and takes it, on FAKES of TensorRT and CUDA."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.fake_gpu.bundles import FOLDER, TABLE
from tests.fake_gpu.rig import Rig

pytest.importorskip("onnxruntime")

WHOLE = {"input_ids": [[1, 1], [1, 64], [2, 64]], "attention_mask": [[1, 1], [1, 64], [2, 64]]}
BUILD = """
import json, sys
from pathlib import Path
from fake_plans import build_plan
Path(sys.argv[2]).write_bytes(build_plan(sys.argv[1], json.loads(sys.argv[3])))
"""
DESCRIBE = """
import json
from edgecompile.runtime.gpu.cuda import Cuda
from edgecompile.runtime.gpu.device import describe_device
print(json.dumps(describe_device(Cuda.load()).key_json()))
"""
RUN = """
import json, sys
import numpy as np
from edgecompile.runtime import open_bundle
with open_bundle(sys.argv[1], mode=sys.argv[2]) as model:
    for length in (1, 7, 32, 33, 64):
        ids = np.arange(length, dtype=np.int64)[None] % 100
        found = model.run({"input_ids": ids, "attention_mask": np.ones_like(ids)})
        print(json.dumps(found["embedding"].tolist()))
"""


def run(rig: Rig, program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(
        command, env=rig.environment, cwd=rig.folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_engine(
    rig: Rig, *, add: float = 0.0, cast: bool = False, profiles: list[Any] | None = None
) -> bytes:
    """An engine of the bundle's model for the rig's device, its outputs called output0, output1.

    ``add``: what its table is off by; ``cast``: an output comes as float16.
    """
    folder = rig.folder / "made"
    folder.mkdir(exist_ok=True)
    for name in ("model.onnx", "weights.fp16"):
        (folder / name).write_bytes(rig.bundle.files[FOLDER + name])
    model = onnx.load(str(folder / "model.onnx"))
    if add:
        table = next(item for item in model.graph.initializer if item.name == "table")
        table.CopyFrom(onnx.numpy_helper.from_array(TABLE + add, "table"))
    for index, output in enumerate(model.graph.output):
        old, output.name = output.name, f"output{index}"
        if cast and index == 0:
            kind = onnx.TensorProto.FLOAT16
            output.type.tensor_type.elem_type = kind
            model.graph.node.add(op_type="Cast", input=[old], output=["output0"])
            model.graph.node[-1].attribute.append(onnx.helper.make_attribute("to", kind))
        else:
            model.graph.node.add(op_type="Identity", input=[old], output=[output.name])
    onnx.save(model, str(folder / "renamed.onnx"))
    paths = [str(folder / name) for name in ("renamed.onnx", "engine.plan")]
    run(rig, BUILD, *paths, json.dumps(profiles or [WHOLE]))
    return (folder / "engine.plan").read_bytes()


#: The engine of every rig, made once.
_MADE: list[bytes] = []


@pytest.fixture
def rig(tmp_path: Path, fake_cudart_path: Path) -> Rig:
    """A fake device; its bundle brings an engine of one profile that was built on it."""
    rig = Rig(tmp_path, fake_cudart_path)
    if not _MADE:
        _MADE.append(make_engine(rig))
    ship(rig, _MADE[0])
    return rig


def ship(rig: Rig, engine: bytes) -> None:
    rig.bundle.add_engine(rig.bundle.recipe, engine)
    rig.bundle.recipe["engine"]["device"] = json.loads(run(rig, DESCRIBE))
    rig.log.unlink(missing_ok=True)


def test_it_is_tested_and_taken(rig: Rig) -> None:
    done = rig.finish()
    report = done.report
    assert report["state"] == "finished" and report["attempts"] == []
    assert report["built"] == {"made_by": "a test", "profiles": 1}
    assert report["profile_of"] == [0, 0]
    assert report["selftest"]["ok"] and report["selftest"]["modes"] == [
        *("planned", "default", "reduce-overhead")
    ]
    assert "the bundle brings an engine of this device, by a test" in done.stderr
    assert rig.calls("Builder") == []
    assert rig.names() == ["engine", "stamp.json"]
    assert rig.finish().report["state"] == "already finished"
    assert rig.calls("deserialize_cuda_engine") != []
    for mode in ("planned", "default", "reduce-overhead"):
        lines = run(rig, RUN, str(rig.bundle.folder), mode).splitlines()
        for length, line in zip((1, 7, 32, 33, 64), lines, strict=True):
            wanted = TABLE[:length].sum(axis=0)
            assert json.loads(line) == [pytest.approx([*wanted, *wanted], abs=1e-4)]


def test_nothing_serves_before_it_was_tested(rig: Rig) -> None:
    path = rig.bundle.write()
    program = "import sys; from edgecompile.runtime import open_bundle; open_bundle(sys.argv[1])"
    command = [sys.executable, "-c", program, path]
    done = subprocess.run(command, env=rig.environment, capture_output=True, text=True)
    assert "UnfinishedBundleError" in done.stderr


def test_what_people_are_told(rig: Rig) -> None:
    rig.bundle.write()
    command = [item for item in rig.command() if item != "--json"]
    done = subprocess.run(
        command, env=rig.environment, cwd=rig.folder, capture_output=True, text=True
    )
    assert "finished: jetson-orin for NVIDIA Jetson Orin Nano" in done.stdout
    assert "1 profiles, made by a test" in done.stdout


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("driver", "12.4"),
        pytest.param("tensorrt", "10.3.1", marks=pytest.mark.slow),
        pytest.param("name", "Another", marks=pytest.mark.slow),
        pytest.param("sm_count", 9, marks=pytest.mark.slow),
        pytest.param("integrated", False, marks=pytest.mark.slow),
    ],
)
def test_another_device_builds_its_own(rig: Rig, key: str, value: object) -> None:
    rig.bundle.recipe["engine"]["device"][key] = value
    done = rig.finish()
    assert done.report["built"]["profiles"] == 2 and rig.calls("Builder") != []
    (note,) = [item for item in done.report["notes"] if "another device's" in item]
    assert f"{key} was {value}, is " in note


@pytest.mark.parametrize(
    "option",
    [
        ("--force",),
        pytest.param(("--level", "1"), marks=pytest.mark.slow),
        pytest.param(("--workspace", "99999999"), marks=pytest.mark.slow),
    ],
)
def test_one_that_is_asked_for_is_built(rig: Rig, option: tuple[str, ...]) -> None:
    assert rig.finish_before().report["built"]["profiles"] == 1
    done = rig.finish(*option)
    assert done.report["built"]["profiles"] == 2
    assert "another one is built, as asked for" in done.stderr


def test_a_wrong_engine_is_not_served(rig: Rig) -> None:
    ship(rig, make_engine(rig, add=1.0))
    done = rig.finish()
    assert done.code == 27 and "isn't served" in done.stderr
    assert "finish again with --force, which builds one from the ONNX" in done.stderr
    assert rig.names() == []
    assert rig.finish("--force").report["built"]["profiles"] == 2
    assert rig.finish().report["state"] == "already finished"


def test_an_engine_of_other_outputs(rig: Rig) -> None:
    ship(rig, make_engine(rig, cast=True))
    done = rig.finish()
    assert done.code == 29 and "has the outputs embedding float16, states float32" in done.stderr
    ship(rig, make_engine(rig))
    rig.bundle.recipe["engine"]["tensors"]["embedding"] = "logits"
    rig.bundle.write()
    done = rig.finish()
    assert done.code == 29 and "has the outputs output0 float32, states float32" in done.stderr


def test_an_engine_of_fewer_profiles_than_said(rig: Rig) -> None:
    rig.bundle.recipe["engine"]["profile_of"] = [0, 1]
    done = rig.finish()
    assert done.code == 29 and "has 1 profiles, must have 2" in done.stderr


def test_a_profile_for_each_bucket(rig: Rig) -> None:
    least = {name: [[1, 1], [1, 16], [2, 32]] for name in WHOLE}
    most = {name: [[1, 33], [1, 64], [2, 64]] for name in WHOLE}
    ship(rig, make_engine(rig, profiles=[most, least]))
    rig.bundle.recipe["engine"]["profile_of"] = [1, 0]
    report = rig.finish().report
    assert report["profile_of"] == [1, 0] and report["built"]["profiles"] == 2


def test_a_damaged_engine(rig: Rig) -> None:
    rig.bundle.write()
    path = rig.bundle.folder / (FOLDER + "engine-0.plan")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    done = rig.finish()
    assert done.code == 22 and "engine-0.plan" in done.stderr and "[file-hash]" in done.stderr
    assert rig.names() == []


def test_killed_before_the_test(rig: Rig) -> None:
    rig.kill_at("deserialize_cuda_engine:1")
    assert rig.names() == ["built.json", "engine"]
    done = rig.finish()
    assert "built before, not tested yet" in done.stderr and done.report["profile_of"] == [0, 0]
    assert rig.calls("Builder") == [] and rig.names() == ["engine", "stamp.json"]
