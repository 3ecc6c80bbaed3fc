"""reference: float64 is what a program is compared with, and float32's own error what it is allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.bundle import reference
from edgecompile.bundle.cases import Case, make_cases
from edgecompile.bundle.margins import (
    allow_rounding,
    describe_reference,
    widest_share,
)
from edgecompile.bundle.reference import find_reference
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.rounding import FACTOR, WIDEST
from edgecompile.precision import TOLERANCES
from tests.factories.half import deep_autocast


class Alone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Rounding(nn.Module):
    """A value at an edge falls to either side."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        edge = ((x - x.mean(-1, keepdim=True)).sum(-1) > 0).to(x.dtype)
        return {"edge": edge, "ids": x.argmax(-1), "smooth": x.sin()}


def load(module: nn.Module) -> LoadedModel:
    def factory() -> dict[str, Any]:
        return {
            "module": module,
            "inputs": {"x": torch.randn(1, 6, 16)},
            "axes": {"x": {1: "length"}},
            "max_length": 40,
        }

    return load_model(factory())


def case_of(model: LoadedModel, seed: int, name: str = "hint") -> Case:
    inputs = {k: v.numpy() for k, v in model.make_example({"length": 12}, seed=seed).items()}
    found = find_reference(model, inputs)
    return Case(0, name, inputs, found.outputs, found.rounding, found.problem)


def test_an_exact_model_has_the_tolerance_and_no_more() -> None:
    model = load(Alone())
    case = case_of(model, 1)
    x = torch.from_numpy(case.inputs["x"]).double()
    layer = model.module.model.layer
    want = nn.functional.linear(x, layer.weight.double(), layer.bias.double()).detach().numpy()
    # The nearest float32 to what float64 gives.
    np.testing.assert_array_equal(case.outputs["output"], want.astype(np.float32))
    assert 0 < case.rounding["output"] < 1e-6
    assert allow_rounding([case])[0].margins == {}
    assert describe_reference([case]) == "eager in float64"


@pytest.mark.parametrize("strength", [10.0, 30.0])
def test_where_float32_loses_digits_more_is_allowed(strength: float) -> None:
    class Mild(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x + strength) ** 2 - strength**2 - 2 * strength * x

    (case,) = allow_rounding([case_of(load(Mild()), 2)])
    exact = case.inputs["x"].astype(np.float64) ** 2
    np.testing.assert_allclose(case.outputs["output"], exact, rtol=1e-6)
    assert case.problem == ""
    assert case.margins == {"output": FACTOR * case.rounding["output"]}


def test_a_value_at_an_edge_is_compared_as_float32_has_it() -> None:
    model = load(Rounding())
    case = case_of(model, 5)
    eager = model.run({"x": torch.from_numpy(case.inputs["x"])})
    assert "edge differs by" in case.problem and "float32" in describe_reference([case])
    np.testing.assert_array_equal(case.outputs["edge"], eager["edge"].numpy())
    np.testing.assert_array_equal(case.outputs["ids"], eager["ids"].numpy())
    # The other outputs have float64 all the same, and nothing is allowed beyond the tolerance.
    assert set(case.rounding) == {"smooth"} and allow_rounding([case])[0].margins == {}


def made(name: str, error: float, scale: float = 1.0) -> Case:
    outputs = {"y": np.array([scale, -scale / 2], np.float32)}
    return Case(0, name, {}, outputs, {"y": error})


def test_one_case_widens_no_other_and_luck_narrows_none() -> None:
    cases = [made("a", 1e-5), made("b", 2e-5), made("lucky", 0.0), made("odd", 1e-3, 10.0)]
    cases += [made("c", 1e-5)]
    margins = {case.name: case.margins["y"] for case in allow_rounding(cases)}
    assert margins["a"] == margins["c"] == margins["lucky"] == pytest.approx(FACTOR * 1e-5)
    assert margins["b"] == pytest.approx(FACTOR * 2e-5)
    assert margins["odd"] == pytest.approx(FACTOR * 1e-3)


def test_no_margin_hides_another_function() -> None:
    cases = [made(str(share), share) for share in (1e-5, 1e-4, 2e-4, 4e-4, 6e-4)]
    margins = {case.name: case.margins["y"] for case in allow_rounding([*cases[:1]])}
    assert margins == {"1e-05": pytest.approx(FACTOR * 1e-5)}
    alone = [allow_rounding([case])[0].margins["y"] for case in cases[1:]]
    assert alone == pytest.approx([FACTOR * 1e-4, WIDEST, WIDEST, 2 * 6e-4])


