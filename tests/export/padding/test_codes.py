"""Codes of known values: those that rounding alone tells apart have one code."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from edgecompile.export.padding.codes import Coded, Codes

VALUES = st.floats(-2.0, 2.0, width=32) | st.sampled_from(
    [0.5, 0.5 + 4e-7, 0.5 + 3e-6, float("nan")]
)


def codes_of(codes: Codes, *values: float) -> list[int]:
    result: list[int] = codes.of(torch.tensor(values, dtype=torch.float64)).tolist()
    return result


@given(st.lists(st.lists(VALUES, min_size=1, max_size=6), max_size=8))
def test_a_value_keeps_its_code_however_many_come_between(tensors: list[list[float]]) -> None:
    codes = Codes([])
    first = [codes_of(codes, *values) for values in tensors]
    assert [codes_of(codes, *values) for values in tensors] == first
    seen = codes._seen
    assert bool((seen.diff() > 0).all()) and len(codes._firsts) == len(seen)


def test_close_values_have_one_code_in_any_order_of_calls() -> None:
    codes = Codes([])
    (middle,) = codes_of(codes, 0.5)
    (low,) = codes_of(codes, -0.75)
    (high,) = codes_of(codes, 0.625)
    assert len({low, middle, high}) == 3
    assert codes_of(codes, 0.625 + 4e-7, 0.5 - 4e-7, -0.75 + 4e-7) == [high, middle, low]
    assert codes_of(codes, 0.5 + 3e-6) != [middle]
    assert codes_of(codes, 3.0, 0.0, -0.0)[1:] == codes_of(codes, 0.0, 0.0)


def test_what_depends_on_the_inputs_has_no_part_in_known_values() -> None:
    """The unknown value lies between the known ones, so that each is close to it."""
    value = torch.tensor([0.5, 0.5 + 8e-7, 0.5 + 1.6e-6], dtype=torch.float64)
    unknown = torch.tensor([False, True, False])
    codes = Codes([])
    result = codes.of(Coded.of(value, unknown, torch.tensor([1, 2, 3])))
    assert result[1] == 2
    assert result[0] != result[2]
    assert [result[0], result[2]] == [
        codes_of(codes, number)[0] for number in value[[0, 2]].tolist()
    ]
    pair = torch.complex(value, value)
    both = codes.of(Coded.of(pair, unknown, torch.tensor([1, 2, 3])))
    assert both[1] == 2 and both[0] != both[2]
