"""Loop and Scan: unrolled, and as one operator where a size says how often."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from edgecompile.errors import ModelError
from edgecompile.onnx_import.importer import import_onnx
from tests.onnx_import.graphs import compare, model, run_reference, save, value

_NODE = helper.make_node
_BOOL, _INT = TensorProto.BOOL, TensorProto.INT64
_RANDOM = np.random.default_rng(11)
_WEIGHTS = {
    name: _RANDOM.standard_normal((8, 8)).astype(np.float32) * 0.3 for name in ("w", "u", "v")
}


def _body(nodes, inputs, outputs, tensors=None):
    initializers = [
        helper.make_tensor(n, 1, a.shape, a.flatten()) for n, a in (tensors or {}).items()
    ]
    return helper.make_graph(nodes, "body", inputs, outputs, initializers)


def _cell(row, state, after, result):
    """A plain recurrent cell; one of its matrices is the body's own, one comes from outside."""
    return [
        _NODE("MatMul", [row, "w"], ["a"]),
        _NODE("MatMul", [state, "own"], ["b"]),
        _NODE("Add", ["a", "b"], ["c"]),
        _NODE("Tanh", ["c"], [after]),
        _NODE("Identity", [after], [result]),
    ]


def _scan(**attributes):
    body = _body(
        _cell("row", "h", "after", "made"),
        [value("h", None), value("row", None)],
        [value("after", None), value("made", None)],
        {"own": _WEIGHTS["u"]},
    )
    return [
        _NODE("Transpose", ["x"], ["rows"], perm=[1, 0, 2]),
        _NODE("Shape", ["x"], ["s"]),
        _NODE("Gather", ["s", "zero"], ["batches"]),
        _NODE("Concat", ["batches", "eight"], ["shape"], axis=0),
        _NODE("Expand", ["begin", "shape"], ["h0"]),
        _NODE("Scan", ["h0", "rows"], ["last", "y"], body=body, num_scan_inputs=1, **attributes),
    ]


def _loop(condition="true"):
    """Rows by number, as many rounds as the length says."""
    nodes = [
        _NODE("Gather", ["rows", "i"], ["row"]),
        *_cell("row", "h", "after", "made"),
        _NODE("Identity", ["go"], ["goes"]),
    ]
    inputs = [value("i", [], _INT), value("go", [], _BOOL), value("h", None)]
    outputs = [value("goes", [], _BOOL), value("after", None), value("made", None)]
    body = _body(nodes, inputs, outputs, {"own": _WEIGHTS["u"]})
    return [
        *_scan()[:-1],
        _NODE("Shape", ["rows"], ["rs"]),
        _NODE("Gather", ["rs", "nought"], ["n"]),
        _NODE("Loop", ["n", condition, "h0"], ["last", "y"], body=body),
    ]


def _model(nodes):
    tensors = {
        "w": _WEIGHTS["w"],
        "zero": np.array([0]),
        "nought": np.array(0),
        "eight": np.array([8]),
        "true": np.array(True),
        "begin": np.full((1, 8), 0.25, np.float32),
    }
    outputs = [value("y", None), value("last", None)]
    return model(nodes, [value("x", ["batch", "length", 8])], outputs, tensors)


_GRAPHS = {
    "Scan": _scan(),
    "Scan backwards": _scan(scan_input_directions=[1], scan_output_directions=[1]),
    "Scan along the second": _scan(scan_output_axes=[1]),
    "Loop": _loop(),
    "Loop without a condition": _loop(""),
}


@pytest.mark.parametrize("name", _GRAPHS)
def test_rounds_equal_onnx_runtime(name, tmp_path):
    for sizes in ((1, 1), (2, 7)):
        feeds = {"x": _RANDOM.standard_normal((*sizes, 8)).astype(np.float32)}
        compare(_model(_GRAPHS[name]), feeds, tmp_path)


