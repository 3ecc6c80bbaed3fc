"""ONNX files and their weights' container."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgecompile.onnx_files.graph import EXTERNAL_ABOVE, Place
from edgecompile.onnx_files.weights import load_graph, write_onnx
from edgecompile.runtime.format.files.weights import read_constants
from tests.onnx_files.onnx_graphs import graph_of, run

LARGE = np.arange(1000, dtype=np.float32).reshape(4, 250)
TEXT = """agraph (float[n,4] x) => (float[n,250] y, float[n,250] z) {
  y = MatMul(x, large)
  p = MatMul(x, tied)
  z = Add(p, small)
}"""


def test_large_initializers_lie_aligned_in_a_container(tmp_path: Path) -> None:
    graph = graph_of(TEXT, large=LARGE, tied=LARGE + 1, small=np.ones(250, np.float32))
    assert graph.tensors["small"].nbytes <= EXTERNAL_ABOVE
    path, weights = tmp_path / "model.onnx", tmp_path / "weights.fp32"
    write_onnx(graph, path, weights)
    # The bundle's own reader checks header, alignment and layout.
    with weights.open("rb") as file:
        found = {c.name: c for c in read_constants(file.fileno(), weights.stat().st_size, "w")}
    assert set(found) == {"large", "tied"}
    proto = onnx.load(str(path), load_external_data=False)
    for tensor in proto.graph.initializer:
        entries = {e.key: e.value for e in tensor.external_data}
        if tensor.name == "small":
            assert not entries
            continue
        constant = found[tensor.name]
        assert entries == {
            "location": "weights.fp32",
            "offset": str(constant.offset),
            "length": str(constant.nbytes),
        }
        assert constant.offset % 64 == 0
    read = load_graph(path)
    assert np.array_equal(read.tensors["tied"], LARGE + 1)


def test_equal_graphs_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        graph = graph_of(TEXT, large=LARGE, tied=LARGE + 1, small=np.ones(250, np.float32))
        write_onnx(graph, tmp_path / name / "m.onnx", tmp_path / name / "w")
    for file in ("m.onnx", "w"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_equal_initializers_are_stored_once(tmp_path: Path) -> None:
    graph = graph_of(TEXT, large=LARGE, tied=LARGE.copy(), small=np.ones(250, np.float32))
    graph.merge_equal_tensors()
    assert set(graph.tensors) == {"large", "small"}
    x = np.ones((2, 4), np.float32)
    got = run(graph, tmp_path, x=x)
    assert np.array_equal(got["z"], got["y"] + 1)


def test_tensors_that_differ_in_dtype_or_shape_alone_are_not_merged() -> None:
    graph = graph_of(
        "agraph (float[n] x) => (float[n] y) { y = Add(x, a) }",
        a=np.zeros(4, np.float32),
        b=np.zeros(4, np.int32),
        c=np.zeros((2, 2), np.float32),
    )
    graph.merge_equal_tensors()
    assert set(graph.tensors) == {"a", "b", "c"}


def test_what_nothing_needs_goes_and_what_an_inner_graph_takes_stays() -> None:
    graph = graph_of(
        """agraph (bool c, float[n] x) => (float[n] y) {
          a = Abs(x)
          b = Exp(x)
          y = If (c) <then_branch = g1 () => (float[n] t) { t = Add(a, w) },
                      else_branch = g2 () => (float[n] e) { e = Identity(x) }>
        }""",
        w=np.ones(1, np.float32),
        v=np.ones(1, np.float32),
    )
    graph.places["Exp:b"] = Place("gone")
    graph.drop_unused()
    assert [node.op_type for node in graph.nodes] == ["Abs", "If"]
    assert set(graph.tensors) == {"w"} and graph.places == {}


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_of(TEXT, large=LARGE, tied=LARGE + 1, small=np.ones(250, np.float32))
    path, weights = tmp_path / "m.onnx", tmp_path / "w"
    write_onnx(graph, path, weights)
    before = weights.read_bytes()

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError):
        write_onnx(graph, path, weights)
    assert weights.read_bytes() == before
    assert sorted(item.name for item in tmp_path.iterdir()) == ["m.onnx", "w"]
