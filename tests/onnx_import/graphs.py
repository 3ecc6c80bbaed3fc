"""Small ONNX models for tests, and both ways to run them."""

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper

from edgecompile.onnx_import.importer import import_onnx

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def value(name, shape, kind=FLOAT):
    """An input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, tensors=None, opset=17):
    """A model; ``tensors`` are its initializers."""
    initializers = [
        onnx.numpy_helper.from_array(np.asarray(array), name)
        for name, array in (tensors or {}).items()
    ]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def save(proto, folder, name="model.onnx"):
    """Writes a model."""
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def run_reference(path, feeds):
    """ONNX Runtime's results."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def run_imported(path, feeds):
    """The imported module's results."""
    imported = import_onnx(path)
    tensors = [torch.from_numpy(np.asarray(feeds[item.name])) for item in imported.inputs]
    return [result.numpy() for result in imported.module(*tensors)]


def compare(proto, feeds, folder, tolerance=2e-5):
    """Runs a model in both ways; the results have to be equal."""
    path = save(proto, folder)
    pairs = zip(run_imported(path, feeds), run_reference(path, feeds), strict=True)
    for given, wanted in pairs:
        assert (given.dtype, given.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(given, wanted, rtol=tolerance, atol=tolerance)