@pytest.mark.parametrize("name", _GRAPHS)
def test_one_program_serves_every_number_of_rounds(name, tmp_path):
    path = save(_model(_GRAPHS[name]), tmp_path)
    module = import_onnx(path).module
    axes = {0: torch.export.Dim("batch", max=9), 1: torch.export.Dim("length", max=4000)}
    program = torch.export.export(
        module, (torch.randn(2, 5, 8),), dynamic_shapes=((axes,),), strict=False
    )
    for sizes in ((1, 1), (2, 9), (3, 60)):
        x = torch.randn(*sizes, 8)
        wanted = run_reference(path, {"x": x.numpy()})
        for given, expected in zip(program.module()(x), wanted, strict=True):
            np.testing.assert_allclose(given.numpy(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["Scan", "Loop"])
def test_the_operator_is_given_the_sizes_of_its_results(name, tmp_path):
    # Inductor finds sizes of a scan's rows among its arguments alone.
    module = import_onnx(save(_model(_GRAPHS[name]), tmp_path)).module
    axes = {0: torch.export.Dim("batch", max=9), 1: torch.export.Dim("length", max=4000)}
    program = torch.export.export(
        module, (torch.randn(2, 5, 8),), dynamic_shapes=((axes,),), strict=False
    )
    [node] = [n for n in program.graph.nodes if n.target is torch.ops.higher_order.scan]
    given = {str(value.meta["val"]) for value in node.args[3]}
    batch = next(
        n for n in program.graph.nodes if n.op == "placeholder" and n.name.startswith("input")
    )
    assert str(batch.meta["val"].shape[0]) in given


def test_weights_of_a_body_are_parameters(tmp_path):
    module = import_onnx(save(_model(_scan()), tmp_path)).module
    assert sorted(tuple(p.shape) for p in module.parameters()) == [(1, 8), (8, 8), (8, 8)]
    assert module.double()(torch.randn(1, 3, 8).double())[0].dtype == torch.float64


def _counting(body_nodes, count, tensors=None, begin="x"):
    """A Loop that carries ``x`` through the nodes, which make ``after`` of ``h``."""
    inputs = [value("i", [], _INT), value("go", [], _BOOL), value("h", None)]
    outputs = [value("goes", [], _BOOL), value("after", None)]
    nodes = [*body_nodes, _NODE("Identity", ["go"], ["goes"])]
    if any("goes" in node.output for node in body_nodes):
        nodes = body_nodes
    loop = _NODE("Loop", [count, "", begin], ["y"], body=_body(nodes, inputs, outputs), name="loop")
    front = [
        _NODE("Shape", ["x"], ["s"]),
        _NODE("Gather", ["s", "nought"], ["n"]),
        _NODE("ReduceSum", ["x"], ["sum"], keepdims=0),
        _NODE("Cast", ["sum"], ["valued"], to=_INT),
    ]
    known = {"nought": np.array(0), "three": np.array(3), "none": np.array(0)}
    return model(
        [*front, loop], [value("x", ["length"])], [value("y", None)], {**known, **(tensors or {})}
    )


_DOUBLE = [_NODE("Add", ["h", "h"], ["after"])]
_GROW = [_NODE("Concat", ["h", "h"], ["after"], axis=0)]
_UNTIL = [
    _NODE("ReduceMax", ["h"], ["top"], keepdims=0),
    _NODE("Less", ["top", "limit"], ["goes"]),
    *_DOUBLE,
]
_GROW_UNTIL = [*_UNTIL[:2], *_GROW]
_ONCE = [_NODE("Identity", ["never"], ["goes"]), *_DOUBLE]


@pytest.mark.parametrize(
    ("nodes", "count"), [(_DOUBLE, "n"), (_DOUBLE, "three"), (_GROW, "three"), (_DOUBLE, "none")]
)
def test_rounds_carry_a_value(nodes, count, tmp_path):
    compare(_counting(nodes, count), {"x": np.arange(5, dtype=np.float32)}, tmp_path)


@pytest.mark.parametrize(
    ("nodes", "count", "message"),
    [
        (_DOUBLE, "valued", r"'loop' \(Loop\) runs as often as values of inputs say"),
        (_UNTIL, "", r"'loop' \(Loop\) goes on or ends by values of inputs"),
        (_UNTIL, "many", r"'loop' \(Loop\) goes on or ends by values of inputs"),
        (_GROW_UNTIL, "three", "changes its shape or type, and values of inputs end it"),
    ],
)
def test_rounds_that_values_count_are_refused(nodes, count, message, tmp_path):
    tensors = {"limit": np.array(9, np.float32), "many": np.array(2**62)}
    path = save(_counting(nodes, count, tensors), tmp_path)
    with pytest.raises(ModelError, match=message):
        import_onnx(path).module(torch.arange(5.0))


@pytest.mark.parametrize("count", ["three", "n", "forty"])
def test_rounds_that_values_end_equal_onnx_runtime(count, tmp_path):
    tensors = {"limit": np.array(9, np.float32), "forty": np.array(40)}
    path = save(_counting(_UNTIL, count, tensors), tmp_path)
    module = import_onnx(path).module
    axes = (({0: torch.export.Dim("length", max=64)},),)
    program = torch.export.export(module, (torch.ones(5),), dynamic_shapes=axes, strict=False)
    for top in (0.1, 1.0, 4.9, 20.0):
        for length in (1, 2, 7):
            x = np.linspace(-1, top, length, dtype=np.float32)
            wanted = run_reference(path, {"x": x})[0]
            for run in (module, program.module()):
                np.testing.assert_array_equal(run(torch.from_numpy(x))[0].numpy(), wanted)


def test_a_round_behind_the_end_takes_no_row_beyond(tmp_path):
    known = {"table": np.arange(4), "one": np.array(1), "four": np.array(4), "forty": np.array(40)}
    nodes = [
        _NODE("Gather", ["table", "h"], ["row"]),
        _NODE("Add", ["row", "one"], ["after"]),
        _NODE("Less", ["after", "four"], ["goes"]),
    ]
    inputs = [value("i", [], _INT), value("go", [], _BOOL), value("h", [], _INT)]
    body = _body(nodes, inputs, [value("goes", [], _BOOL), value("after", [], _INT)])
    loop = _NODE("Loop", ["forty", "", "x"], ["y"], body=body)
    proto = model([loop], [value("x", [], _INT)], [value("y", [], _INT)], known)
    compare(proto, {"x": np.array(1)}, tmp_path)


def test_values_that_begin_as_one_go_their_ways(tmp_path):
    nodes = [
        _NODE("Add", ["a", "a"], ["c"]),
        _NODE("Sub", ["b", "x"], ["d"]),
        _NODE("Identity", ["go"], ["goes"]),
    ]
    inputs = [value("i", [], _INT), value("go", [], _BOOL), value("a", None), value("b", None)]
    body = _body(nodes, inputs, [value("goes", [], _BOOL), value("c", None), value("d", None)])
    around = [_NODE("Shape", ["x"], ["s"]), _NODE("Gather", ["s", "nought"], ["n"])]
    loop = [*around, _NODE("Loop", ["n", "", "x", "x"], ["y", "z"], body=body)]
    outputs = [value("y", None), value("z", None)]
    path = save(model(loop, [value("x", ["length"])], outputs, {"nought": np.array(0)}), tmp_path)
    axes = (({0: torch.export.Dim("length", max=64)},),)
    module = import_onnx(path).module
    program = torch.export.export(module, (torch.ones(5),), dynamic_shapes=axes, strict=False)
    x = torch.arange(7.0)
    for given, wanted in zip(
        program.module()(x), run_reference(path, {"x": x.numpy()}), strict=True
    ):
        np.testing.assert_array_equal(given.numpy(), wanted)


def test_rows_of_a_loop_that_values_end_are_refused(tmp_path):
    body = _body(
        [*_UNTIL, _NODE("Identity", ["after"], ["row"])],
        [value("i", [], _INT), value("go", [], _BOOL), value("h", None)],
        [value("goes", [], _BOOL), value("after", None), value("row", None)],
    )
    loop = _NODE("Loop", ["three", "", "x"], ["y", "rows"], body=body, name="loop")
    tensors = {"limit": np.array(9, np.float32), "three": np.array(3)}
    proto = model([loop], [value("x", [4])], [value("y", None), value("rows", None)], tensors)
    with pytest.raises(ModelError, match=r"'loop' .*gives a row for each round"):
        import_onnx(save(proto, tmp_path)).module(torch.ones(4))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (_GROW, "changes its shape or type from round to round"),
        (_ONCE, "ends after its first round, and a size says how many there are"),
    ],
)
def test_rounds_of_a_varying_number_are_alike(nodes, message, tmp_path):
    module = import_onnx(save(_counting(nodes, "n", {"never": np.array(False)}), tmp_path)).module
    axes = (({0: torch.export.Dim("length", max=64)},),)
    with pytest.raises(ModelError, match=message):
        torch.export.export(module, (torch.ones(5),), dynamic_shapes=axes, strict=False)


