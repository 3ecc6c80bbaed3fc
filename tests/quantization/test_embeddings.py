"""The figures of narrow embeddings, against counts and ranks found in another way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from edgecompile.quantization.embeddings import NEAREST, choose_ends, compare, vectors_of
from edgecompile.runtime.text.embedding import narrow


def drawn(texts: int = 40, size: int = 16) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(texts, size)).astype(np.float32)


def spearman(one: list[float], two: list[float]) -> float:
    """By its definition: the correlation of the ranks, where equal values share the mean rank."""

    def ranks(values: list[float]) -> list[float]:
        return [
            sum(x < value for x in values) + (sum(x == value for x in values) + 1) / 2
            for value in values
        ]

    return float(np.corrcoef(ranks(one), ranks(two))[0, 1])


def cosines(rows: np.ndarray) -> dict[tuple[int, int], float]:
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    pairs = itertools.permutations(range(len(rows)), 2)
    return {(i, j): float(unit[i] @ unit[j]) for i, j in pairs}


@pytest.mark.parametrize("precision", ["int8", "binary"])
def test_figures_are_counted(precision: str) -> None:
    rows = drawn()
    ranges = rows.min(0), rows.max(0)
    codes = narrow(rows, precision, ranges)
    if precision == "binary":  # the nearest are those of which the fewest bits differ
        bits = (rows > 0).astype(int)
        far = {(i, j): int((bits[i] != bits[j]).sum()) for i in range(40) for j in range(40)}
        other = {pair: -float(far[pair]) for pair in cosines(rows)}
    else:
        other = cosines(codes.astype(np.float64))
    wanted = cosines(rows.astype(np.float64))
    shared = []
    for i in range(40):
        near = [
            set(
                sorted((j for j in range(40) if j != i), key=lambda j: (-round(d[i, j], 12), j))[
                    :10
                ]
            )
            for d in (wanted, other)
        ]
        shared.append(len(near[0] & near[1]))
    half = [pair for pair in wanted if pair[0] < pair[1]]
    got = compare(rows, vectors_of(rows, precision, ranges))
    assert got.nearest == pytest.approx(np.mean(shared), abs=0.1)
    correlation = spearman([wanted[p] for p in half], [other[p] for p in half])
    assert got.correlation == pytest.approx(correlation, abs=2e-3)
    assert 0.5 < got.correlation < 1


def test_one_step_keeps_angles_unless_few_numbers_are_large() -> None:
    rows = drawn()
    low, high = choose_ends(rows)
    step = np.abs(rows).max() / 127
    np.testing.assert_allclose(low, np.full(16, -128 * step), rtol=1e-3)
    np.testing.assert_allclose(high, np.full(16, 127 * step), rtol=1e-3)
    own = compare(rows, vectors_of(rows, "int8", (rows.min(0), rows.max(0))))
    assert compare(rows, vectors_of(rows, "int8", (low, high))).nearest > own.nearest
    rows[:, 3] += 500
    low, high = choose_ends(rows)
    np.testing.assert_allclose(low, rows.min(0), rtol=1e-3)
    np.testing.assert_allclose(high, rows.max(0), rtol=1e-3)
    for ends in (low, high):
        assert all(float(f"{end:.4g}") == end for end in ends)


def test_the_same_embeddings_are_alike_and_others_not() -> None:
    rows = drawn()
    same = compare(rows, 3 * rows)
    assert same.nearest == NEAREST and same.correlation == pytest.approx(1)
    other = compare(rows, drawn()[::-1])
    assert other.nearest < 5 and abs(other.correlation) < 0.3
    assert compare(rows, np.ones_like(rows)).correlation == 0
