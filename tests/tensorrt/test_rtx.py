"""TensorRT-RTX: the real one where it is installed, and a fake interpreter that crashes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.errors import MissingDependencyError
from edgecompile.models.specs import InputSpec
from edgecompile.onnx.weights import write_onnx
from edgecompile.tensorrt.rtx import STATUS, bucket_profiles, check_rtx
from tests.onnx.int8.test_quantize import TWO, V, W
from tests.onnx.onnx_graphs import graph_of

pytestmark = pytest.mark.slow

X = InputSpec("x", "float32", ("length", 24))
BUCKETS = [Bucket("exact", (("length", AxisRange(lo, hi, hi)),)) for lo, hi in ((1, 8), (9, 40))]


def write(folder: Path, text: str = TWO) -> Path:
    graph = graph_of(text, w=W, v=V, b=np.ones(8, np.float32))
    graph.drop_unused()
    write_onnx(graph, folder / "m.onnx", folder / "m.weights")
    return folder / "m.onnx"


def test_profiles_are_the_buckets() -> None:
    fixed = InputSpec("fixed", "float32", (3,))
    assert bucket_profiles(BUCKETS, [X, fixed]) == [
        {"x": {"min": [1, 24], "opt": [8, 24], "max": [8, 24]}},
        {"x": {"min": [9, 24], "opt": [40, 24], "max": [40, 24]}},
    ]


def test_a_real_build_with_all_profiles(tmp_path: Path, rtx_python: str) -> None:
    report = check_rtx(write(tmp_path), bucket_profiles(BUCKETS, [X]), python=rtx_python)
    assert report.ok, report.errors
    assert report.status == STATUS == "built, not executed, not Jetson"
    assert report.profiles == 2 and report.engine_bytes and report.engine_bytes > 1000
    assert report.missing_inputs == ()
    assert report.to_json()["ok"] is True


def test_a_real_parse_that_fails_names_the_node(tmp_path: Path, rtx_python: str) -> None:
    path = write(
        tmp_path, "agraph (float[n,24] x) => (float[n,24] y) { a = Abs(x)\n y = Bernoulli(a) }"
    )
    report = check_rtx(path, bucket_profiles(BUCKETS, [X]), python=rtx_python)
    assert not report.ok and report.status == "not built: it failed at the stage 'parse'"
    first = report.errors[0]
    assert (first.node, first.operator) == ("Bernoulli:y", "Bernoulli")


def test_a_real_build_that_fails_says_why(tmp_path: Path, rtx_python: str) -> None:
    wrong = [{"x": {"min": [1, 23], "opt": [1, 23], "max": [1, 23]}}]
    report = check_rtx(write(tmp_path), wrong, python=rtx_python)
    assert not report.ok and report.errors
    assert report.status != STATUS


def test_a_crash_is_reported_with_the_stage(tmp_path: Path) -> None:
    fake = tmp_path / "fake-python"
    fake.write_text(
        f"#!{sys.executable}\n"
        '"""A fake interpreter: it has everything, parses, and is killed while it builds."""\n'
        "import json, os, pathlib, sys\n"
        "if '-c' in sys.argv: sys.exit(0)\n"
        "request = json.loads(pathlib.Path(sys.argv[-1]).read_text())\n"
        "answer = {'stage': 'build', 'version': '0', 'parse_seconds': 1.0}\n"
        "pathlib.Path(request['answer']).write_text(json.dumps(answer))\n"
        "print('no answer this is'); print('out of memory', file=sys.stderr, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    fake.chmod(0o755)
    report = check_rtx(write(tmp_path), [], python=str(fake))
    assert not report.ok and report.status == "not built: it failed at the stage 'build'"
    assert [str(e) for e in report.errors] == ["the process ended with -9: out of memory"]


def test_without_it_there_is_a_named_error(tmp_path: Path) -> None:
    fake = tmp_path / "fake-python"
    fake.write_text(f"#!{sys.executable}\nraise SystemExit(1)\n")
    fake.chmod(0o755)
    with pytest.raises(MissingDependencyError, match="TensorRT-RTX isn't installed"):
        check_rtx(tmp_path / "m.onnx", [], python=str(fake))
