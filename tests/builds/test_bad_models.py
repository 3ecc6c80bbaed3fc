"""Models with habits that a compiled program can't have: handled, or refused in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from edgecompile.backends.cpu.lowering.lower import lower_graph
from edgecompile.backends.inductor.compat.generation import GENERATING, generate_cpp
from edgecompile.backends.lowering.constants import PACKED_PREFIX
from edgecompile.bundle.weights import lay_out
from edgecompile.errors import EdgecompileError, ExportError, ModelError
from edgecompile.export.checks import ExportScope, check_program
from edgecompile.export.export import export_model
from edgecompile.export.ladder import STATIC_LADDER, export_program
from edgecompile.export.program import ExportedModel
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.precision import FP32
from edgecompile.runtime.format.files.weights import Weights
from edgecompile.targets.profile import load_variant

WIDTH = 8


def load(module: nn.Module, **changes: Any) -> LoadedModel:
    spec: dict[str, Any] = {
        "module": module,
        "inputs": {"x": torch.randn(1, 12, WIDTH)},
        "axes": {"x": {0: "batch", 1: "length"}},
        "limits": {"length": (1, 24)},
    }
    return load_model({**spec, **changes})


class Plain:
    """A tensor that becomes a plain attribute of the module, not a buffer."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


class Habit(nn.Module):
    """A linear layer over what ``before`` makes of the input."""

    def __init__(self, before: Callable[[Any, Tensor], Tensor], **state: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.before = before
        for name, value in state.items():
            if isinstance(value, Plain):
                vars(self)[name] = value.value
            elif isinstance(value, Tensor):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(self.before(self, x))
        return made


def export(before: Callable[[Any, Tensor], Tensor], **state: Any) -> ExportedModel:
    return export_model(load(Habit(before, **state)))


# Control flow on values, also hidden in a loop.


def halve(_: Habit, x: Tensor) -> Tensor:
    while x.abs().max() > 1:
        x = x * 0.5
    return x


def through_numpy(_: Habit, x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() * 2)


# State and other side effects.


def count(model: Habit, x: Tensor) -> Tensor:
    model.calls += 1
    model.last = x
    model.seen.append(x.shape[1])
    return x


def overwrite(model: Habit, x: Tensor) -> Tensor:
    model.mean.copy_(x[0, 0])
    return x


def replace(model: Habit, x: Tensor) -> Tensor:
    model.mean = model.mean * 0.9 + x[0, 0]
    return x


def clamp_buffer(model: Habit, x: Tensor) -> Tensor:
    model.mean.clamp_(min=-1)
    return x + model.mean


def clamp_by_replacing(model: Habit, x: Tensor) -> Tensor:
    model.mean = model.mean.clamp(min=-1)
    return x + model.mean


def clamp_in_a_list(model: Habit, x: Tensor) -> Tensor:
    model.kept[0].clamp_(min=-1)
    return x + model.kept[0]


def decay(model: Habit, x: Tensor) -> Tensor:
    model.layer.weight.mul_(1.0)
    return x


def add_in_place(_: Habit, x: Tensor) -> Tensor:
    return x.add_(1)


def clamp_in_place(_: Habit, x: Tensor) -> Tensor:
    nn.functional.relu(x, inplace=True)
    return x


def fill_a_part(_: Habit, x: Tensor) -> Tensor:
    x[:, 0].fill_(2.0)
    return x


def clamp_if_long(_: Habit, x: Tensor) -> Tensor:
    return x.clamp_(min=0) if x.shape[1] > 16 else x.clamp(min=0)


def grow(model: Habit, x: Tensor) -> Tensor:
    length = x.shape[1]
    if length > model.table.shape[0]:
        places = torch.arange(length, dtype=x.dtype).unsqueeze(1)
        model.table = places.sin().expand(length, WIDTH).clone()
    return x + model.table[:length]


_OWN = torch.library.Library("ec_test_bad_models", "FRAGMENT")
_OWN.define("on_gpu(Tensor x) -> Tensor")
_OWN.impl("on_gpu", lambda x: x, "CUDA")
_OWN.define("opaque(Tensor x) -> Tensor")
_OWN.impl("opaque", lambda x: x * 2, "CPU")


def on_gpu(_: Habit, x: Tensor) -> Tensor:
    return torch.ops.ec_test_bad_models.on_gpu(x)


def opaque(_: Habit, x: Tensor) -> Tensor:
    return torch.ops.ec_test_bad_models.opaque(x)


def to_gpu(_: Habit, x: Tensor) -> Tensor:
    return x.cuda()


def scale_by_meta(model: Habit, x: Tensor) -> Tensor:
    return x * model.scale


@pytest.mark.parametrize(
    ("before", "state", "error", "says", "helps"),
    [
        (halve, {}, ExportError, "depend on values in the input", "torch.where"),
        (through_numpy, {}, ExportError, "x.numpy()", "`details`"),
        (overwrite, {"mean": torch.zeros(WIDTH)}, ExportError, "its buffers in forward: mean", ""),
        (replace, {"mean": torch.zeros(WIDTH)}, ExportError, "its buffers in forward: mean", ""),
        # Writes that change nothing are writes all the same: what a bundle maps is read-only.
        (clamp_buffer, {"mean": torch.zeros(WIDTH)}, ExportError, "in forward: mean", "no state"),
        (
            clamp_buffer,
            {"mean": Plain(torch.zeros(WIDTH))},
            ExportError,
            "changes its tensors in forward: mean",
            "no state",
        ),
        (
            clamp_in_a_list,
            {"kept": [torch.zeros(WIDTH)]},
            ExportError,
            "its graph writes to its constants: ",
            "",
        ),
        (decay, {}, ExportError, "changes its weights in forward: layer.weight", "no state"),
        (on_gpu, {}, ModelError, "ec_test_bad_models::on_gpu has no code for the CPU", "a GPU"),
        (to_gpu, {}, ModelError, "x.cuda()", "take what moves to a GPU out of forward"),
        (opaque, {}, ExportError, "opaque.default doesn't tell the shapes", "torch's own"),
        (
            scale_by_meta,
            {"scale": [torch.ones(WIDTH, device="meta")]},
            ModelError,
            "fails on its example inputs",
            "",
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_bad_habit_is_refused_with_its_cause_and_cure(
    before: Any, state: dict[str, Any], error: type[EdgecompileError], says: str, helps: str
) -> None:
    with pytest.raises(error) as failure:
        export(before, **state)
    assert says in failure.value.message
    assert helps in (failure.value.hint or "")
    assert "Traceback" not in failure.value.message


@pytest.mark.parametrize("before", [add_in_place, clamp_in_place, fill_a_part])
def test_an_input_that_the_code_changes_is_copied(before: Any) -> None:
    model = Habit(before)
    given = torch.randn(1, 12, WIDTH)
    loaded = load(model, inputs={"x": given})
    assert loaded.notes == ("its code changes the input 'x' in place: the program works on a copy",)
    made = export_model(loaded)
    x = torch.randn(1, 9, WIDTH)
    kept = x.clone()
    with torch.no_grad():
        want = model(x.clone())
        for run in (loaded.run, lambda inputs: made.program.module()(**inputs)):
            assert torch.allclose(run({"x": x})["output"], want, atol=1e-6)
            assert torch.equal(x, kept)


def test_the_examples_of_a_factory_stay_as_they_are() -> None:
    given = torch.randn(1, 12, WIDTH)
    kept = given.clone()
    load(Habit(add_in_place), inputs={"x": given})
    assert torch.equal(given, kept)


def test_an_input_that_only_some_sizes_change_is_refused() -> None:
    loaded = load(Habit(clamp_if_long))
    assert loaded.notes == ()
    with pytest.raises(ExportError, match="changes its inputs in place: x"):
        export_model(loaded, {"length": (20, 20)})


def test_a_program_that_changes_its_input_is_wrong() -> None:
    loaded = load(Habit(clamp_in_place))
    sizes = {"batch": 1, "length": 12}
    spans = {axis: (size, size) for axis, size in sizes.items()}
    loaded.module.copied = ()  # type: ignore[assignment]
    example = loaded.make_example(sizes)
    program = export_program(loaded.module, example, loaded.inputs, spans, STATIC_LADDER[0])
    result = check_program(program, ExportScope(loaded, spans, sizes))
    assert not result.ok and "changes its inputs in place: x" in result.describe()


def test_what_is_kept_in_attributes_is_said_to_be_left_out() -> None:
    made = export(count, calls=0, last=None, seen=[])
    assert made.strategy == "dim"
    note = next(note for note in made.notes if "sets attributes" in note)
    assert "(calls, last, seen)" in note and "does none of that" in note


def test_a_table_that_grows_with_the_length_is_let_grow_first() -> None:
    made = export(grow, table=torch.zeros(4, WIDTH))
    assert made.ranges["length"] == (1, 24)


@pytest.mark.parametrize("kind", [Tensor.clone, Plain])
def test_a_tensor_that_is_replaced_by_an_equal_one_is_none_that_is_written_to(kind: Any) -> None:
    assert export(clamp_by_replacing, mean=kind(torch.zeros(WIDTH))).ranges["length"] == (1, 24)


def test_a_printing_model_prints_nothing_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    def shout(_: Habit, x: Tensor) -> Tensor:
        print("here")
        return x

    assert export(shout).strategy == "dim"
    assert capsys.readouterr().out == ""


class Mixed(nn.Module):
    """A bfloat16 layer between float32 ones; the dtype is named, or that of its weights."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        self.named = named
        self.low = nn.Linear(WIDTH, WIDTH).to(torch.bfloat16)
        self.register_buffer("exact", torch.full((WIDTH,), 1 / 3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        dtype = torch.bfloat16 if self.named else self.low.weight.dtype
        return self.low(x.to(dtype)).float() * self.exact


def test_mixed_dtypes_become_float32_or_stay_where_forward_names_them() -> None:
    made = load(Mixed(named=False))
    assert made.notes == ("weights were torch.bfloat16, torch.float64, they are float32 now",)
    assert export_model(made).max_error < 1e-6
    kept = load(Mixed(named=True))
    assert kept.notes == ("weights keep their dtypes, since forward converts to those",)
    assert export_model(kept).max_error < 1e-6


class Torn(Mixed):
    """What runs with its weights in no dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return self.low(x.half()).float()


def test_dtypes_that_run_in_no_way_are_refused_with_the_reason() -> None:
    with pytest.raises(ModelError, match="same dtype") as failure:
        load(Torn(named=True))
    assert "all weights are float32 now" in (failure.value.hint or "")


def test_meta_is_refused_wherever_it_stands() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH, device="meta")

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    with pytest.raises(ModelError) as failure:
        load(Lazy(), inputs={"x": torch.randn(1, 12, WIDTH, device="meta")})
    assert "weights are on meta ('layer.weight')" in failure.value.message
    assert "the input 'x' is on meta" in failure.value.message


class Tied(nn.Module):
    """Two tables, two layers and a head that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(50, 16), nn.Embedding(50, 16)
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.second.weight = self.head.weight = self.first.weight
        self.two.weight, self.two.bias = self.one.weight, self.one.bias

    def forward(self, ids: Tensor) -> Tensor:
        x = self.first(ids) + self.second(ids.flip(1))
        return self.head(self.two(torch.relu(self.one(x))))


def test_tied_weights_are_stored_once() -> None:
    model = load(
        Tied(),
        inputs={"ids": torch.ones(1, 6, dtype=torch.int64)},
        axes={"ids": {1: "length"}},
        limits={"length": (1, 16)},
        bounds={"ids": (0, 49)},
    )
    exported = export_model(model)
    with GENERATING:
        module = exported.program.module()
        signature = exported.program.graph_signature
        lower_graph(module, FP32)
        packed = {n for n, _ in module.named_buffers() if n.startswith(PACKED_PREFIX)}
        generated = generate_cpp(
            module,
            exported.example({"length": 8}),
            load_variant("x86-64-v3"),
            shared={*signature.parameters, *signature.buffers} | packed,
        )
    # One table for both look-ups, its packed form for the head; one packed layer, one bias.
    sizes = sorted(tuple(tensor.shape) for tensor in generated.constants.values())
    assert sizes == [(1, 16, 32), (2, 16, 32), (16,), (50, 16)]


def test_weights_over_four_gigabytes_are_read_where_they_lie(tmp_path: Path) -> None:
    # The file is sparse: it has 5 GB, and takes some pages on the disk.
    sizes = {"a": 600_000_000, "b": 3, "c": 650_000_000, "d": 5}
    layout = lay_out({name: ("float32", (size,)) for name, size in sizes.items()})
    assert layout.offsets["b"] > 2**31 and layout.offsets["d"] > 2**32
    path = tmp_path / "weights.fp32"
    with path.open("wb") as file:
        file.write(layout.header)
        for name in ("b", "d"):
            file.seek(layout.offsets[name])
            file.write(np.arange(sizes[name], dtype=np.float32).tobytes())
        file.truncate(layout.size)
    with path.open("rb") as file:
        weights = Weights(file.fileno(), str(path))
    assert weights.nbytes == layout.size > 5_000_000_000
    for name in ("b", "d"):
        assert weights.array(name).tolist() == list(range(sizes[name]))
    assert weights.array("c").shape == (650_000_000,) and weights.array("c")[-1] == 0
