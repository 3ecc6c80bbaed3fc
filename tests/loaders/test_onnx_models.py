"""ONNX files as models."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from edgecompile.errors import ModelError, UsageError
from edgecompile.export.export import export_model
from edgecompile.loaders import onnx_models
from edgecompile.loaders.load import load_model
from edgecompile.models.options import LoadOptions
from edgecompile.models.specs import AxisLimits
from edgecompile.onnx_import.module import ImportedModule
from tests.onnx_import.graphs import FLOAT, INT, model, run_reference, save, value

_TABLE = np.random.default_rng(0).standard_normal((50, 8)).astype(np.float32)


def _encoder(ids=("batch_size", "seq len"), kind=FLOAT):
    """A table, a mask, and a mean over real positions, with shapes calculated as exporters do."""
    nodes = [
        helper.make_node("Gather", ["table", "input.ids"], ["h"]),
        helper.make_node("Shape", ["h"], ["shape"]),
        helper.make_node("Cast", ["attention_mask"], ["m"], to=kind),
        helper.make_node("Unsqueeze", ["m", "last"], ["u"]),
        helper.make_node("Expand", ["u", "shape"], ["e"]),
        helper.make_node("Mul", ["h", "e"], ["p"]),
        helper.make_node("ReduceSum", ["p", "one"], ["s"], keepdims=0),
        helper.make_node("ReduceSum", ["e", "one"], ["c"], keepdims=0),
        helper.make_node("Div", ["s", "c"], ["pooled:0"]),
    ]
    dtype = np.float16 if kind == TensorProto.FLOAT16 else np.float32
    tensors = {"table": _TABLE.astype(dtype), "last": np.array([-1]), "one": np.array([1])}
    inputs = [value("input.ids", list(ids), INT), value("attention_mask", list(ids), INT)]
    return model(nodes, inputs, [value("pooled:0", [ids[0], 8], kind)], tensors)


def test_named_dimensions_are_axes(tmp_path: Path) -> None:
    path = save(_encoder(), tmp_path, "encoder.onnx")
    loaded = load_model(path, batch=(1, 4), max_length=40)
    assert (loaded.name, loaded.source.kind, loaded.source.lasting) == ("encoder", "onnx", True)
    assert set(loaded.source.sha256) == {"encoder.onnx"}
    assert loaded.axes == {"batch": AxisLimits(1, 4), "seq_len": AxisLimits(1, 40)}
    ids, mask = loaded.inputs
    assert (ids.name, ids.shape, ids.bounds, ids.pad) == (
        "input_ids",
        ("batch", "seq_len"),
        (0, 49),
        0,
    )
    assert mask.is_mask and loaded.paddable
    assert [(item.name, item.shape) for item in loaded.outputs] == [("pooled_0", ("batch", 8))]
    notes = "\n".join(loaded.notes)
    assert "the axis 'batch_size' is called batch" in notes
    assert "compared with ONNX Runtime" in notes and "seq_len 32" in notes


def test_equals_onnx_runtime_at_many_sizes(tmp_path: Path) -> None:
    path = save(_encoder(), tmp_path)
    module = load_model(path, batch=(1, 4)).module
    for length in range(1, 41, 2):
        ids = torch.arange(2 * length).reshape(2, length) % 50
        mask = torch.ones_like(ids)
        mask[0, length // 2 + 1 :] = 0
        result = module(input_ids=ids, attention_mask=mask)["pooled_0"]
        wanted = run_reference(path, {"input.ids": ids.numpy(), "attention_mask": mask.numpy()})
        np.testing.assert_allclose(result.numpy(), wanted[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dims", [(None, None), ("?", "?")])
def test_dimensions_without_names_get_some(tmp_path: Path, dims: tuple[str | None, ...]) -> None:
    loaded = load_model(save(_encoder(dims), tmp_path))
    # Two inputs' unnamed dimensions needn't be equal: the mask's is an axis of its own.
    assert loaded.inputs[0].shape == ("batch", "input_ids_1")
    assert "dimension 1 of 'input_ids' has no name; it is called input_ids_1" in loaded.notes


def test_weights_of_float16_become_float32(tmp_path: Path) -> None:
    loaded = load_model(save(_encoder(kind=TensorProto.FLOAT16), tmp_path))
    assert {tensor.dtype for tensor in loaded.module.parameters()} == {torch.float32}
    assert loaded.outputs[0].dtype == "float32"


def test_one_program_of_a_recurrent_layer_serves_all_lengths(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    weights = {"w": random.standard_normal((1, 12, 8)), "r": random.standard_normal((1, 12, 3))}
    tensors = {name: array.astype(np.float32) for name, array in weights.items()}
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=3)
    proto = model([node], [value("x", ["length", 1, 8])], [value("y", None)], tensors)
    path = save(proto, tmp_path)
    program = export_model(load_model(path), {"length": (1, 50)}).program.module()
    for length in (1, 9, 50):
        x = torch.randn(length, 1, 8)
        wanted = run_reference(path, {"x": x.numpy()})[0]
        np.testing.assert_allclose(program(x=x)["y"].numpy(), wanted, rtol=1e-5, atol=1e-5)


_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _recurrent(
    operator: str, steps: int | str, rows: int | str, batch_first: bool = False
) -> onnx.ModelProto:
    """A layer of two directions with lengths."""
    random = np.random.default_rng(2)
    height = 3 * _GATES[operator]
    weights = {
        "w": random.standard_normal((2, height, 8)),
        "r": random.standard_normal((2, height, 3)),
    }
    tensors = {name: array.astype(np.float32) for name, array in weights.items()}
    options = {"linear_before_reset": 1} if operator == "GRU" else {}
    nodes = (
        [helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0, 2])] if batch_first else []
    )
    names = ["turned" if batch_first else "x", "w", "r", "", "lens"]
    nodes.append(
        helper.make_node(
            operator, names, ["y"], direction="bidirectional", hidden_size=3, **options
        )
    )
    sizes = [rows, steps, 8] if batch_first else [steps, rows, 8]
    given = [value("x", sizes), value("lens", [rows], TensorProto.INT32)]
    return model(nodes, given, [value("y", None)], tensors)


@pytest.mark.parametrize("steps", [5, "length"])
@pytest.mark.parametrize("operator", _GATES)
def test_a_program_of_fixed_steps_takes_lengths(
    tmp_path: Path, operator: str, steps: int | str
) -> None:
    path = save(_recurrent(operator, steps, 2), tmp_path)
    exported = export_model(load_model(path), {"length": (5, 5)} if steps == "length" else {})
    assert exported.strategy == "static-recurrences"
    program = exported.program.module()
    for lengths in ([5, 2], [0, 4], [1, 5]):
        x, lens = torch.randn(5, 2, 8), torch.tensor(lengths, dtype=torch.int32)
        wanted = run_reference(path, {"x": x.numpy(), "lens": lens.numpy()})[0]
        given = program(x=x, lens=lens)["y"].numpy()
        np.testing.assert_allclose(given, wanted, rtol=1e-5, atol=1e-5)


def _halved(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model, of which the layer gets every second step."""
    for name, number in (("from", 0), ("to", 99), ("step", 2)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([number]), name))
    proto.graph.node[-1].input[0] = "half"
    names = ["x", "from", "to", "from", "step"]
    proto.graph.node.insert(0, helper.make_node("Slice", names, ["half"]))
    return proto


