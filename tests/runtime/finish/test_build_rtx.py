"""The runtime's own build_engines against real bindings of TensorRT: those of TensorRT-RTX.

They are built from the same source as a Jetson's: names, order of calls, kinds of answers, the
logger and the monitor are TensorRT's here, not the fake's. What is built runs nowhere here.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.onnx_files.weights import write_onnx
from edgecompile.runtime.finish.engine_build import BuildJob, EngineJob
from edgecompile.runtime.format.recipe.schema import ShapeRange
from tests.onnx_files.onnx_graphs import graph_of

REPOSITORY = Path(__file__).resolve().parents[3]
# One input is used by nothing, as a model's token types often are.
GRAPH = """agraph (int64[n,m] ids, int64[n,m] unused) => (float[n,m,8] found, float[n,8] y) {
  found = Gather(table, ids)
  y = ReduceSum<keepdims=0>(found, axis)
}"""
BUILD = """
import json, sys
import tensorrt_rtx_bindings
sys.modules["tensorrt"] = tensorrt_rtx_bindings
from edgecompile.runtime.finish.engine_build import BuildJob, build_engines
from edgecompile.runtime.gpu.log import BuildFailure
told = []
answer = {"told": told, "version": tensorrt_rtx_bindings.__version__}
try:
    answer["result"] = build_engines(BuildJob.from_json(json.load(sys.stdin)), told.append)
except BuildFailure as failure:
    answer["failed"] = [str(failure), failure.memory]
print("\\nANSWER " + json.dumps(answer))
"""


@pytest.fixture
def job(tmp_path: Path) -> BuildJob:
    table = np.arange(800, dtype=np.float32).reshape(100, 8)
    graph = graph_of(GRAPH, table=table, axis=np.array([1]))
    write_onnx(graph, tmp_path / "model.onnx", tmp_path / "weights.fp32")
    shapes = [ShapeRange((1, 1), (1, 8), (2, 32)), ShapeRange((1, 64), (1, 64), (2, 64))]
    profiles = tuple({"ids": item, "unused": item} for item in shapes)
    return BuildJob(
        engines=(EngineJob(str(tmp_path / "model.onnx"), profiles, None),),
        workspace_bytes=1 << 26,
        optimization_level=3,
        timing_cache=str(tmp_path / "timing.cache"),
        output=str(tmp_path / "engine.tmp"),
    )


def build(python: str, job: BuildJob, **changes: Any) -> dict[str, Any]:
    """The result, error and progress of build_engines in a process of its own."""
    request = {**job.to_json(), **changes}
    done = subprocess.run(
        [python, "-c", BUILD],
        input=json.dumps(request),
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    # TensorRT may print lines of its own.
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    answer: dict[str, Any] = json.loads(line[len("ANSWER ") :])
    return answer


def test_a_build(rtx_python: str, job: BuildJob) -> None:
    answer = build(rtx_python, job)
    assert "failed" not in answer, answer["failed"]
    data = Path(job.output).read_bytes()
    result = answer["result"]
    assert (result["size"], result["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert len(data) > 1000 and result["seconds"] > 0
    for message in answer["told"]:
        progress = message["progress"]
        assert progress["phase"] and 0 <= progress["fraction"] <= 1
    assert answer["told"], "the monitor was told nothing"
    again = build(rtx_python, job, output=job.output + "2")
    assert again["result"]["size"] > 1000


def test_profiles_that_it_refuses(rtx_python: str, job: BuildJob) -> None:
    (engine,) = job.to_json()["engines"]
    profile = engine["profiles"][0]
    wrong = {**profile, "ids": {"min": [1, 9], "opt": [1, 8], "max": [2, 32]}}
    answer = build(rtx_python, job, engines=[{**engine, "profiles": [profile, wrong]}])
    text, memory = answer["failed"]
    assert "refuses the optimization profile 1" in text and not memory
    assert not Path(job.output).exists()


def test_an_operator_that_it_lacks(rtx_python: str, job: BuildJob, tmp_path: Path) -> None:
    text = "agraph (float[n,24] x) => (float[n,24] y) { a = Abs(x)\n y = Bernoulli(a) }"
    write_onnx(graph_of(text), tmp_path / "bad.onnx", tmp_path / "bad.weights")
    (engine,) = job.to_json()["engines"]
    answer = build(rtx_python, job, engines=[{**engine, "onnx": str(tmp_path / "bad.onnx")}])
    assert "TensorRT's parser refuses the ONNX" in answer["failed"][0]
    assert "Bernoulli" in answer["failed"][0] and not answer["failed"][1]
