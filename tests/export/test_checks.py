"""What is checked of an exported program: that it takes all sizes and agrees with eager at them."""

from __future__ import annotations

import pytest
import torch

from edgecompile.errors import ExportError
from edgecompile.export.checks import choose_sizes, compare_outputs
from edgecompile.export.export import export_model
from edgecompile.export.ladder import ExportStrategy, export_program
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from tests.factories import tiny_models


def test_an_export_that_is_specialised_is_not_accepted() -> None:
    # AUTO gives a program for an unrolled loop: the trap that the checks are for.
    model = load_model(f"{tiny_models.__name__}:looping")
    auto = ExportStrategy("auto", auto=True)
    example = model.make_example({"batch": 1, "length": 16})
    program = export_program(model.module, example, model.inputs, {"length": (1, 64)}, auto)
    assert program is not None
    with pytest.raises(ExportError, match="only for length 16"):
        export_model(model, ladder=[auto])


class _WrongWhenTraced(torch.nn.Module):
    """Gives something else while it is traced: no message of torch's would tell."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.compiler.is_exporting() else x * 3


class _ExactWhenTraced(torch.nn.Module):
    """Loses digits in eager alone, as another order of a sum may."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor if torch.compiler.is_exporting() else (x + 1e4) - 1e4


def test_an_export_may_differ_by_what_eager_itself_loses() -> None:
    def load(factor: float) -> LoadedModel:
        example = {"x": torch.randn(1, 8)}
        return load_model((_ExactWhenTraced(factor), example, {"x": {1: "length"}}))

    # Eager is off by 5e-4, of a scale of about 3.
    assert export_model(load(1.0), {"length": (1, 40)}).strategy
    with pytest.raises(ExportError, match=r"differs from eager by"):
        export_model(load(1.005), {"length": (1, 40)})


def test_an_export_that_differs_from_eager_is_not_accepted() -> None:
    model = load_model((_WrongWhenTraced(), {"x": torch.randn(1, 8)}, {"x": {1: "length"}}))
    with pytest.raises(ExportError, match=r"differs from eager by 0\.33 of its scale"):
        export_model(model, {"length": (1, 16)})


class _BlindToMask(torch.nn.Module):
    """A model whose shortcut for full masks ends up in the trace if traced with a full mask."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (x if torch.compiler.is_exporting() else x * mask).sum(1)


def test_a_trace_that_ignores_the_mask_is_not_accepted() -> None:
    inputs = {"x": torch.randn(1, 8), "mask": torch.ones(1, 8, dtype=torch.int64)}
    axes = {"x": {1: "length"}, "mask": {1: "length"}}
    spec = {"module": _BlindToMask(), "inputs": inputs, "axes": axes, "pad": {"x": 5.0}}
    with pytest.raises(ExportError, match="differs from eager"):
        export_model(load_model(spec), {"length": (1, 16)})


def test_sizes_to_check_have_edges_hint_odd_and_even() -> None:
    sizes = choose_sizes({"length": (1, 50), "batch": (1, 4)}, {"length": 17}, "length")
    lengths = {item["length"] for item in sizes}
    assert {1, 2, 17, 18, 49, 50} <= lengths
    assert {length % 2 for length in lengths} == {0, 1}
    pairs = {(item["length"], item["batch"]) for item in sizes}
    assert {(1, 1), (50, 4)} <= pairs
    assert {batch for _, batch in pairs} == {1, 2, 3, 4}
    assert choose_sizes({"length": (7, 7)}, {}, "length") == [{"length": 7}]
    assert choose_sizes({}, {}, None) == [{}]


@pytest.mark.parametrize(
    ("got", "want", "outcome"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.2], [1.0, 2.0], 0.1),
        ([0.0], [0.0], 0.0),
        ([float("nan"), 1.0], [float("nan"), 1.0], 0.0),
        ([float("-inf"), 1.0], [float("-inf"), 1.0], 0.0),
        ([float("nan"), 1.0], [0.0, 1.0], "NaN"),
        ([0.0, 1.0], [float("nan"), 1.0], "NaN"),
        ([float("inf")], [float("-inf")], "NaN"),
        ([1.0], [1.0, 2.0], "shape"),
        ([1, 2], [1.0, 2.0], "float32"),
        ([1, 2], [1, 2], 0.0),
        ([1, 2], [1, 3], "other values"),
    ],
)
def test_outputs_are_compared(got: list[float], want: list[float], outcome: float | str) -> None:
    found = compare_outputs({"y": torch.tensor(got)}, {"y": torch.tensor(want)})
    if isinstance(outcome, str):
        assert isinstance(found, str) and outcome in found
    else:
        assert found == pytest.approx(outcome, abs=1e-6)
    assert isinstance(compare_outputs({"z": torch.ones(1)}, {"y": torch.ones(1)}), str)
