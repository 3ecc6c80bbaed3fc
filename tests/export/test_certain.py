"""Conditions on sizes that always give the same are no conditions."""

from __future__ import annotations

from typing import Any

import pytest
import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn
from torch.utils._sympy.functions import Mod

from edgecompile.export.certain import if_apart, outcome
from edgecompile.export.export import export_model
from edgecompile.loaders.load import load_model

WAVE = 480_000


@pytest.mark.parametrize(
    ("condition", "most", "expected"),
    [
        ("2*((s//2)) < s + 1", 400, True),
        ("2*((s//2)) < s + 1", WAVE, True),
        ("2*((s//2)) < s", WAVE, None),
        ("Eq(Mod(8*s, 4), 0)", WAVE, True),
        ("Eq(Mod(s, 4), 0)", WAVE, None),
        ("Ne((s - 1)//2 + 1, s//2 + 500000)", WAVE, True),
        ("((s + 7)//8)*8 >= s", WAVE, True),
        ("((s + 7)//8)*8 > s", 400, None),
        ("s//2 > 100000", WAVE, None),
        ("Eq(s//2, 1000)", WAVE, None),
        ("Eq(2*(s//2), s//4)", WAVE, False),
        ("Max(1, s//2) >= 1", 400, True),
        ("Max(1, s//2) >= 1", WAVE, None),  # no period: not tried at so many sizes
        ("unknown(s)//2 < 3", 400, None),
    ],
)
def test_the_outcome_of_a_condition(condition: str, most: int, expected: bool | None) -> None:
    assert outcome(condition, {"s": (2, most)}) is expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("Eq(floor(s/2), 1)", False),
        ("Ne(1, floor(s/2))", True),
        ("floor(s/2) >= 2", True),
        ("2 > floor(s/2)", False),
        ("floor(s/2) > 1", True),
        ("floor(s/2) > 2", None),
        ("Eq(floor(s/2), 2)", None),
        ("Ne(floor(s/2), 0)", None),
        ("Eq(s, 1)", None),  # torch knows that a size of its own is 2 or more
        ("Eq(floor(s/2), s - 1)", None),
        ("Eq(floor(s/2)*(s + 3), s + 3)", False),
        ("s + 3 < floor(s/2)*(s + 3)", True),
        ("Ne(32*floor(s/2), 32)", True),
        ("2 < 2*floor(s/32) + 2", True),
        ("32*floor(s/2) > 33", None),
        ("Ne(floor(s/2)*(s + 3), s + 4)", None),
        ("Ne(Mod(s + 3, floor(s/2)*(s + 3)), 0)", True),
        ("Ne(Mod(s + 3, floor(s/2)), 0)", None),
    ],
)
def test_conditions_on_a_size_that_follows_being_1(condition: str, expected: bool | None) -> None:
    names = {"s": sympy.Symbol("s", integer=True, positive=True), "Mod": Mod}
    assert if_apart(sympy.sympify(condition, names)) is expected


def test_conditions_on_several_sizes_are_tried_at_all_of_them() -> None:
    assert outcome("Eq(Mod(4*a*b, 2), 0)", {"a": (1, 8), "b": (2, 64)}) is True
    assert outcome("Eq(Mod(a*b, 2), 0)", {"a": (1, 8), "b": (2, 64)}) is None
    assert outcome("a//2 < 3", {"a": (5, 4)}) is None
    assert outcome("Eq(2*(a//8), a//4)", {"a": (8, 64, 8)}) is True
    assert outcome("Eq(2*(a//8), a//4)", {"a": (8, 64)}) is None


class Halves(nn.Module):
    """Conditions that hold for whole numbers alone; the last is a real one."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        half, up = n // 2, (n + 7) // 8 * 8
        if 2 * half > n or up < n or (up - n) // 8:
            x = x * 0
        return torch.nn.functional.pad(x, (0, 0, 0, up - n)).unflatten(1, (-1, 8)).amax(2)


@pytest.mark.parametrize("most", [200, WAVE])
def test_a_condition_that_always_holds_costs_nothing(most: int) -> None:
    spec = {
        "module": Halves(),
        "inputs": {"x": torch.randn(1, 30, 2)},
        "axes": {"x": {1: "length"}},
        "limits": {"length": (9, most)},
    }
    exported = export_model(load_model(spec))
    assert (exported.ranges["length"], exported.strategy) == ((9, most), "dim")


class Halved(nn.Module):
    """Feature maps with one row where there are 8, joined with the ones before them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Conv2d(n, 4, 3, 2, 1) for n in (3, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for layer in self.layers:
            maps.append(layer(maps[-1]).relu())
        joined = nn.functional.interpolate(maps[3], scale_factor=2) + maps[2]
        return joined.flatten(2).softmax(-1)


def halved() -> dict[str, Any]:
    return {
        "module": Halved(),
        "inputs": {"x": torch.randn(1, 3, 24, 32)},
        "axes": {"x": {2: "8*height", 3: "8*width"}},
        "limits": {"height": (1, 6), "width": (1, 6)},
        "length_axis": "height",
    }


def test_sizes_that_are_multiples_have_the_values_of_their_axis() -> None:
    exported = export_model(load_model(f"{__file__}:halved"))
    assert exported.ranges == {"height": (1, 6), "width": (1, 6)}
    smallest = {"height": 1, "width": 1}
    assert any(smallest.items() <= sizes.items() for sizes in exported.checked)
