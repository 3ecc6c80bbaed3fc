"""Branches that are settled and weights that are rearranged, whatever nodes are called."""

import numpy as np
import pytest
from onnx import helper

from edgecompile.errors import ModelError
from edgecompile.onnx_import import folding
from edgecompile.onnx_import.importer import import_onnx
from tests.onnx_import.graphs import compare, model, run_imported, save, value

_RANDOM = np.random.default_rng(4)
_NODE = helper.make_node
_X = _RANDOM.standard_normal((2, 3)).astype(np.float32)


def _weights(*names, shape=(3, 3)):
    return {name: _RANDOM.standard_normal(shape).astype(np.float32) for name in names}


def _branch(nodes, output, tensors=None):
    graph = helper.make_graph(nodes, output, [], [value(output, None)])
    for name, array in (tensors or {}).items():
        graph.initializer.append(helper.make_tensor(name, 1, array.shape, array.flatten()))
    return graph


def _if(name, output, then):
    other = _branch([_NODE("Neg", ["x"], ["n"])], "n")
    return _NODE("If", ["yes"], [output], name=name, then_branch=then, else_branch=other)


def _compared(nodes, tensors, folder):
    tensors = {**tensors, "yes": np.array(True)}
    proto = model(nodes, [value("x", [2, 3])], [value("y", None)], tensors)
    compare(proto, {"x": _X}, folder)


@pytest.mark.parametrize("names", [("a", "a/1"), ("", "MatMul_0")])
def test_layers_keep_their_weights_whatever_their_names(names, tmp_path):
    nodes = [
        _NODE("MatMul", ["x", "v"], ["h"], name=names[0]),
        _NODE("MatMul", ["h", "w"], ["y"], name=names[1]),
    ]
    _compared(nodes, _weights("v", "w"), tmp_path)


def test_an_initializer_may_have_the_name_of_rearranged_weights(tmp_path):
    nodes = [_NODE("MatMul", ["x", "w"], ["h"], name="mm"), _NODE("Add", ["h", "mm/1"], ["y"])]
    _compared(nodes, {**_weights("w"), **_weights("mm/1", shape=(2, 3))}, tmp_path)


def test_a_branch_without_names_keeps_its_weights(tmp_path):
    then = _branch([_NODE("MatMul", ["x", "w"], ["t"])], "t")
    nodes = [
        _NODE("MatMul", ["x", "v"], ["h"]),
        _if("", "b", then),
        _NODE("Add", ["h", "b"], ["y"]),
    ]
    _compared(nodes, _weights("v", "w"), tmp_path)


# ONNX Runtime refuses nodes of one name.
def test_nodes_of_one_name_keep_their_values(tmp_path):
    tensors, parts = _weights("v", "w"), [_weights("c", shape=(2, 3)) for _ in "ab"]
    nodes = [
        _if("same", output, _branch([_NODE("Add", ["x", "c"], ["t"])], "t", part))
        for output, part in zip("ab", parts, strict=True)
    ]
    nodes += [
        _NODE("MatMul", ["a", "v"], ["c"], name="same"),
        _NODE("MatMul", ["b", "w"], ["d"], name="same"),
        _NODE("Sub", ["c", "d"], ["y"], name="same"),
    ]
    tensors["yes"] = np.array(True)
    proto = model(nodes, [value("x", [2, 3])], [value("y", None)], tensors)
    [given] = run_imported(save(proto, tmp_path), {"x": _X})
    wanted = (_X + parts[0]["c"]) @ tensors["v"] - (_X + parts[1]["c"]) @ tensors["w"]
    np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-5)


def test_names_the_node_that_can_not_be_prepared(tmp_path):
    tensors = {**_weights("w", shape=(1, 6, 3)), **_weights("r", shape=(1, 6, 2))}
    node = _NODE(
        "GRU", ["x", "w", "r"], ["y"], name="gru", hidden_size=2, activations=["Sin", "Tanh"]
    )
    nodes = [node]
    proto = model(nodes, [value("x", [4, 1, 3])], [value("y", None)], tensors)
    with pytest.raises(ModelError, match=r"the ONNX node 'gru' \(GRU\).*the activation sin"):
        import_onnx(save(proto, tmp_path))


def test_names_the_node_without_a_branch(tmp_path):
    node = _if("if", "y", _branch([_NODE("Neg", ["x"], ["t"])], "t"))
    del node.attribute[:]
    proto = model([node], [value("x", [2, 3])], [value("y", None)], {"yes": np.array(True)})
    with pytest.raises(ModelError, match=r"the ONNX node 'if' \(If\).*no then_branch"):
        import_onnx(save(proto, tmp_path))


def test_a_branch_that_can_not_be_folded_keeps_no_weights_from_others(tmp_path):
    then = _branch(
        [
            _NODE("MatMul", ["x", "w"], ["m"]),
            _NODE("Gather", ["w", "far"], ["g"]),
            _NODE("Add", ["m", "g"], ["t"]),
        ],
        "t",
    )
    nodes = [
        _NODE("Shape", ["x"], ["s"]),
        _NODE("Gather", ["s", "nought"], ["rows"]),
        _NODE("Less", ["rows", "nought"], ["yes"]),
        _if("if", "b", then),
        _NODE("MatMul", ["x", "w"], ["h"]),
        _NODE("Add", ["h", "b"], ["y"]),
    ]
    tensors = {**_weights("w"), "far": np.array(99), "nought": np.array(0)}
    proto = model(nodes, [value("x", ["length", 3])], [value("y", None)], tensors)
    compare(proto, {"x": _X}, tmp_path)


@pytest.mark.parametrize(
    "node",
    [
        _NODE("Concat", ["c", "c"], ["big"], axis=0),
        _NODE("Gather", ["c", "c_"], ["big"]),
        _NODE("Einsum", ["c", "c"], ["big"], equation="i,j->ij"),
    ],
)
def test_a_small_file_makes_no_large_weights(node, tmp_path, monkeypatch):
    monkeypatch.setattr(folding, "_MOST_PRODUCT", 100)
    tensors = {"c": np.ones(90, np.float32), "c_": np.zeros((90, 2), np.int64)}
    nodes = [node, _NODE("ReduceSum", ["big"], ["s"], keepdims=0), _NODE("Add", ["x", "s"], ["y"])]
    proto = model(nodes, [value("x", [2])], [value("y", None)], tensors)
    module = import_onnx(save(proto, tmp_path)).module
    assert max(p.numel() for p in module.parameters()) == 90