@pytest.mark.parametrize(
    ("steps", "options", "bounds"),
    [
        ("length", {}, (0, "length")),
        ("length", {"halved": True}, None),
        (9, {}, (0, 9)),
        (9, {"batch_first": True}, (0, 9)),
        (16, {"halved": True}, None),  # 8 steps, of which no input has as many
        (2, {}, (0, 2)),
    ],
)
@pytest.mark.parametrize("rows", ["batch", 2])
def test_lengths_of_a_recurrent_layer_are_bounded(
    tmp_path: Path,
    steps: int | str,
    options: dict[str, bool],
    bounds: tuple[int, int | str] | None,
    rows: int | str,
) -> None:
    proto = _recurrent("GRU", steps, rows, options.get("batch_first", False))
    path = save(_halved(proto) if options.get("halved") else proto, tmp_path)
    limits = {"batch": (1, 4)} if rows == "batch" else {}
    limits.update({"max_length": 40} if steps == "length" else {})
    loaded = load_model(path, **limits)
    assert loaded.inputs[1].bounds == bounds
    assert any("compared with ONNX Runtime" in note for note in loaded.notes)


def test_an_import_that_computes_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(_encoder(), tmp_path)
    monkeypatch.setattr(onnx_models, "difference", lambda a, b, hidden: 0.5)
    with pytest.raises(ModelError, match=r"'pooled:0' differs from ONNX Runtime's by 0\.5"):
        load_model(path)


def _masked(seen: np.ndarray) -> onnx.ModelProto:
    """Attention with a mask of truth values, which gives NaN for rows without any."""
    nodes = [
        helper.make_node("And", ["given", "seen"], ["both"]),
        helper.make_node("Where", ["both", "zero", "off"], ["mask"]),
        helper.make_node("Transpose", ["q"], ["k"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "k"], ["product"]),
        helper.make_node("Add", ["product", "mask"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "q"], ["heads"]),
        helper.make_node("Add", ["heads", "one"], ["y"]),
    ]
    numbers = {"zero": 0, "off": -np.inf, "one": 1}
    tensors = {"seen": seen, **{name: np.float32(number) for name, number in numbers.items()}}
    inputs = [value("q", [1, 2, 4, 8]), value("given", [4, 4], TensorProto.BOOL)]
    return model(nodes, inputs, [value("y", None)], tensors)