def test_a_body_has_to_fit_its_node(tmp_path):
    body = _body(_DOUBLE, [value("h", None)], [value("after", None)])
    nodes = [_NODE("Loop", ["three", "", "x"], ["y"], body=body)]
    proto = model(nodes, [value("x", [4])], [value("y", None)], {"three": np.array(3)})
    with pytest.raises(ModelError, match="another number of inputs or outputs"):
        import_onnx(save(proto, tmp_path)).module(torch.ones(4))
    scan = [_NODE("Scan", ["x"], ["y"], body=body, num_scan_inputs=2)]
    proto = model(scan, [value("x", [4])], [value("y", None)])
    with pytest.raises(ModelError, match="has 1 inputs, 2 of them in rows"):
        import_onnx(save(proto, tmp_path)).module(torch.ones(4))


def test_loops_within_loops_end(tmp_path):
    def loop(nodes, carried, after, *, names):
        number, go, goes = names
        inputs = [value(number, [], _INT), value(go, [], _BOOL), value(carried, None)]
        nodes = [*nodes, _NODE("Identity", [go], [goes])]
        return _body(nodes, inputs, [value(goes, [], _BOOL), value(after, None)])

    inner = loop([_NODE("Add", ["q", "q"], ["r"])], "q", "r", names=("i", "g", "s"))
    around = [_NODE("Loop", ["many", "", "h"], ["after"], body=inner)]
    outer = loop(around, "h", "after", names=("j", "k", "l"))
    nodes = [_NODE("Loop", ["many", "", "x"], ["y"], body=outer)]
    for many, ends in ((3, True), (1 << 15, False)):
        proto = model(nodes, [value("x", [2])], [value("y", None)], {"many": np.array(many)})
        if ends:
            compare(proto, {"x": np.ones(2, np.float32)}, tmp_path)
            continue
        with pytest.raises(ModelError, match="more than 65536 rounds"):
            import_onnx(save(proto, tmp_path)).module(torch.ones(2))


