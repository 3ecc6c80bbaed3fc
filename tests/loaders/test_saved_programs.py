from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

from edgecompile.errors import ModelError, UsageError
from edgecompile.export.checks import compare_outputs
from edgecompile.export.export import export_model
from edgecompile.export.program import ExportedModel
from edgecompile.loaders.load import load_model
from edgecompile.models.specs import AxisLimits
from edgecompile.runtime.format.sums import size_of
from tests.factories import tiny_models


def save(path: Path, module: torch.nn.Module, *args: Any, **options: Any) -> Path:
    """Exports a module with these arguments and options of torch.export."""
    torch.export.save(torch.export.export(module, *args, **options), path)
    return path


def save_masked(path: Path, *, positional: bool = False) -> Path:
    made = tiny_models.masked_mlp()
    length, batch = Dim("tokens", min=2, max=48), Dim("rows", min=1, max=4)
    x, mask = torch.randn(2, 12, 8), torch.ones(2, 12, dtype=torch.int64)
    shapes = {"x": {0: batch, 1: length}, "attention_mask": {0: batch, 1: length}}
    args = (x, mask) if positional else ()
    kwargs = None if positional else {"x": x, "attention_mask": mask}
    return save(path, made["module"], args, kwargs, dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_masked(tmp_path_factory.mktemp("saved") / "model.pt2")


@pytest.mark.parametrize("positional", [False, True])
def test_inputs_and_axes_come_from_the_signature(tmp_path: Path, positional: bool) -> None:
    path = save_masked(tmp_path / "masked.pt2", positional=positional)
    model = load_model(path, batch=(1, 4))
    assert model.name == "masked" and model.source.kind == "pt2"
    assert [(s.name, s.shape) for s in model.inputs] == [
        ("x", ("batch", "length", 8)),
        ("attention_mask", ("batch", "length")),
    ]
    assert model.axes == {"batch": AxisLimits(1, 4), "length": AxisLimits(2, 48)}
    assert model.length_axis == "length" and model.has_mask and not model.paddable
    assert model.outputs[0].shape == ("batch", 4)
    eager = tiny_models.masked_mlp()["module"]
    example = model.make_example({"batch": 3, "length": 17}, seed=1)
    with torch.no_grad():
        assert torch.allclose(model.run(example)["output"], eager(**example), atol=1e-6)


def test_a_saved_program_is_exported_again_for_a_bucket(saved: Path) -> None:
    model = load_model(saved, pad={"x": 0.0}, max_length=40)
    assert model.axes == {"batch": AxisLimits(1, 1), "length": AxisLimits(2, 40)}
    exported = export_model(model, {"length": (5, 20)})
    assert exported.ranges == {"batch": (1, 1), "length": (5, 20)}
    static = export_model(model, {"length": (16, 16)})
    assert static.static


class Pairs(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(1, (-1, 2)).sum(2).cumsum(1)


def test_a_size_may_be_a_multiple_of_one_that_no_input_has(tmp_path: Path) -> None:
    path = tmp_path / "pairs.pt2"
    shapes = {"x": {1: 2 * Dim("half", min=2, max=20)}}
    save(path, Pairs(), (), {"x": torch.randn(1, 8, 4)}, dynamic_shapes=shapes)
    model = load_model(path)
    assert model.inputs[0].shape == (1, "2*length", 4)
    assert model.axes == {"length": AxisLimits(2, 20)} and model.length_axis == "length"
    exported = export_model(model)
    assert exported.ranges == {"length": (2, 20)}
    assert exported.outputs[0].shape == (1, "length", 4)


class TwoRates(torch.nn.Module):
    def forward(self, x: torch.Tensor, fast: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
        return x.mean(1) + fast[:, : fast.shape[1] - 3].mean(1) + past.mean(1)


def test_sizes_may_follow_from_others(tmp_path: Path) -> None:
    """As torch writes them: ranges are named by sums of symbols."""
    length = Dim("length", min=2, max=30)
    inputs = {"x": torch.randn(1, 6), "fast": torch.randn(1, 13), "past": torch.randn(1, 5)}
    shapes = {"x": {1: length}, "fast": {1: 2 * length + 1}, "past": {1: length - 1}}
    path = tmp_path / "rates.pt2"
    save(path, TwoRates(), (), inputs, dynamic_shapes=shapes)
    model = load_model(path)
    sizes = {item.name: item.shape[1] for item in model.inputs}
    (axis,) = model.axes
    wanted = {"x": size_of(sizes["x"], {axis: 9})}
    wanted |= {"fast": 2 * wanted["x"] + 1, "past": wanted["x"] - 1}
    assert {name: size_of(size, {axis: 9}) for name, size in sizes.items()} == wanted
    exported = export_model(model, {axis: (4, 20)})
    exported.save(tmp_path / "exported")
    again = ExportedModel.load(tmp_path / "exported")
    example = again.example({axis: 7})
    assert compare_outputs(again.program.module()(**example), model.run(example)) < 1e-6

    parts = read_parts(path)
    program = json.loads(parts[MODEL])
    program["range_constraints"]["f(1)"] = {"min_val": 1, "max_val": 2}
    parts[MODEL] = json.dumps(program).encode()
    with pytest.raises(ModelError, match=r"the name 'f\(1\)' isn't plain"):
        load_model(write_parts(tmp_path / "evil.pt2", parts))


def test_tables_give_integer_inputs_their_bounds_and_pad(tmp_path: Path) -> None:
    made = tiny_models.causal()
    shapes = {"ids": {1: Dim("length", min=1, max=30)}}
    path = tmp_path / "causal.pt2"
    model = load_model(save(path, made["module"], (), made["inputs"], dynamic_shapes=shapes))
    assert model.inputs[0].bounds == (0, tiny_models.VOCABULARY - 1)
    assert model.inputs[0].pad == 0 and model.inputs[0].shape == (1, "length")
    assert model.outputs[0].name == "logits"
    assert model.outputs[0].shape == (1, "length", tiny_models.VOCABULARY)


def test_a_static_program_has_an_axis_of_one_size(tmp_path: Path) -> None:
    path = save(tmp_path / "static.pt2", torch.nn.Linear(3, 2), (torch.ones(4, 3),))
    model = load_model(path)
    assert model.axes == {"rows": AxisLimits(4, 4)} and model.length_axis == "rows"
    assert model.inputs[0].shape == ("rows", 3)
    exported = export_model(model)
    assert exported.static and exported.ranges == {"rows": (4, 4)}
    with pytest.raises(ModelError, match="batches of 1 to 2 are asked for"):
        load_model(path, batch=(1, 2))


def test_options_outside_the_program_are_refused(saved: Path) -> None:
    outside = r"batch 1\.\.9 isn't within the program's 1\.\.4"
    with pytest.raises(ModelError, match=outside) as caught:
        load_model(saved, batch=(1, 9))
    assert "`batch` within them" in str(caught.value.hint)
    with pytest.raises(ModelError, match="inputs that don't exist: y"):
        load_model(saved, pad={"y": 0})


MODEL = "models/model.json"
CONSTANTS = "data/constants/model_constants_config.json"
WEIGHTS = "data/weights/model_weights_config.json"


def read_parts(path: Path) -> dict[str, bytes]:
    """The archive's files, named as torch names them: without the folder that all are in."""
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def write_parts(path: Path, parts: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(f"model/{name}", data)
    return path


class _Evil:
    """Leaves a trace once it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = str(trace)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, (self.trace,))


def saved_evil(trace: Path) -> bytes:
    stream = io.BytesIO()
    torch.save({"x": _Evil(trace)}, stream)
    return stream.getvalue()


def change_program(change: Callable[[dict[str, Any]], object]) -> Callable[..., Any]:
    def apply(parts: dict[str, bytes], trace: Path) -> None:
        program = json.loads(parts[MODEL])
        change(program | {"trace": str(trace)})
        program.pop("trace", None)
        parts[MODEL] = json.dumps(program).encode()

    apply.__name__ = change.__name__  # type: ignore[attr-defined]
    return apply


def opaque_object(parts: dict[str, bytes], trace: Path) -> None:
    """As in an archive that says of itself that nothing in it is pickled."""
    config = json.loads(parts[CONSTANTS])
    meta = next(iter(json.loads(parts[WEIGHTS])["config"].values()))
    config["config"]["x"] = {**meta, "path_name": "opaque_obj_0", "use_pickle": False}
    parts[CONSTANTS] = json.dumps(config).encode()
    size = len(parts["data/weights/" + meta["path_name"]])
    # Its size has to be one of whole floats.
    parts["data/constants/opaque_obj_0"] = pickle.dumps(_Evil(trace)).ljust(size, b"\0")


def pickled_weight(parts: dict[str, bytes], trace: Path) -> None:
    config = json.loads(parts[WEIGHTS])
    entry = next(iter(config["config"].values()))
    entry["use_pickle"] = True
    parts["data/weights/" + entry["path_name"]] = saved_evil(trace)
    parts[WEIGHTS] = json.dumps(config).encode()


def sample_inputs(parts: dict[str, bytes], trace: Path) -> None:
    parts["data/sample_inputs/model.pt"] = saved_evil(trace)


def old_weights(parts: dict[str, bytes], trace: Path) -> None:
    parts["data/weights/model.pt"] = saved_evil(trace)


def second_model(parts: dict[str, bytes], trace: Path) -> None:
    for name in list(parts):
        if "model" in name and name != MODEL:
            parts[name.replace("model", "other")] = parts[name]
    parts["models/other.json"] = parts[MODEL]
    parts["data/sample_inputs/other.pt"] = saved_evil(trace)


def find_key(value: Any, key: str) -> Iterator[dict[str, Any]]:
    """The objects that have a key."""
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            yield from find_key(item, key)
    if isinstance(value, dict) and key in value:
        yield value


def code(program: dict[str, Any]) -> str:
    return f"__import__('os').mkdir({program['trace']!r})"


def size_expression(program: dict[str, Any]) -> None:
    next(find_key(program, "expr_str"))["expr_str"] = code(program)


def size_expression_in_a_text(program: dict[str, Any]) -> None:
    next(find_key(program, "expr_str"))["expr_str"] = f"floor({code(program)!r})"


def guards(program: dict[str, Any]) -> None:
    program["guards_code"].append(code(program))


def argument_name(parts: dict[str, bytes], trace: Path) -> None:
    name = f"attention_mask=__import__('os').mkdir('{trace}')"
    text = parts[MODEL].decode().replace('"attention_mask"', f'"{name}"')
    parts[MODEL] = text.encode()


def enum_of_a_module(program: dict[str, Any]) -> None:
    spec = program["graph_module"]["module_call_graph"][0]["signature"]
    place, tree = Path(program["trace"]), json.loads(spec["in_spec"])
    (place.parent / "evil_module.py").write_text(f"import os; os.mkdir({str(place)!r})")
    enum = {"__enum__": True, "fqn": "evil_module:x", "name": "x"}
    tree[1]["children_spec"][0]["context"] = json.dumps(enum)
    spec["in_spec"] = json.dumps(tree)


EVIL = [
    opaque_object,
    pickled_weight,
    sample_inputs,
    old_weights,
    second_model,
    argument_name,
    *map(change_program, (size_expression, size_expression_in_a_text, guards, enum_of_a_module)),
]


@pytest.mark.parametrize("change", EVIL, ids=lambda change: change.__name__)
def test_archives_that_would_run_code_are_refused(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[..., Any]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    trace = tmp_path / "trace"
    parts = read_parts(saved)
    change(parts, trace)
    path = write_parts(tmp_path / "evil.pt2", parts)
    with pytest.raises(ModelError, match="is refused"):
        load_model(path)
    assert not trace.exists()
    # torch itself would have run it: while it reads, makes a module, or calls that.
    with contextlib.suppress(Exception):
        program = torch.export.load(path)
        program.module()(**program.example_inputs[1])
    assert trace.exists()


def test_what_torch_would_try_as_an_old_format_is_refused(saved: Path, tmp_path: Path) -> None:
    """torch.export.load falls back to it where the archive can't be read, and unpickles."""
    trace, path = tmp_path / "trace", tmp_path / "old.pt2"
    parts = read_parts(saved)
    config = json.loads(parts[CONSTANTS])
    config["config"]["x"] = {"path_name": "?", "use_pickle": True, "is_param": False}
    parts[CONSTANTS] = json.dumps(config).encode()
    write_parts(path, parts)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("version", "8.20")
        archive.writestr("serialized_exported_program.json", parts[MODEL])
        for name in ("state_dict", "constants", "example_inputs"):
            archive.writestr(f"serialized_{name}.pt", saved_evil(trace))
    with pytest.raises(ModelError):
        load_model(path)
    assert not trace.exists()
    with contextlib.suppress(Exception):
        torch.export.load(path)
    assert trace.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("data/aotinductor/model/code.so", "compiled code"),
        ("data/weights/model.pt", "old format"),
        ("data/constants/custom_obj_0", "a pickled object"),
        ("data/constants/MODEL_constants_config.json", "what isn't known here"),
        ("models/other.json", "what isn't known here"),
        ("executorch/x.pte", "what isn't known here"),
    ],
)
def test_files_that_torch_export_save_does_not_write_are_refused(
    saved: Path, tmp_path: Path, name: str, message: str
) -> None:
    path = write_parts(tmp_path / "added.pt2", {**read_parts(saved), name: b"x"})
    with pytest.raises(ModelError, match=message):
        load_model(path)


@pytest.mark.parametrize("target", ["torch.os.mkdir", "torch.ops.load_library", "#x", "print"])
def test_targets_are_operators(saved: Path, tmp_path: Path, target: str) -> None:
    parts = read_parts(saved)
    program = json.loads(parts[MODEL])
    program["graph_module"]["graph"]["nodes"][-1]["target"] = target
    parts[MODEL] = json.dumps(program).encode()
    with pytest.raises(ModelError, match=f"target is '{target}'"):
        load_model(write_parts(tmp_path / "other.pt2", parts))


def test_extra_files_are_left_alone(saved: Path, tmp_path: Path) -> None:
    parts = {**read_parts(saved), "extra/notes.txt": b"hello"}
    assert load_model(write_parts(tmp_path / "more.pt2", parts)).length_axis == "length"


def test_damaged_and_foreign_archives_are_refused(saved: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.pt2"
    cut.write_bytes(saved.read_bytes()[:-200])
    empty = tmp_path / "empty.pt2"
    empty.write_bytes(b"")
    other = tmp_path / "other.pt2"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("notes.txt", "hello")
    garbled = write_parts(tmp_path / "garbled.pt2", {**read_parts(saved), MODEL: b"{}"})
    for path, message in [
        # What is left may end with an archive inside the archive.
        (cut, "no .pt2 archive|holds no exported program"),
        (empty, "no .pt2 archive"),
        (other, "no .pt2 archive|holds no exported program"),
        (garbled, "can't be read by torch"),
    ]:
        with pytest.raises(ModelError, match=message) as failure:
            load_model(path)
        assert "torch.export.save" in (failure.value.hint or "")


def test_other_precisions_are_refused(tmp_path: Path) -> None:
    for dtype, message in (
        (torch.bfloat16, "bfloat16"),
        (torch.float64, r"weights of torch\.float64"),
    ):
        module, x = torch.nn.Linear(3, 2).to(dtype), torch.ones(4, 3, dtype=dtype)
        path = save(tmp_path / "linear.pt2", module, (x,))
        with pytest.raises(ModelError, match=message):
            load_model(path)


def test_several_axes_are_told_apart_in_a_note(tmp_path: Path) -> None:
    class Pair(torch.nn.Module):
        def forward(self, query: torch.Tensor, passage: torch.Tensor) -> torch.Tensor:
            return query @ passage.transpose(1, 2)

    dims = {name: torch.export.Dim(name, min=2, max=9) for name in ("one", "other", "many")}
    path = save(
        tmp_path / "pair.pt2",
        Pair(),
        (torch.randn(3, 4, 8), torch.randn(3, 5, 8)),
        dynamic_shapes={
            "query": {0: dims["many"], 1: dims["one"]},
            "passage": {0: dims["many"], 1: dims["other"]},
        },
    )
    model = load_model(path, batch=(2, 3))
    assert model.outputs[0].shape == ("batch", "length", "axis2")
    assert model.notes == ("length is dimension 1 of 'query'; axis2 is dimension 1 of 'passage'",)


def test_a_batch_is_what_varies_where_nothing_else_does(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", min=1, max=9)
    linear, x = torch.nn.Linear(8, 2).eval(), torch.randn(3, 8)
    path = save(tmp_path / "linear.pt2", linear, (x,), dynamic_shapes={"input": {0: batch}})
    model = load_model(path, batch=(1, 4))
    assert model.length_axis == "batch"
    assert (model.axes["batch"].lo, model.axes["batch"].hi) == (1, 4)


@pytest.mark.parametrize("functional", [False, True])
def test_inputs_that_a_program_changes_are_copied(tmp_path: Path, functional: bool) -> None:
    class Overwrite(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.clamp_(min=0)
            return x + y

    x, y = torch.randn(1, 6, 8), torch.randn(1, 6, 8)
    length = Dim("length", min=2, max=20)
    program = torch.export.export(
        Overwrite(), (x.clone(), y), dynamic_shapes={"x": {1: length}, "y": {1: length}}
    )
    if functional:
        # What it changes is then told by its signature alone.
        program = program.run_decompositions({})
        assert program.graph_signature.user_inputs_to_mutate
    torch.export.save(program, tmp_path / "overwrite.pt2")
    model = load_model(tmp_path / "overwrite.pt2")
    assert model.notes == ("its code changes the input 'x' in place: the program works on a copy",)
    kept = x.clone()
    made = export_model(model).program.module()
    assert torch.equal(made(x=x, y=y)["output"], kept.clamp(min=0) + y)
    assert torch.equal(x, kept)


def test_options_of_folders_are_refused(saved: Path) -> None:
    with pytest.raises(UsageError, match=r"`task`, `softmax`: for folders in .*, which .* isn't"):
        load_model(saved, task="image", softmax=True)
    for task in ("causal-lm", "seq2seq-lm"):
        with pytest.raises(ModelError, match=f'`task="{task}"`: for language models that generate'):
            load_model(saved, task=task)
