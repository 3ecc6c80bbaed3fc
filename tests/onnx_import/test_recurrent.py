"""LSTM, GRU and RNN with every attribute, drawn at random, against ONNX Runtime."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from edgecompile.errors import ModelError
from edgecompile.onnx_import.importer import import_onnx
from tests.onnx_import.graphs import FLOAT, model, run_imported, run_reference, save, value

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_PLACES = {"LSTM": 3, "GRU": 2, "RNN": 1}
_NAMES = (
    "Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu",
    "Softsign", "Softplus",
)  # fmt: skip
#: Activations that have an alpha, and those that have a beta too.
_ALPHA = ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu")
_BETA = ("Affine", "ScaledTanh", "HardSigmoid")
#: Those of which ONNX and ONNX Runtime have different defaults.
_BARE = ("Affine", "ScaledTanh", "ThresholdedRelu")
_STEPS, _ROWS, _SIZE, _HIDDEN = 5, 3, 4, 3
_CASES = [
    (operator, direction, seed)
    for operator in _GATES
    for direction in ("forward", "reverse", "bidirectional")
    for seed in range(12)
]


def _draw(operator, direction, seed, **given):
    """A node with attributes and inputs of a seed, and its feeds, of which weights are constant ones."""
    source = np.random.default_rng([seed, len(operator), len(direction)])
    sides = 2 if direction == "bidirectional" else 1
    gates, hidden = _GATES[operator], _HIDDEN
    shapes = {
        "x": (_STEPS, _ROWS, _SIZE), "w": (sides, gates * hidden, _SIZE), "r": (sides, gates * hidden, hidden),
        "b": (sides, 2 * gates * hidden), "l": (_ROWS,), "h": (sides, _ROWS, hidden), "c": (sides, _ROWS, hidden),
        "p": (sides, 3 * hidden),
    }  # fmt: skip
    there = {name: bool(source.integers(2)) for name in "blhcp"}
    names = ["x", "w", "r", *(n if there[n] else "" for n in "blh")]
    names += [n if there[n] else "" for n in "cp"] if operator == "LSTM" else []
    feeds = {n: 0.5 * source.standard_normal(shapes[n]).astype(np.float32) for n in names if n}
    if "l" in feeds:
        feeds["l"] = source.integers(0, _STEPS + 1, _ROWS).astype(np.int32)
    options = {"direction": direction, "hidden_size": hidden}
    if source.integers(2):
        options["clip"] = 0.7
    if operator == "GRU":
        options["linear_before_reset"] = int(source.integers(2))
    if operator == "LSTM" and "p" not in names:
        options["input_forget"] = int(source.integers(2))
    if source.integers(2):
        drawn = [str(source.choice(_NAMES)) for _ in range(sides * _PLACES[operator])]
        options["activations"] = drawn
        if source.integers(2) or set(drawn) & set(_BARE):
            for key, owners in (("activation_alpha", _ALPHA), ("activation_beta", _BETA)):
                numbers = [float(source.uniform(0.1, 0.9)) for name in drawn if name in owners]
                options.update({key: numbers} if numbers else {})
    options.update(given)
    outputs = ["y", "y_h", "y_c"] if operator == "LSTM" else ["y", "y_h"]
    return helper.make_node(operator, names, outputs, name="layer", **options), feeds


def _model(node, feeds, variable=("x", "l", "h", "c"), shape=None):
    inputs = [
        value(
            n, list((shape or {}).get(n, feeds[n].shape)), TensorProto.INT32 if n == "l" else FLOAT
        )
        for n in variable
        if n in feeds
    ]
    tensors = {name: array for name, array in feeds.items() if name not in variable}
    return model([node], inputs, [value(name, None) for name in node.output], tensors)


def _equal(given, wanted):
    for a, b in zip(given, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6 * max(1, np.abs(b).max()))


@pytest.mark.parametrize(("operator", "direction", "seed"), _CASES)
def test_equals_onnx_runtime(operator, direction, seed, tmp_path):
    node, feeds = _draw(operator, direction, seed)
    path = save(_model(node, feeds), tmp_path)
    given = {name: feeds[name] for name in ("x", "l", "h", "c") if name in feeds}
    _equal(run_imported(path, given), run_reference(path, given))


@pytest.mark.parametrize("operator", _GATES)
@pytest.mark.parametrize("seed", range(6))
def test_the_batch_may_come_first(operator, seed, tmp_path):
    # ONNX Runtime doesn't take this layout: its results of the other one are turned.
    node, feeds = _draw(operator, "bidirectional", seed)
    turned, _ = _draw(operator, "bidirectional", seed, layout=1)
    first = {n: a.swapaxes(0, 1) if n in "xhc" else a for n, a in feeds.items()}
    given = {name: feeds[name] for name in ("x", "l", "h", "c") if name in feeds}
    y, *ends = run_reference(save(_model(node, feeds), tmp_path), given)
    wanted = [y.transpose(2, 0, 1, 3), *(end.swapaxes(0, 1) for end in ends)]
    path = save(_model(turned, first), tmp_path)
    _equal(run_imported(path, {name: first[name] for name in given}), wanted)


def test_weights_may_be_inputs(tmp_path):
    for seed in range(6):
        node, feeds = _draw("GRU", "bidirectional", seed)
        path = save(_model(node, feeds, variable=("x", "w", "r", "b", "l", "h")), tmp_path)
        _equal(run_imported(path, feeds), run_reference(path, feeds))


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"activations": ["Sigmoid", "Sin"]}, "the activation sin"),
        ({"activations": ["Sigmoid"]}, "1 activations and needs 2"),
        ({"activations": ["Sigmoid", "Affine"]}, "affine without its alpha"),
        ({"activations": ["ScaledTanh", "Tanh"], "activation_alpha": [1.0]}, "scaledtanh without"),
    ],
)
def test_refuses_activations_by_name(attributes, words, tmp_path):
    node, feeds = _draw("GRU", "forward", 0, linear_before_reset=0)
    node = helper.make_node(
        "GRU", ["x", "w", "r"], ["y"], name="layer", hidden_size=3, **attributes
    )
    path = save(_model(node, {name: feeds[name] for name in "xwr"}), tmp_path)
    with pytest.raises(ModelError, match=f"'layer' .*{words}"):
        import_onnx(path).module(torch.from_numpy(feeds["x"]))


@pytest.mark.parametrize("linear", [0, 1])
@pytest.mark.parametrize(
    ("direction", "sizes", "words"),
    [
        ("sideways", (1, 9, 4), "the direction sideways"),
        ("bidirectional", (1, 9, 4), r"its R has the shape \[1, 9, 3\], not \[2, 9, 3\]"),
        ("forward", (1, 8, 4), r"its W has the shape \[1, 8, 4\], not \[1, 9, 4\]"),
        ("forward", (), r"its W has the shape \[\], not \[1, 9, 0\]"),
    ],
)
def test_refuses_weights_that_do_not_fit(direction, sizes, words, linear, tmp_path):
    options = {"hidden_size": 3, "linear_before_reset": linear, "direction": direction}
    node = helper.make_node("GRU", ["x", "w", "r"], ["y"], name="layer", **options)
    feeds = {"x": np.ones((5, 1, 4)), "w": np.ones(sizes), "r": np.ones((1, 9, 3))}
    path = save(_model(node, {n: a.astype(np.float32) for n, a in feeds.items()}), tmp_path)
    with pytest.raises(ModelError, match=f"'layer' .*{words}"):
        import_onnx(path).module(torch.ones(5, 1, 4))


def _broken(operator, direction, name, place, change, layout):
    """A node with the input ``name``, of which one size is another, and its feeds."""
    kept = "" if name in "xwr" else name
    node, feeds = _draw_with(kept, operator, direction, layout=layout)
    if layout:
        feeds = {n: a.swapaxes(0, 1) if n in "xhc" else a for n, a in feeds.items()}
    shape = list(feeds[name].shape)
    shape[place] = max(0, shape[place] + change)
    feeds[name] = np.resize(feeds[name], shape)
    return node, feeds


_SHOWN = {
    "x": "X", "w": "[WX]", "r": "[WR]", "b": "B", "l": "sequence_lens", "h": "initial_h", "c": "initial_c", "p": "P",
}  # fmt: skip
_PARTS = [("x", 2), ("w", 2), ("r", 2), ("b", 0), ("b", 1), ("l", 0), ("h", 0), ("h", 1), ("h", 2)]
_LSTM_PARTS = [("c", 0), ("c", 1), ("c", 2), ("p", 0), ("p", 1)]


@pytest.mark.parametrize("inputs", ["xlhc", "xwrblhcp"])
@pytest.mark.parametrize(
    ("operator", "name", "place"),
    [
        *((operator, *part) for operator in _GATES for part in _PARTS),
        *(("LSTM", *part) for part in _LSTM_PARTS),
    ],
)
def test_refuses_inputs_that_do_not_fit(operator, name, place, inputs, tmp_path):
    """torch's layers read as many numbers as they expect, wherever the file's end."""
    for direction, layout in (("forward", 0), ("bidirectional", 1)):
        for change in (-1, 1, 7):
            node, feeds = _broken(operator, direction, name, place, change, layout)
            path = save(_model(node, feeds, variable=tuple(inputs)), tmp_path)
            with pytest.raises(ModelError, match=f"'layer' .*its {_SHOWN[name]} has the shape"):
                run_imported(path, feeds)


@pytest.mark.parametrize("operator", _GATES)
def test_refuses_an_input_of_other_ranks(operator, tmp_path):
    node, feeds = _draw(operator, "forward", 0)
    for shape in ((5, 4), (5, 3, 4, 1)):
        feeds["x"] = np.ones(shape, np.float32)
        with pytest.raises(ModelError, match=r"'layer' .*its X has [24] dimensions, not 3"):
            run_imported(save(_model(node, feeds), tmp_path), feeds)


@pytest.mark.parametrize("inputs", ["x", "xwr"])
@pytest.mark.parametrize("operator", _GATES)
def test_refuses_layers_without_states(operator, inputs, tmp_path):
    node = helper.make_node(operator, list("xwr"), ["y"], name="layer", linear_before_reset=1)
    if operator != "GRU":
        del node.attribute[:]
    shapes = {"x": (5, 2, 4), "w": (1, 0, 4), "r": (1, 0, 0)}
    feeds = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    with pytest.raises(ModelError, match=r"'layer' .*which has no states"):
        run_imported(save(_model(node, feeds, variable=tuple(inputs)), tmp_path), feeds)


def _draw_with(names, operator, direction, **given):
    """The first drawn node that has all these inputs and attributes, and its feeds."""
    for seed in range(1000):
        node, feeds = _draw(operator, direction, seed, **given)
        if set(names) <= {*feeds, *(item.name for item in node.attribute)}:
            return node, feeds
    raise AssertionError(names)


@pytest.mark.parametrize(
    ("operator", "direction", "names"),
    [
        ("GRU", "reverse", "l"),
        ("LSTM", "bidirectional", ("l", "p", "clip")),
        ("RNN", "reverse", ("l", "clip")),
    ],
)
def test_one_program_serves_every_length(operator, direction, names, tmp_path):
    node, feeds = _draw_with(names, operator, direction)
    feeds = {name: array for name, array in feeds.items() if name not in "hc"}
    names = [name if name in feeds else "" for name in node.input]
    node.ClearField("input")
    node.input.extend(names)
    shape = {"x": ("length", "batch", _SIZE), "l": ("batch",)}
    path = save(_model(node, feeds, shape=shape), tmp_path)
    module = import_onnx(path).module
    length, batch = torch.export.Dim("length", max=4000), torch.export.Dim("batch", max=9)
    given = torch.from_numpy(feeds["x"]), torch.from_numpy(feeds["l"])
    program = torch.export.export(
        module, given, dynamic_shapes=(({0: length, 1: batch}, {0: batch}),), strict=False
    )
    for steps, rows in ((1, 2), (40, 3), (200, 1)):
        x = np.random.default_rng(steps).standard_normal((steps, rows, _SIZE)).astype(np.float32)
        counts = np.array([steps, 0, steps // 2][:rows], np.int32)
        results = program.module()(torch.from_numpy(x), torch.from_numpy(counts))
        _equal([r.numpy() for r in results], run_reference(path, {"x": x, "l": counts}))