@pytest.mark.parametrize(("rows", "told"), [([2], "compared with"), (range(4), "isn't checked")])
def test_rows_that_see_nothing_may_be_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: Iterable[int], told: str
) -> None:
    seen = np.ones((4, 4), bool)
    seen[list(rows)] = False
    path = save(_masked(seen), tmp_path)
    loaded = load_model(path)
    assert any(told in note for note in loaded.notes)
    if told == "compared with":  # other rows are compared all the same
        attend = torch.nn.functional.scaled_dot_product_attention
        twice = lambda *args, **options: 2 * attend(*args, **options)  # noqa: E731
        monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", twice)
        with pytest.raises(ModelError, match="differs from ONNX Runtime's"):
            load_model(path)


def test_an_import_that_fails_where_onnx_runtime_runs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(_encoder(), tmp_path)
    forward = ImportedModule.forward

    def fails(self: ImportedModule, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if inputs[0].shape[1] > 16:
            raise ValueError("too long")
        return forward(self, *inputs)

    monkeypatch.setattr(ImportedModule, "forward", fails)
    with pytest.raises(ModelError, match=r"runs the model with .*seq_len 32.*too long"):
        load_model(path)


def _sums(first: tuple[str, ...], second: tuple[str, ...]) -> onnx.ModelProto:
    """The sum of two inputs' sums."""
    nodes = [
        helper.make_node("ReduceSum", ["a"], ["s"], keepdims=0),
        helper.make_node("ReduceSum", ["b"], ["t"], keepdims=0),
        helper.make_node("Add", ["s", "t"], ["y"]),
    ]
    return model(nodes, [value("a", list(first)), value("b", list(second))], [value("y", [])])


@pytest.mark.parametrize(
    ("first", "second", "shapes"),
    [
        (("N", "seq-len"), ("N", "seq-len"), [("batch", "seq_len"), ("batch", "seq_len")]),
        (("batch", "m"), ("N", "m"), [("batch", "m"), ("N", "m")]),
        (("bs", "m"), ("bs", "m + 1"), [("batch", "m"), ("batch", "m+1")]),
        (("batch_size", "m"), ("m", "m+batch_size"), [("batch", "m"), ("m", "m+batch")]),
        (("m", "B"), ("past+new", "m"), [("m", "B"), ("past_new", "m")]),
    ],
)
def test_names_with_signs_are_sums_of_names_that_are_there(
    first: tuple[str, ...], second: tuple[str, ...], shapes: list[tuple[str, ...]], tmp_path: Path
) -> None:
    loaded = load_model(save(_sums(first, second), tmp_path))
    assert [item.shape for item in loaded.inputs] == shapes


def test_weights_lie_beside_the_file_that_a_link_names(tmp_path: Path) -> None:
    proto = _encoder()
    (tmp_path / "store").mkdir()
    path = tmp_path / "store" / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights", size_threshold=1000)
    link = tmp_path / "linked.ONNX"
    link.symlink_to(path)
    loaded = load_model(link)
    assert set(loaded.source.sha256) == {"linked.ONNX", "weights"}
    assert any("compared with ONNX Runtime" in note for note in loaded.notes)


def test_says_that_nothing_was_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_models, "open_reference", lambda *_: None)
    loaded = load_model(save(_encoder(), tmp_path))
    assert any("isn't checked against it" in note for note in loaded.notes)


def test_a_batch_that_the_file_has_no_name_for_is_refused(tmp_path: Path) -> None:
    path = save(_encoder((1, "seq")), tmp_path)
    with pytest.raises(ModelError, match="none of its axes is 'batch'") as failure:
        load_model(path, batch=(4, 4))
    cure = "export the file with 'batch' as the name of the first dimension of its inputs"
    assert failure.value.hint == cure
    named = {"input.ids": (1, "seq")}
    with pytest.raises(ModelError, match="none of its axes is 'batch'") as failure:
        load_model(path, batch=(4, 4), input_shape=named)
    assert str(failure.value.hint).startswith(
        "`input_shape` gives input.ids no dimension 'batch'; "
    )


def test_options_of_folders_are_refused(tmp_path: Path) -> None:
    path = save(_encoder(), tmp_path)
    with pytest.raises(Exception, match="for folders in Hugging Face layout"):
        load_model(path, pooling="mean")


