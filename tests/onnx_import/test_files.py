"""Files that are broken, or made to do harm: each gives a clear error."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from edgecompile.errors import ModelError
from edgecompile.onnx_import import files
from edgecompile.onnx_import.importer import import_onnx
from tests.onnx_import.graphs import INT, model, save, value

_X = [value("x", [2, "n"])]
_Y = [value("y", [2, "n"])]


def _refused(proto, folder, *words):
    with pytest.raises(ModelError) as caught:
        import_onnx(save(proto, folder))
    for word in words:
        assert word in str(caught.value)


def _adds(name="w", array=None):
    nodes = [helper.make_node("Add", ["x", name], ["y"], name="sum")]
    return model(nodes, _X, _Y, {name: np.ones((2, 1), np.float32) if array is None else array})


def test_refuses_every_truncated_file(tmp_path):
    proto = _adds()
    del proto.opset_import[1:]  # behind it a file would be whole
    data = proto.SerializeToString()
    path = tmp_path / "model.onnx"
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(ModelError):
            import_onnx(path)


@pytest.mark.parametrize(
    "text", [b"sum", b"Add", b"seen_x", b"seen_w", b"seen_y", b"varies", b"alpha", b"my.domain"]
)
def test_refuses_names_that_are_no_text(text, tmp_path):
    node = helper.make_node(
        "Add", ["seen_x", "seen_w"], ["seen_y"], name="sum", alpha=1, domain="my.domain"
    )
    proto = model(
        [node],
        [value("seen_x", [2, "varies"])],
        [value("seen_y", [2, "n"])],
        {"seen_w": np.ones((2, 1), np.float32)},
    )
    data = proto.SerializeToString()
    assert text in data
    path = tmp_path / "model.onnx"
    path.write_bytes(data.replace(text, b"\xff" * len(text)))
    with pytest.raises(ModelError, match="a name that is no UTF-8"):
        import_onnx(path)


def _layers():
    """A layer normalization, attention, a linear layer and GELU, each of many nodes."""
    steps = [
        ("ReduceMean", "x", "m"), ("Sub", "x m", "d"), ("Pow", "d two", "p"), ("ReduceMean", "p", "v"),
        ("Add", "v epsilon", "e"), ("Sqrt", "e", "s"), ("Div", "d s", "n"), ("Mul", "n vector", "g"),
        ("Add", "g vector", "h"), ("Reshape", "h whole", "a"), ("Transpose", "a", "t"), ("MatMul", "a t", "l"),
        ("Mul", "l two", "f"), ("Where", "seen zero off", "o"), ("Add", "f o", "k"), ("Softmax", "k", "q"),
        ("IsNaN", "q", "i"), ("Where", "i zero q", "u"), ("MatMul", "u a", "r"), ("MatMul", "r weight", "w"),
        ("Add", "w vector", "b"), ("Div", "b root", "c"), ("Erf", "c", "j"), ("Add", "j one", "z"),
        ("Mul", "b z", "x2"), ("Mul", "x2 half", "y"),
    ]  # fmt: skip
    options = {
        "ReduceMean": {"axes": [-1]},
        "Transpose": {"perm": [0, 1, 3, 2]},
        "Softmax": {"axis": -1},
    }
    nodes = [
        helper.make_node(kind, names.split(), [name], **options.get(kind, {}))
        for kind, names, name in steps
    ]
    numbers = {"two": 2, "epsilon": 1e-5, "zero": 0, "off": -np.inf, "root": 2**0.5, "one": 1, "half": 0.5}  # fmt: skip
    tensors = {name: np.float32(number) for name, number in numbers.items()}
    tensors.update(vector=np.ones(8, np.float32), weight=np.eye(8, dtype=np.float32))
    tensors["whole"] = np.array([2, 1, 4, 8])
    inputs = [value("x", [2, 4, 8]), value("seen", [4, 4], TensorProto.BOOL)]
    return model(nodes, inputs, [value("y", None)], tensors)


def _read_or_refused(path):
    try:
        imported = import_onnx(path)
        imported.module(torch.ones(2, 4, 8), torch.ones(4, 4, dtype=torch.bool))
    except ModelError:
        pass


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("layers", [False, True])
def test_a_file_with_wrong_bytes_is_read_or_refused(layers, seed, tmp_path):
    random = np.random.default_rng(seed)
    proto, path = _layers() if layers else _adds(), tmp_path / "model.onnx"
    data = proto.SerializeToString()
    for _ in range(200):
        wrong = np.frombuffer(data, np.uint8).copy()
        places = random.integers(0, len(wrong), random.integers(1, 4))
        wrong[places] = random.integers(0, 256, len(places))
        path.write_bytes(wrong.tobytes())
        try:
            import_onnx(path)
        except ModelError:
            continue


def test_nodes_with_other_inputs_are_read_or_refused(tmp_path):
    kinds = {node.operator for node in import_onnx(save(_layers(), tmp_path)).module.nodes}
    assert kinds == {"LayerNormalization", "Reshape", "Transpose", "Attention", "Linear", "Gelu"}
    for place, node in enumerate(_layers().graph.node):
        for names in ([*node.input, "x"], ["one", *node.input], node.input[1:], node.input[:-1]):
            proto = _layers()
            del proto.graph.node[place].input[:]
            proto.graph.node[place].input.extend(names)
            _read_or_refused(save(proto, tmp_path))


def test_refuses_what_is_no_onnx_file(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(ModelError, match="is no ONNX file"):
        import_onnx(path)


@pytest.mark.parametrize("opset", [6, 99])
def test_refuses_unknown_opsets(opset, tmp_path):
    proto = _adds()
    proto.opset_import[0].version = opset
    _refused(proto, tmp_path, f"has the opset {opset}")


def test_lists_all_operators_that_are_not_taken(tmp_path):
    nodes = [
        helper.make_node("Unheard", ["x"], ["a"], name="first"),
        helper.make_node("Unheard", ["a"], ["b"], name="second"),
        helper.make_node("Strange", ["b"], ["y"], name="third", domain="my.domain"),
    ]
    proto = model(nodes, _X, _Y)
    _refused(proto, tmp_path, "Unheard (opset 17): first, second", "my.domain.Strange", "third")


@pytest.mark.parametrize("dims", [[3, 1], [4], [2, 2**31], [2**20, 2**20], [-2, 1]])
def test_refuses_initializers_whose_data_do_not_fit(dims, tmp_path):
    proto = _adds()
    tensor = proto.graph.initializer[0]
    del tensor.dims[:]
    tensor.dims.extend(dims)
    _refused(proto, tmp_path, "the initializer 'w'")


def test_refuses_typed_data_that_do_not_fit(tmp_path):
    proto = _adds()
    proto.graph.initializer[0].CopyFrom(
        TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 1], float_data=[1.0])
    )
    _refused(proto, tmp_path, "the initializer 'w'", "don't fit")


def _external(location, offset=0, length=8):
    proto = _adds()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", location), ("offset", offset), ("length", length)):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(text)
    return proto


def test_reads_weights_beside_the_model(tmp_path):
    np.array([9, 1, 2], np.float32).tofile(tmp_path / "weights")
    imported = import_onnx(save(_external("weights", offset=4), tmp_path))
    assert imported.files == ("weights",)
    states = dict(imported.module.named_parameters())
    assert [tensor.reshape(-1).tolist() for tensor in states.values()] == [[1, 2]]


@pytest.mark.parametrize(
    ("location", "offset", "length", "words"),
    [
        ("../secret", 0, 8, "outside the model's folder"),
        ("link", 0, 8, "outside the model's folder"),
        ("/etc/passwd", 0, 8, "outside the model's folder"),
        (".", 0, 8, "no file"),
        ("", 0, 8, "no file"),
        ("absent", 0, 8, "isn't beside the model"),
        ("weights", 8, 8, "which has 12"),
        ("weights", -4, 8, "from -4"),
        ("weights", 0, 12, "needs 8 bytes"),
        ("weights", "x", 8, "no number"),
    ],
)
def test_refuses_weights_elsewhere(location, offset, length, words, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in (tmp_path / "secret", folder / "weights"):
        np.ones(3, np.float32).tofile(path)
    (folder / "link").symlink_to(tmp_path / "secret")
    _refused(_external(location, offset, length), folder, words)


def test_refuses_cycles_and_missing_values(tmp_path):
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="one"),
        helper.make_node("Neg", ["a"], ["b"], name="two"),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    _refused(model(nodes, _X, _Y), tmp_path, "the node 'one' takes 'b'", "cycle")


def test_refuses_two_values_of_one_name(tmp_path):
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["y"])]
    _refused(model(nodes, _X, _Y), tmp_path, "two values 'y'")
    proto = _adds()
    proto.graph.initializer.append(proto.graph.initializer[0])
    _refused(proto, tmp_path, "two initializers 'w'")


def test_refuses_an_output_that_nothing_gives(tmp_path):
    proto = _adds()
    proto.graph.output.append(value("z", [1]))
    _refused(proto, tmp_path, "no node gives the output 'z'")


def test_refuses_too_many_nodes(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_NODES", 3)
    names = ["x", "a", "b", "c", "y"]
    nodes = [helper.make_node("Neg", [p], [q]) for p, q in pairwise(names)]
    _refused(model(nodes, _X, _Y), tmp_path, "more than 3 nodes")


def test_refuses_functions_without_an_end(tmp_path):
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    body = [helper.make_node("g", ["a"], ["b"], domain="f")]
    functions = [
        helper.make_function("f", name, ["a"], ["b"], [helper.make_node(call, ["a"], ["b"], domain="f")], opsets)
        for name, call in (("g", "h"), ("h", "g"))
    ]  # fmt: skip
    graph = helper.make_graph([*body], "g", [value("a", [2])], [value("b", [2])])
    proto = helper.make_model(graph, opset_imports=opsets, functions=functions)
    _refused(proto, tmp_path, "without an end")


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 0.0, -1.0])
def test_refuses_scales_that_are_no_numbers(scale, tmp_path):
    nodes = [helper.make_node("QuantizeLinear", ["x", "s"], ["y"], name="q")]
    proto = model(nodes, _X, [value("y", [2, "n"], TensorProto.UINT8)], {"s": np.float32(scale)})
    _refused(proto, tmp_path, "'q' (QuantizeLinear)", "a scale")


def test_makes_no_constant_of_absurd_size(tmp_path):
    nodes = [
        helper.make_node("ConstantOfShape", ["s"], ["big"], name="fill"),
        helper.make_node("Add", ["x", "big"], ["y"]),
    ]
    proto = model(nodes, _X, _Y, {"s": np.array([2**20, 2**20], np.int64)})
    imported = import_onnx(save(proto, tmp_path))
    with pytest.raises(ModelError, match=r"'fill'.*elements"):
        imported.module(torch.ones(2, 3))


def test_refuses_sizes_that_depend_on_values(tmp_path):
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"], name="view")]
    proto = model(nodes, [*_X, value("s", [1], INT)], [value("y", ["m"])])
    imported = import_onnx(save(proto, tmp_path))
    with pytest.raises(ModelError, match=r"'view'.*'s' as sizes"):
        imported.module(torch.ones(2, 3), torch.tensor([-1]))


def test_refuses_inputs_without_a_shape(tmp_path):
    proto = _adds()
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    _refused(proto, tmp_path, "the input 'x'", "has no shape")
