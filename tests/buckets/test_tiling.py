from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.buckets.tiling import tiling_problems

ranges = st.tuples(st.integers(1, 4), st.integers(1, 4)).map(lambda pair: tuple(sorted(pair)))


def bucket(*edges: tuple[int, int]) -> Bucket:
    names = ("length", "batch", "width")
    return Bucket(
        "exact",
        tuple((n, AxisRange(a, b, b)) for n, (a, b) in zip(names, edges, strict=False)),
    )


@given(st.lists(st.tuples(ranges, ranges), min_size=1, max_size=5))
def test_agrees_with_counting_every_size(boxes: list[tuple[tuple[int, int], ...]]) -> None:
    sizes = [
        range(min(a for a, _ in axis), max(b for _, b in axis) + 1)
        for axis in zip(*boxes, strict=True)
    ]
    served = [
        sum(all(a <= n <= b for n, (a, b) in zip(point, box, strict=True)) for box in boxes)
        for point in itertools.product(*sizes)
    ]
    problems = tiling_problems([bucket(*box) for box in boxes])
    one_axis = len({box[1] for box in boxes}) == 1
    if one_axis and boxes != sorted(boxes):
        assert problems
    else:
        assert bool(problems) == any(n != 1 for n in served)


def test_messages() -> None:
    pair = [bucket((1, 4), (1, 2)), bucket((3, 6), (2, 4))]
    assert tiling_problems(pair) == [
        "the buckets length 1..4, batch 1..2 and length 3..6, batch 2..4 overlap"
    ]
    pair = [bucket((1, 4), (1, 2)), bucket((1, 5), (3, 4))]
    assert tiling_problems(pair) == ["no bucket serves length 5..5, batch 1..2"]
    pair = [bucket((1, 4), (1, 2)), bucket((6, 7), (1, 2))]
    assert tiling_problems(pair) == ["after the bucket 1..4 comes 6..7, which doesn't start at 5"]


def test_three_axes() -> None:
    cut = [bucket((1, 4), (1, 2), (1, 3)), bucket((1, 4), (3, 9), (1, 3))]
    assert tiling_problems(cut) == []
    assert tiling_problems([*cut, bucket((5, 8), (1, 9), (1, 2))]) == [
        "no bucket serves length 5..8, batch 1..2, width 3..3"
    ]


def test_lengths_in_steps() -> None:
    def stepped(lo: int, hi: int, step: int, batch: int = 1) -> Bucket:
        return Bucket(
            "exact",
            (("length", AxisRange(lo, hi, lo, step)), ("batch", AxisRange(1, batch, 1))),
        )

    tiles = [stepped(1, 4, 1), stepped(5, 13, 4), stepped(6, 14, 2), stepped(7, 11, 4)]
    assert tiling_problems(tiles) == []
    assert tiling_problems(tiles[:-1]) == [f"no bucket serves the length {n}" for n in (7, 11)]
    twice = [*tiles, stepped(14, 14, 1)]
    assert tiling_problems(twice) == ["2 buckets serve the length 14"]
    (problem,) = tiling_problems([*tiles, stepped(15, 15, 1, batch=2)])
    assert "must agree in all other axes" in problem
