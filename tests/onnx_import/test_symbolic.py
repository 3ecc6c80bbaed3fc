"""torch.export sees sizes as symbols, whatever arithmetic a file does with them."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from edgecompile.onnx_import.importer import import_onnx
from tests.onnx_import.graphs import model, run_reference, save, value

_NODE = helper.make_node
#: Nodes from x [batch, length, 8] to y, with shapes calculated as exporters write it.
_GRAPHS = {
    "heads split by Concat of sizes": [
        _NODE("Shape", ["x"], ["s"]),
        _NODE("Slice", ["s", "zero", "two"], ["front"]),
        _NODE("Concat", ["front", "heads"], ["shape"], axis=0),
        _NODE("Reshape", ["x", "shape"], ["h"]),
        _NODE("Transpose", ["h"], ["y"], perm=[0, 2, 1, 3]),
    ],
    "Expand as torch writes it": [
        _NODE("Shape", ["x"], ["s"]),
        _NODE("ConstantOfShape", ["three"], ["ones"], value=helper.make_tensor("v", 7, [1], [1])),
        _NODE("Mul", ["ones", "minus"], ["free"]),
        _NODE("Equal", ["s", "free"], ["open"]),
        _NODE("Where", ["open", "ones", "s"], ["shape"]),
        _NODE("Expand", ["row", "shape"], ["e"]),
        _NODE("Add", ["x", "e"], ["y"]),
    ],
    "positions by Range": [
        _NODE("Shape", ["x"], ["s"]),
        _NODE("Gather", ["s", "one"], ["n"]),
        _NODE("Range", ["zero_", "n", "one"], ["r"]),
        _NODE("Cast", ["r"], ["f"], to=TensorProto.FLOAT),
        _NODE("Unsqueeze", ["f", "minus"], ["u"]),
        _NODE("Add", ["x", "u"], ["y"]),
    ],
    "all but the last": [
        _NODE("Shape", ["x"], ["s"]),
        _NODE("Gather", ["s", "one"], ["n"]),
        _NODE("Sub", ["n", "one"], ["less"]),
        _NODE("Unsqueeze", ["less", "zero"], ["end"]),
        _NODE("Slice", ["x", "zero", "end", "axis"], ["y"]),
    ],
    "backwards": [
        _NODE("Slice", ["x", "minus", "start", "axis", "minus"], ["y"]),
    ],
    "twice as long": [
        _NODE("Resize", ["x", "", "scales"], ["y"], mode="linear"),
    ],
}
_TENSORS = {
    "zero": np.array([0]),
    "two": np.array([2]),
    "three": np.array([3]),
    "minus": np.array([-1]),
    "start": np.array([-(2**63)]),
    "axis": np.array([1]),
    "heads": np.array([4, 2]),
    "one": np.array(1),
    "zero_": np.array(0),
    "row": np.ones((1, 1, 8), np.float32),
    "scales": np.array([1, 2, 1], np.float32),
}


@pytest.mark.parametrize("name", _GRAPHS)
def test_one_program_serves_all_sizes(name, tmp_path):
    proto = model(_GRAPHS[name], [value("x", ["batch", "length", 8])], [value("y", None)], _TENSORS)
    path = save(proto, tmp_path)
    batch = torch.export.Dim("batch", min=1, max=4)
    length = torch.export.Dim("length", min=3, max=100)
    program = torch.export.export(
        import_onnx(path).module,
        (torch.randn(2, 12, 8),),
        dynamic_shapes=(({0: batch, 1: length},),),
    ).module()
    for sizes in ((1, 3), (3, 7), (4, 100)):
        x = torch.randn(*sizes, 8)
        wanted = run_reference(path, {"x": x.numpy()})[0]
        np.testing.assert_allclose(program(x)[0].numpy(), wanted, rtol=1e-5, atol=1e-5)