def _moded():
    """A sum that goes on from run to run, of which an input says the mode."""

    def branch(name: str, operator: str) -> onnx.GraphProto:
        nodes = [helper.make_node(operator, ["x", "h"], [name])]
        return helper.make_graph(nodes, name, [], [value(name, None)])

    nodes = [
        helper.make_node("Equal", ["mode", "one"], ["plus"]),
        helper.make_node(
            "If", ["plus"], ["y"], then_branch=branch("a", "Add"), else_branch=branch("s", "Sub")
        ),
        helper.make_node("Identity", ["y"], ["h.next"]),
    ]
    inputs = [value("x", [None, 3]), value("h", ["N", 3]), value("mode", [], INT)]
    outputs = [value("y", None), value("h.next", None)]
    return model(nodes, inputs, outputs, {"one": np.array(1)})


def test_an_input_that_is_fixed_settles_a_choice(tmp_path: Path) -> None:
    path = save(_moded(), tmp_path)
    with pytest.raises(ModelError, match=r"chooses by 'plus'.*\n?.*`fixed_input`"):
        load_model(path)
    for mode, wanted in ((1, 3.0), (2, -1.0)):
        loaded = load_model(path, fixed_input={"mode": mode}, input_shape={"h": ("N", 3)})
        assert [item.name for item in loaded.inputs] == ["x", "h"]
        assert f"the input 'mode' is always {mode}" in loaded.notes
        assert any("compared with ONNX Runtime" in note for note in loaded.notes)
        result = loaded.module(x=torch.ones(1, 3), h=torch.full((1, 3), 2.0))
        assert result["y"].tolist() == [[wanted] * 3]


def test_outputs_are_states_of_a_stream(tmp_path: Path) -> None:
    path = save(_moded(), tmp_path)
    loaded = load_model(path, fixed_input={"mode": 1}, state={"h": "h.next"})
    assert [(item.output, item.input) for item in loaded.state] == [("h_next", "h")]
    assert loaded.inputs[1].shape == (1, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fixed_input": {"rate": 1}}, "no input 'rate', only x, h, mode"),
        ({"fixed_input": {"x": 1}}, "'x' can't be fixed: its sizes vary"),
        ({"fixed_input": {"mode": 1.5}}, "'mode' is torch.int64, which 1.5 isn't"),
        (
            {"fixed_input": {"mode": 2**70}},
            "'mode' is torch.int64, which 1180591620717411303424 isn't",
        ),
        (
            {"input_shape": {"x": (1, 4)}},
            r"'x' can't have the sizes 1, 4: the ONNX file says \?, 3",
        ),
        ({"input_shape": {"h": (1,)}}, "'h' can't have the sizes 1: the ONNX file says N, 3"),
        ({"fixed_input": {"mode": 1}, "state": {"h": "z"}}, "there is no output 'z'"),
        ({"fixed_input": {"mode": 1}, "state": {"g": "y"}}, "state names the input 'g'"),
    ],
)
def test_wrong_options_of_inputs_are_told(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(save(_moded(), tmp_path), **options)


def test_options_of_onnx_files_are_refused_elsewhere(tmp_path: Path) -> None:
    factory = tmp_path / "net.py"
    factory.write_text("def make(): ...\n")
    with pytest.raises(UsageError, match=r"`state`: for ONNX files, and '.*net\.py:make' is none"):
        load_model(f"{factory}:make", state={"h": "y"})
    for wrong in ({"input_shape": {"x": (0,)}}, {"state": {"h": 1}}, {"fixed_input": {"x": "1"}}):
        with pytest.raises(UsageError, match=f"`{next(iter(wrong))}` is"):
            LoadOptions(**wrong)


def test_options_of_inputs_travel_in_a_bundle() -> None:
    options = LoadOptions(
        fixed_input={"sr": 16000}, input_shape={"x": (1, "length")}, state={"h": "h_next"}
    )
    assert LoadOptions.from_json(json.loads(json.dumps(options.to_json()))) == options


def test_sizes_at_which_a_pool_has_nothing_to_pool_are_left_out(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[12, 12], strides=[4, 4]),
        helper.make_node("GlobalAveragePool", ["p"], ["y"]),
    ]
    proto = model(nodes, [value("x", [1, 3, "height", "width"])], [value("y", None)])
    loaded = load_model(save(proto, tmp_path))
    note = next(note for note in loaded.notes if "compared with ONNX Runtime" in note)
    assert "height 16" in note and "height 8" not in note


def test_a_number_beyond_an_input_s_type_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "s"], ["y"])]
    proto = model(nodes, [value("x", [2]), value("s", [])], [value("y", [2])])
    with pytest.raises(ModelError, match=r"'s' is torch.float32, which 1e\+39 isn't"):
        load_model(save(proto, tmp_path), fixed_input={"s": 1e39})