def test_float64_takes_a_bounded_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "_GRACE_S", 0.0)
    monkeypatch.setattr(reference, "MOST_TIMES", 0.0)
    axes = (("length", AxisRange(20, 40, 30)),)
    model = load(Alone())
    cases = allow_rounding(list(make_cases(model, [Bucket("exact", axes)] * 2)))
    golden = [case for case in cases if case.name in ("lower", "hint", "upper")]
    # Both ends and the hint of every bucket; what eager loses there is allowed elsewhere, too.
    assert len(golden) == 6 and all(case.rounding and not case.problem for case in golden)
    rest = [case for case in cases if case not in golden]
    assert rest and all(case.skipped and not case.rounding for case in rest)
    eager = model.run({"x": torch.from_numpy(rest[0].inputs["x"])})["output"].numpy()
    np.testing.assert_array_equal(rest[0].outputs["output"], eager)
    text = describe_reference(cases)
    assert text.startswith(f"eager in float64; {len(rest)} of {len(cases)} cases: eager in float32")

    skipped = Case(0, "random0", {}, made("", 0).outputs, skipped=True)
    found = allow_rounding([made("lower", 1e-5), made("upper", 3e-5), skipped])
    assert found[-1].margins == {"y": pytest.approx(FACTOR * 3e-5)}
    assert widest_share(found, "y") == pytest.approx(FACTOR * 3e-5)


def test_what_isnt_finite_in_float32_is_expected_as_it_is() -> None:
    class Overflowing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * 60).exp().log()

    model = load(Overflowing())
    case = case_of(model, 3)
    eager = model.run({"x": torch.from_numpy(case.inputs["x"])})["output"].numpy()
    assert not np.isfinite(eager).all()
    np.testing.assert_array_equal(np.isfinite(case.outputs["output"]), np.isfinite(eager))


def test_a_model_that_has_no_float64_is_compared_in_float32() -> None:
    class Bits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(torch.int32)[..., :1].to(torch.float32) + x

    class Refusing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.dtype != torch.float32:
                raise TypeError("float32 alone")
            return x

    for module in (Bits(), Refusing()):
        model = load(module)
        case = case_of(model, 4)
        eager = model.run({"x": torch.from_numpy(case.inputs["x"])})["output"].numpy()
        np.testing.assert_array_equal(case.outputs["output"], eager)
        assert case.problem and not case.rounding


class Noise(nn.Module):
    """Norms over positions: of zeros, rounding is all that they have to enlarge."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        pairs = [(nn.Conv1d(16, 16, 5, padding=2), nn.InstanceNorm1d(16)) for _ in range(4)]
        self.layers = nn.Sequential(*[layer for pair in pairs for layer in pair])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x.transpose(1, 2))
        return y


def test_no_case_asks_for_noise() -> None:
    axes = (("length", AxisRange(20, 40, 30)),)
    cases = list(make_cases(load(Noise()), [Bucket("exact", axes)] * 2))
    values = [case.inputs["x"] for case in cases]
    assert not any(case.problem for case in cases)
    assert all(x.any() for x in values)  # none is all padding, which has its turn here

    cases = list(make_cases(load(Alone()), [Bucket("exact", axes)] * 2))
    assert not all(case.inputs["x"].any() for case in cases)


def test_no_case_asks_for_the_places_of_ties() -> None:
    """Rows that are equal differ by a rounding in one program and not in another."""

    class Places(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return torch.cummax(x, dim=1)

    axes = (("length", AxisRange(20, 40, 30)),)
    rows = [c.inputs["x"][0] for c in make_cases(load(Places()), [Bucket("exact", axes)] * 2)]
    assert all(len(np.unique(x, axis=0)) == len(x) for x in rows)


def test_what_a_model_rounds_to_half_precision_is_its_own_error() -> None:
    model = load_model(deep_autocast())
    case = case_of(model, 3)
    x = torch.from_numpy(case.inputs["x"])
    eager = model.run({"x": x})["output"].numpy()
    with torch.no_grad():
        exact = model.module.model.double().layers(x.double()).numpy()
    scale = np.abs(exact).max()
    np.testing.assert_allclose(case.outputs["output"], exact, atol=1e-6 * scale)
    error = np.abs(eager - exact).max()
    assert error > TOLERANCES["bf16"].limit(scale)
    assert allow_rounding([case])[0].margins["output"] == pytest.approx(2 * error)
