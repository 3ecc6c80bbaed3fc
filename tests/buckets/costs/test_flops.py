from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgecompile.buckets.costs.flops import FlopModel, Quadratic, fit_quadratic

WORK = FlopModel(
    model="m",
    length_axis="length",
    sizes=(("batch", 2),),
    flops_per_element=10.0,
    flops_per_pair=3.0,
    fixed_flops=100.0,
    weight_bytes=1000.0,
    fixed_bytes=7.0,
    bytes_per_element=4.0,
    bytes_per_pair=0.5,
    calls=5,
    lengths=(1, 4, 9),
    flops=(113, 188, 433),
    notes=("a note",),
)


def test_work_at_a_length() -> None:
    assert WORK.flops_at(4) == 100 + 40 + 48
    assert WORK.bytes_at(4) == 1007 + 16 + 8


numbers = st.integers(0, 10**12)


@given(numbers, numbers, numbers, st.sets(st.integers(1, 10**5), min_size=3, max_size=5))
def test_a_quadratic_is_found_exactly(a: int, b: int, c: int, lengths: set[int]) -> None:
    at = sorted(lengths)
    found = fit_quadratic(at, [c + a * n + b * n * n for n in at])
    assert found == Quadratic(float(c), float(a), float(b))


@given(st.lists(st.tuples(st.integers(1, 1000), numbers), min_size=1, unique_by=lambda p: p[0]))
def test_no_coefficient_is_negative(points: list[tuple[int, int]]) -> None:
    lengths, counts = zip(*points, strict=True)
    found = fit_quadratic(lengths, counts)
    assert min(found.fixed, found.per_element, found.per_pair) >= 0


def test_few_points_take_few_terms() -> None:
    assert fit_quadratic([8], [80]) == Quadratic(0.0, 10.0, 0.0)
    assert fit_quadratic([2, 4], [20, 40]) == Quadratic(0.0, 10.0, 0.0)
    assert fit_quadratic([2, 4], [12, 14]) == Quadratic(10.0, 1.0, 0.0)
    assert fit_quadratic([2, 4, 6], [0, 0, 0]) == Quadratic(0.0, 0.0, 0.0)


def test_a_cost_that_starts_late_is_met_as_well_as_possible() -> None:
    # 100 · (L - 3): the line through these points would start below 0.
    lengths, counts = [4, 17, 30], [100, 1400, 2700]
    found = fit_quadratic(lengths, counts)
    distance = sum((found(n) / c - 1) ** 2 for n, c in zip(lengths, counts, strict=True))
    for a in range(0, 200, 2):
        for b in range(0, 60, 1):
            other = Quadratic(0.0, a / 2, b / 10)
            assert distance <= 1e-12 + sum(
                (other(n) / c - 1) ** 2 for n, c in zip(lengths, counts, strict=True)
            )
