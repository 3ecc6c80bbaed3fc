"""Arithmetic with sizes: types round and wrap as those of tensors do."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from edgecompile.errors import ModelError
from edgecompile.onnx_import import files
from edgecompile.onnx_import.importer import import_onnx
from tests.onnx_import.graphs import FLOAT, INT, compare, model, run_reference, save, value

_NODE = helper.make_node
_BYTE = TensorProto.UINT8
#: Constants of one node, and the type of its result.
_CONSTANTS = {
    "bytes wrap": ("Add", [np.uint8(250), np.uint8(10)], _BYTE),
    "bytes wrap below": ("Sub", [np.uint8(3), np.uint8(10)], _BYTE),
    "whole numbers wrap": ("Mul", [np.int64(2**62), np.int64(6)], INT),
    "parts are rounded": ("Mul", [np.float32(0.1), np.float32(30)], FLOAT),
    "a division by zero": ("Div", [np.float32(1), np.float32(0)], FLOAT),
    "a division of zero by zero": ("Div", [np.float32(0), np.float32(0)], FLOAT),
    "a large power": ("Pow", [np.int64(3), np.int64(39)], INT),
    "a power beyond float32": ("Pow", [np.float32(10), np.float32(60)], FLOAT),
    "the floor of no number": ("Floor", [np.float32(np.inf)], FLOAT),
    "a product": ("ReduceProd", [np.array([2**30, 2**30])], INT),
    "a range": ("Range", [np.float32(0), np.float32(30) * np.float32(0.1), np.float32(1)], FLOAT),
}
_X = np.arange(10, dtype=np.float32)


@pytest.mark.parametrize("name", _CONSTANTS)
def test_types_round_and_wrap(name, tmp_path):
    operator, numbers, kind = _CONSTANTS[name]
    tensors = dict(zip("abc", numbers, strict=False))
    nodes = [_NODE(operator, list(tensors), ["r"]), _NODE("Identity", ["r"], ["y"])]
    proto = model(nodes, [value("x", [10])], [value("y", None, kind)], tensors)
    compare(proto, {"x": _X}, tmp_path)


# 3 ** (2 ** 40) has more digits than any memory.
def test_powers_have_an_end(tmp_path):
    tensors = {"a": np.int64(3), "b": np.int64(2**40)}
    nodes = [_NODE("Pow", ["a", "b"], ["y"])]
    proto = model(nodes, [value("x", [10])], [value("y", None, INT)], tensors)
    [result] = import_onnx(save(proto, tmp_path)).module(torch.from_numpy(_X))
    assert int(result) == (pow(3, 2**40, 2**64) + 2**63) % 2**64 - 2**63


def test_parts_of_sizes_are_rounded_before_they_are_cut(tmp_path):
    nodes = [
        _NODE("Shape", ["x"], ["n"]),
        _NODE("Cast", ["n"], ["f"], to=FLOAT),
        _NODE("Mul", ["f", "part"], ["p"]),
        _NODE("Floor", ["p"], ["whole"]),
        _NODE("Cast", ["whole"], ["s"], to=INT),
        _NODE("ConstantOfShape", ["s"], ["y"]),
    ]
    proto = model(nodes, [value("x", ["n"])], [value("y", None)], {"part": np.float32(0.7)})
    compare(proto, {"x": _X}, tmp_path)


def _resize(factor, opset=17, operator="Resize"):
    scales = {"s": np.array([1, 1, factor], np.float32)}
    names = ["x", "s"] if opset < 11 else ["x", "", "s"]
    nodes = [_NODE(operator, names, ["y"], name="it", mode="nearest")]
    return model(nodes, [value("x", [1, 1, "n"])], [value("y", None)], scales, opset)


@pytest.mark.parametrize("factor", [0.7, 0.3, 1.1])
def test_sizes_that_vary_are_multiplied_like_numbers(factor, tmp_path):
    path = save(_resize(factor), tmp_path)
    program = torch.export.export(
        import_onnx(path).module,
        (torch.zeros(1, 1, 25),),
        dynamic_shapes=(({2: torch.export.Dim("n", min=10, max=100)},),),
    ).module()
    for size in (10, 19, 20, 70, 100):
        x = torch.randn(1, 1, size)
        assert program(x)[0].shape == run_reference(path, {"x": x.numpy()})[0].shape


def test_refuses_factors_that_only_float32_multiplies(tmp_path):
    module = import_onnx(save(_resize(0.7000123), tmp_path)).module
    shapes = (({2: torch.export.Dim("n", min=10, max=100)},),)
    assert module(torch.zeros(1, 1, 10))[0].shape == (1, 1, 7)
    with pytest.raises(Exception, match=r"multiplied by 0\.7000123"):
        torch.export.export(module, (torch.zeros(1, 1, 25),), dynamic_shapes=shapes)


def test_refuses_absurd_sizes(tmp_path):
    module = import_onnx(save(_resize(2.0**40), tmp_path)).module
    with pytest.raises(ModelError, match=r"'it'.*elements"):
        module(torch.zeros(1, 1, 10))
    tensors = {"depth": np.int64(2**40), "values": np.array([0, 1])}
    nodes = [_NODE("OneHot", ["x", "depth", "values"], ["y"], name="it")]
    proto = model(nodes, [value("x", [3], INT)], [value("y", None, INT)], tensors)
    module = import_onnx(save(proto, tmp_path)).module
    with pytest.raises(ModelError, match=r"'it'.*elements"):
        module(torch.arange(3))


def test_refuses_scales_that_are_no_numbers_in_old_files(tmp_path):
    old = model(
        [_NODE("Upsample", ["x"], ["y"], name="it", scales=[1.0, 1.0, 0.0])],
        [value("x", [1, 1, "n"])], [value("y", None)], opset=7,
    )  # fmt: skip
    for proto in (_resize(0.0, opset=10), _resize(0.0, opset=9, operator="Upsample"), old):
        with pytest.raises(ModelError, match=r"'it'.*a scale that isn't a number above 0"):
            import_onnx(save(proto, tmp_path))


# Each node copied the names of all values before it.
def test_copies_names_only_for_inner_graphs(tmp_path, monkeypatch):
    asked = []
    read = files._Reader._graph
    monkeypatch.setattr(files._Reader, "_graph", lambda *a: asked.append(a[2]) or read(*a))
    nodes = [_NODE("Softmax", ["x"], ["h"], axis=0), _NODE("Softmax", ["h"], ["y"], axis=0)]
    proto = model(nodes, [value("x", [10])], [value("y", None)])
    import_onnx(save(proto, tmp_path))
    assert asked == [frozenset()]
