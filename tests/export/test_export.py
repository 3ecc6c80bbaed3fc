from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from edgecompile.errors import ExportError, ModelError
from edgecompile.export import ladder
from edgecompile.export.attempts import try_strategy
from edgecompile.export.checks import ExportScope, check_program, choose_sizes, compare_outputs
from edgecompile.export.export import export_model
from edgecompile.export.ladder import LADDER, ExportStrategy, export_program, trace_sizes
from edgecompile.export.program import ExportedModel
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.runtime.format.sums import size_of
from tests.factories import tiny_models

TINY = Path(tiny_models.__file__)


def load(name: str, **options: Any) -> LoadedModel:
    return load_model(f"{TINY}:{name}", **options)


def graph_inputs(exported: ExportedModel) -> list[str]:
    return [str(name) for name in exported.program.graph_signature.user_inputs]


def test_a_dynamic_program_is_right_at_lengths_that_were_not_checked() -> None:
    model = load("masked_mlp")
    exported = export_model(model, {"length": (1, 40)}, hint={"length": 12})
    assert exported.strategy == "dim" and not exported.static
    assert exported.ranges == {"batch": (1, 1), "length": (1, 40)}
    assert graph_inputs(exported) == ["x", "attention_mask"]
    module = exported.program.module()
    checked = {sizes["length"] for sizes in exported.checked}
    assert {1, 2, 12, 13, 20, 21, 39, 40} == checked
    for length in set(range(1, 41)) - checked:
        example = exported.example({"length": length}, seed=length, padding=length // 2)
        want = model.run(example)
        assert compare_outputs(module(**example), want) < 1e-5  # type: ignore[operator]
    with pytest.raises(AssertionError):
        module(**exported.example({"length": 41}))


def test_a_static_program_has_one_length() -> None:
    exported = export_model(load("masked_mlp"), {"length": (24, 24)})
    assert exported.static and exported.strategy == "static"
    assert exported.ranges == {"batch": (1, 1), "length": (24, 24)}
    assert exported.example({})["x"].shape == (1, 24, 8)
    shapes = [n.meta["val"].shape for n in exported.program.graph.nodes if n.name == "x"]
    assert shapes == [(1, 24, 8)]


def test_axes_left_out_take_the_models_limits() -> None:
    exported = export_model(load("causal"))
    assert exported.ranges == {"batch": (1, 4), "length": (1, 48)}
    assert {sizes["batch"] for sizes in exported.checked} == {1, 2, 3, 4}
    # Found in the graph: the factory declares none.
    assert exported.inputs[0].bounds == (0, tiny_models.VOCABULARY - 1)


def test_two_length_axes_vary_on_their_own() -> None:
    exported = export_model(load("cross_attention"), hint={"length": 6, "memory_length": 6})
    assert exported.ranges == {"length": (1, 32), "memory_length": (1, 24)}
    example = exported.example({"length": 31, "memory_length": 2})
    assert exported.program.module()(**example)["output"].shape == (1, 31, 8)


def test_a_fused_encoder_layer_is_exported_in_parts() -> None:
    exported = export_model(load("encoder_layer"))
    names = {str(node.target) for node in exported.program.graph.nodes}
    assert not any("_transformer_encoder_layer_fwd" in name for name in names)
    assert torch.backends.mha.get_fastpath_enabled()


def test_inputs_without_influence_stay_and_are_noted() -> None:
    exported = export_model(load("forgets_mask"))
    assert [spec.name for spec in exported.inputs] == ["x", "attention_mask"]
    assert graph_inputs(exported) == ["x", "attention_mask"]
    assert any("'attention_mask' has no influence" in note for note in exported.notes)


class FirstHalf(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, : int(x.shape[1] * 0.5)]


def test_deferred_checks_serve_where_the_plain_form_is_refused() -> None:
    assert export_model(load("triangle"), {"length": (2, 40)}).strategy == "dim"
    spec = {
        "module": FirstHalf(),
        "inputs": {"x": torch.randn(1, 12, 4)},
        "axes": {"x": {1: "length"}},
        "limits": {"length": (4, 40)},
    }
    exported = export_model(load_model(spec))
    assert exported.strategy == "deferred" and exported.ranges["length"] == (4, 40)
    assert any("'deferred' served" in note for note in exported.notes)


@pytest.mark.parametrize(
    ("name", "asked", "part"),
    [
        ("differences", (1, 40), (3, 40)),
        ("branching", (1, 40), (2, 20)),
        ("frames", (3, 40), (5, 40)),
    ],
)
def test_the_right_part_of_a_range_is_found(
    name: str, asked: tuple[int, int], part: tuple[int, int]
) -> None:
    model = load(name)
    others = ("unguarded", "strict", "apart")
    ladder = [rung for rung in LADDER if not any(getattr(rung, name) for name in others)]
    with pytest.raises(ExportError) as failure:
        export_model(model, {"length": asked}, ladder=ladder)
    assert f"can be exported for length {part[0]}..{part[1]}" in (failure.value.hint or "")
    exported = export_model(model, {"length": asked}, allow_narrower=True, ladder=ladder)
    assert exported.ranges["length"] == part


def test_recurrent_layers_keep_their_length_free() -> None:
    exported = export_model(load("forward_recurrence"))
    assert exported.strategy == "recurrences" and exported.ranges["length"] == (1, 64)


def test_a_fixed_length_is_named_with_its_line() -> None:
    name, code = "looping", "for index in range(x.shape[1]):"
    # Strict tracing takes long and gives the same.
    ladder = [
        strategy
        for strategy in LADDER
        if strategy.name in ("dim", "deferred", "auto", "recurrences")
    ]
    with pytest.raises(ExportError) as failure:
        export_model(load(name), hint={"length": 10}, ladder=ladder, allow_narrower=True)
    error = failure.value
    assert error.exit_code == 33
    assert f"'{name}' can't be exported for batch 1, length 1..64" in error.message
    assert "fixes length to 10" in error.message
    assert "tiny_models.py:" in error.message and code in error.message
    assert '`mode="pad"`' in (error.hint or "")
    for strategy in ladder:
        assert f"[{strategy.name}]" in error.details
    assert "Constraints violated" in error.details
    static = export_model(load(name), {"length": (10, 10)})
    assert static.static


def test_a_condition_on_the_length_is_named_with_its_line() -> None:
    with pytest.raises(ExportError) as failure:
        export_model(load("branching"))
    assert "length <= 20" in failure.value.message
    assert "if x.shape[1] > 20:" in failure.value.message


def test_control_flow_on_values_is_named_with_its_line() -> None:
    with pytest.raises(ExportError) as failure:
        export_model(load("data_dependent"))
    assert "depend on values" in failure.value.message
    assert "if x.sum() > 0:" in failure.value.message
    assert "torch.where" in (failure.value.hint or "")
    assert '`mode="pad"`' not in (failure.value.hint or "")


class Eighths(torch.nn.Module):
    """Takes another branch at every eighth length."""

    def __init__(self, axis: int = 1) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[self.axis] % 8 == 0 else x + 1


@pytest.mark.parametrize(
    "strategy",
    [r for r in LADDER if (r.auto or r.deferred) and not (r.recurrences or r.unguarded)],
    ids=lambda r: r.name,
)
def test_a_branch_that_no_checked_size_takes_is_found(strategy: ExportStrategy) -> None:
    spec = {
        "module": Eighths(),
        "inputs": {"x": torch.randn(1, 21, 4)},
        "axes": {"x": {1: "length"}},
        "limits": {"length": (2, 100)},
    }
    model = load_model(spec)
    # None of the sizes that are run beside eager is a multiple of 8.
    sizes = choose_sizes({"length": (2, 100)}, {"length": 21}, "length")
    assert all(size["length"] % 8 for size in sizes)
    example = model.make_example({"length": 21})
    program = export_program(model.module, example, model.inputs, {"length": (2, 100)}, strategy)
    result = check_program(program, ExportScope(model, {"length": (2, 100)}, {"length": 21}))
    assert len(result.passed) == len(sizes)
    assert [s["length"] for s, _ in result.failed] == list(range(8, 101, 8))
    assert "length" in result.failed[0][1] and "8" in result.failed[0][1]
    with pytest.raises(ExportError, match=r"Mod\(length, 8\)|length % 8") as refused:
        export_model(model, hint={"length": 21}, ladder=[strategy])
    assert refused.value.served == {"length": (17, 23)}


class Largest(torch.nn.Module):
    """The places of the largest: one, of random numbers."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"twice": x * 2, "places": torch.nonzero(x == x.max())}


def test_an_outputs_sizes_are_free_where_values_decide_about_them() -> None:
    inputs, axes = {"x": torch.randn(1, 9)}, {"x": {1: "length"}}
    model = load_model({"module": Largest(), "inputs": inputs, "axes": axes})
    assert [spec.shape for spec in model.outputs] == [(1, "length"), (1, 2)]  # as runs have it
    exported = export_model(model, {"length": (2, 40)})
    assert [spec.shape for spec in exported.outputs] == [(1, "length"), (None, 2)]


class Cropped(torch.nn.Module):
    """Halves the length, doubles it and crops: half of the lengths have something to crop."""

    def __init__(self) -> None:
        super().__init__()
        self.down = torch.nn.Conv1d(4, 8, 3, 2, 1)
        self.up = torch.nn.ConvTranspose1d(8, 4, 2, 2)
        self.join = torch.nn.Conv1d(8, 4, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.up(self.down(x))[..., : x.shape[-1]]
        return self.join(torch.cat([x, wide], 1))


class Once(torch.nn.Module):
    """Does something else at one length."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[2] == 3001 else x + 1


def of_lengths(module: torch.nn.Module, lo: int, hi: int) -> LoadedModel:
    spec = {
        "module": module,
        "inputs": {"x": torch.randn(1, 4, 21)},
        "axes": {"x": {2: "length"}},
        "limits": {"length": (lo, hi)},
    }
    return load_model(spec)


@pytest.mark.parametrize(
    ("name", "asked", "strategy"),
    [("differences", (1, 40), "unguarded"), ("frames", (3, 40), "apart")],
)
def test_small_sizes_are_served_where_only_conditions_exclude_them(
    name: str, asked: tuple[int, int], strategy: str
) -> None:
    exported = export_model(load(name), {"length": asked})
    assert exported.strategy == strategy and exported.ranges["length"] == asked


class Halved(torch.nn.Module):
    """Two convolutions, each with half of the rows and columns."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(4, 4, 3, 2, 1), torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 3, 2, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return y.flatten(2).softmax(2)


class Single(torch.nn.Module):
    """Does something else where half of the length is 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = x[..., ::2]
        return half * 2 if half.shape[2] == 1 else half + 1


def test_images_of_one_pixel_are_served_though_their_feature_maps_have_one() -> None:
    model = load_model(
        {
            "module": Halved(),
            "inputs": {"x": torch.randn(1, 4, 20, 30)},
            "axes": {"x": {2: "height", 3: "width"}},
            "limits": {"height": (1, 40), "width": (1, 50)},
            "length_axis": "height",
        }
    )
    exported = export_model(model)
    assert exported.ranges == {"height": (1, 40), "width": (1, 50)}
    graph = exported.program.module()
    for height, width in ((1, 1), (1, 50), (4, 3), (40, 1), (5, 5), (40, 50)):
        x = torch.randn(1, 4, height, width)
        wanted = model.run({"x": x})["output"]
        torch.testing.assert_close(graph(x=x)["output"], wanted, rtol=1e-4, atol=1e-4)


def test_another_branch_where_a_size_that_follows_is_1_is_found() -> None:
    (strategy,) = (rung for rung in LADDER if rung.apart)
    with pytest.raises(ExportError, match="differs from eager"):
        export_model(of_lengths(Single(), 1, 40), hint={"length": 21}, ladder=[strategy])


def test_a_program_is_traced_at_sizes_from_which_no_1_follows() -> None:
    class Quarter(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.avg_pool1d(x, 4, 4).exp()

    exported = export_model(of_lengths(Quarter(), 4, 64), hint={"length": 5})
    (node,) = (n for n in exported.program.graph.nodes if n.op == "placeholder" and n.name == "x")
    assert node.meta["val"].shape[2].node.hint >= 8


@pytest.mark.parametrize("traced", [20, 21])
def test_conditions_that_change_nothing_are_dropped(traced: int) -> None:
    exported = export_model(of_lengths(Cropped(), 1, 64), hint={"length": traced})
    assert exported.strategy == "unguarded" and exported.ranges == {"length": (1, 64)}
    assert {sizes["length"] for sizes in exported.checked} == set(range(1, 65))
    assert [note for note in exported.notes if "agrees with eager at" in note]
    assert "_assert_scalar" not in str(exported.source.graph)


def test_a_size_keeps_the_whole_range_that_is_served() -> None:
    """Tracing compares the steps of a crop with the length; code would be generated for 100 at most."""

    class Steps(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.cumsum(2)[..., ::100]

    exported = export_model(of_lengths(Steps(), 2, 4000))
    (node,) = (n for n in exported.program.graph.nodes if n.op == "placeholder" and n.name == "x")
    size = node.meta["val"].shape[2].node
    assert str(size.shape_env.var_to_range[size.expr]) == "VR[2, 4000]"


@pytest.mark.parametrize(("module", "hi"), [(Eighths(2), 100), (Once(), 4000)], ids=["8", "once"])
def test_conditions_that_matter_are_not_dropped(module: torch.nn.Module, hi: int) -> None:
    """Also where a single size of many is of its kind."""
    strategy = next(r for r in LADDER if r.unguarded)
    with pytest.raises(ExportError, match="differs from eager"):
        export_model(of_lengths(module, 2, hi), hint={"length": 21}, ladder=[strategy])


def test_random_and_stateful_models_are_refused() -> None:
    with pytest.raises(ExportError, match="gives other outputs each time"):
        export_model(load("noisy"))
    with pytest.raises(ExportError, match="changes its buffers in forward: calls"):
        export_model(load("counting"))


def test_refusals_write_nothing_and_leave_torchs_loggers_alone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    levels = {n: logging.getLogger(n).level for n in ("torch", "torch.fx.experimental")}
    for name in ("data_dependent", "branching"):
        with pytest.raises(ExportError):
            export_model(load(name))
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert levels == {n: logging.getLogger(n).level for n in levels}


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ({"length": (1, 65)}, r"length 1\.\.65 isn't within what the model allows, 1\.\.64"),
        ({"length": (0, 5)}, r"length 0\.\.5 isn't within"),
        ({"length": (9, 5)}, r"length 9\.\.5 isn't within"),
        ({"depth": (1, 5)}, "no axis 'depth'"),
    ],
)
def test_ranges_outside_the_model_are_refused(
    ranges: dict[str, tuple[int, int]], message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        export_model(load("token_mlp"), ranges)


def test_an_axis_without_any_limit_is_refused() -> None:
    model = load_model({**tiny_models.token_mlp(), "max_length": None})
    with pytest.raises(ExportError, match="'length' has no upper limit"):
        export_model(model)


def test_a_model_that_fails_within_the_range_is_named() -> None:
    with pytest.raises(ModelError, match=r"fails on x \[1, \d+, 8\]") as failure:
        export_model(load("chunked"))
    assert "limits" in (failure.value.hint or "")


class Rest(torch.nn.Module):
    """Joins a text with what fills it up to another length."""

    def forward(self, rest: torch.Tensor, text: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        return torch.cat([text, rest], 1) * whole


class Shifted(torch.nn.Module):
    """Takes weights for all places but the last 15."""

    def forward(self, text: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return text[:, :-15] * weights


@pytest.mark.parametrize(
    ("module", "sizes", "limits"),
    [
        (Rest(), {"rest": "whole-length", "text": "length", "whole": "whole"}, {"whole": (17, 60), "length": (1, 16)}),
        (Shifted(), {"text": "length", "weights": "length-15"}, {"length": (16, 40)}),
    ],
)  # fmt: skip
def test_sizes_that_follow_are_traced_with_no_size_of_1(
    module: torch.nn.Module, sizes: dict[str, str], limits: dict[str, tuple[int, int]]
) -> None:
    """At the usual length, 16, the size that follows is 1, which torch takes for a constant."""
    axes = {"length": 16, "whole": 40}
    model = load_model(
        {
            "module": module,
            "inputs": {name: torch.randn(1, size_of(text, axes)) for name, text in sizes.items()},
            "axes": {name: {1: text} for name, text in sizes.items()},
            "limits": limits,
        }
    )
    assert export_model(model).ranges == limits


def test_an_exported_model_goes_through_files(tmp_path: Path) -> None:
    model = load("masked_mlp")
    exported = export_model(model, {"length": (1, 30)}, hint={"length": 9})
    exported.save(tmp_path / "deep" / "exported")
    folder = tmp_path / "deep" / "exported"
    assert sorted(p.name for p in folder.iterdir()) == ["exported.json", "program.pt2"]
    again = ExportedModel.load(folder)
    assert again.to_json() == exported.to_json()
    assert "program" not in vars(again), "it is read when it is asked for"
    assert check_program(again.program, ExportScope(model, again.ranges, {"length": 9})).ok
    exported.save(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["exported.json", "program.pt2"]


def test_damaged_files_of_an_export_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="holds no exported model"):
        ExportedModel.load(tmp_path)
    exported = export_model(load("token_mlp"), {"length": (1, 8)})
    exported.save(tmp_path)
    record = (tmp_path / "exported.json").read_text()
    program = (tmp_path / "program.pt2").read_bytes()
    (tmp_path / "program.pt2").write_bytes(program[:-1])
    with pytest.raises(ExportError, match="isn't the file that was exported"):
        ExportedModel.load(tmp_path)
    (tmp_path / "program.pt2").write_bytes(program)
    for broken in (record[:-20], "[]", "{}", record.replace('"version": 1', '"version": 2')):
        (tmp_path / "exported.json").write_text(broken)
        with pytest.raises(ExportError):
            ExportedModel.load(tmp_path)


class Blocks(torch.nn.Module):
    """Pads to a multiple of 8 and takes blocks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pad = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[1] % 8))
        return pad.unflatten(1, (-1, 8)).amax(2)


class OwnSize(torch.nn.Module):
    """Adds a table of 24 rows where the length is 24, and else its first row."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(24, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table[:1] if x.shape[1] != 24 else x + self.table[:1].expand(24, -1)


@pytest.mark.parametrize("hint", [8, 30, 33])
def test_the_length_that_is_traced_decides_nothing(hint: int) -> None:
    """At 30 and 33 torch fails to word the conditions of Blocks."""
    spec = {
        "module": Blocks(),
        "inputs": {"x": torch.randn(1, 12, 4)},
        "axes": {"x": {0: "batch", 1: "length"}},
        "limits": {"length": (1, 100), "batch": (1, 3)},
    }
    exported = export_model(load_model(spec), hint={"length": hint})
    assert exported.ranges == {"batch": (1, 3), "length": (1, 100)}


def test_a_length_that_is_a_size_of_the_model_is_traced_as_another() -> None:
    spec = {
        "module": OwnSize(),
        "inputs": {"x": torch.randn(1, 12, 4)},
        "axes": {"x": {1: "length"}},
        "limits": {"length": (1, 60)},
    }
    exported = export_model(load_model(spec), hint={"length": 24})
    assert exported.ranges == {"length": (1, 60)}


def test_a_failure_of_torchs_solver_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    # What always holds never comes to torch's solver otherwise.
    monkeypatch.setattr(ladder, "certain_conditions", lambda *_: nullcontext())
    spec = {
        "module": Blocks(),
        "inputs": {"x": torch.randn(1, 30, 4)},
        "axes": {"x": {1: "length"}},
        "limits": {"length": (25, 31)},  # no multiple of 8 to trace with
    }
    with pytest.raises(ExportError) as failure:
        export_model(load_model(spec), hint={"length": 30}, ladder=LADDER[:1])
    assert "torch can't solve the conditions on sizes (at " in failure.value.message
    assert "pad.unflatten(1, (-1, 8))" in failure.value.message
    assert "AssertionError" not in failure.value.message


class HalvedAbove(torch.nn.Module):
    """Two inputs, the second of which is treated another way where it is long."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, y + 1 if y.shape[1] <= 20 else y / 2


def test_a_condition_on_a_size_that_follows_narrows_the_axis() -> None:
    model = load_model(
        {
            "module": HalvedAbove(),
            "inputs": {"x": torch.randn(1, 6, 4), "y": torch.randn(1, 12, 4)},
            "axes": {"x": {1: "length"}, "y": {1: "2*length"}},
            "limits": {"length": (1, 16)},
        }
    )
    ranges = {"length": (1, 16)}
    scope = ExportScope(model, ranges, trace_sizes(model, ranges, {"length": 6}))
    attempt = try_strategy(scope, ExportStrategy("auto", auto=True))
    assert attempt.ranges == {"length": (2, 10)}