def test_an_inner_body_may_use_a_name_before_it_is_another_value_s(tmp_path):
    inputs = [value("i", [], _INT), value("go", [], _BOOL), value("h", None)]
    inner = _body(
        [_NODE("Add", ["q", "q"], ["r"]), _NODE("Identity", ["g"], ["s"])],
        [value("j", [], _INT), value("g", [], _BOOL), value("q", None)],
        [value("s", [], _BOOL), value("r", None)],
    )
    nodes = [
        _NODE("Loop", ["three", "", "h"], ["t"], body=inner),
        _NODE("Neg", ["t"], ["q"]),
        _NODE("Identity", ["q"], ["after"]),
        _NODE("Identity", ["go"], ["goes"]),
    ]
    body = _body(nodes, inputs, [value("goes", [], _BOOL), value("after", None)])
    loop = [_NODE("Loop", ["three", "", "x"], ["y"], body=body)]
    proto = model(loop, [value("x", [2])], [value("y", None)], {"three": np.array(3)})
    compare(proto, {"x": np.ones(2, np.float32)}, tmp_path)


def test_an_operator_of_a_body_that_is_not_taken_is_listed(tmp_path):
    nodes = [_NODE("NoSuch", ["one"], ["made"]), _NODE("Add", ["h", "made"], ["after"])]
    path = save(_counting(nodes, "three", {"one": np.array(1.0, np.float32)}), tmp_path)
    with pytest.raises(ModelError, match=r"NoSuch \(opset 17\): NoSuch_0"):
        import_onnx(path)
