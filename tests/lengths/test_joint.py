from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecompile.errors import LengthsError
from edgecompile.lengths.documents import count_document
from edgecompile.lengths.joint import JointDistribution, distribution_of

AXES = ("length", "batch")
samples = st.dictionaries(
    st.tuples(st.integers(1, 20), st.integers(1, 6)), st.integers(1, 9), min_size=1, max_size=12
).map(lambda counts: JointDistribution.from_counts(AXES, counts, "test"))


@given(samples)
def test_marginals_count_every_sample(sample: JointDistribution) -> None:
    for column, axis in enumerate(AXES):
        marginal = sample.marginal(axis)
        assert marginal.n == sample.n
        for size, count in zip(marginal.lengths, marginal.counts, strict=True):
            pairs = zip(sample.sizes, sample.counts, strict=True)
            assert count == sum(n for cell, n in pairs if cell[column] == size)
        assert (sample.min(axis), sample.max(axis)) == (marginal.min, marginal.max)


@given(samples, st.integers(1, 20), st.sampled_from(AXES))
def test_clipping(sample: JointDistribution, limit: int, axis: str) -> None:
    column = AXES.index(axis)
    clipped, share = sample.clip(axis, limit)
    over = sum(
        n for cell, n in zip(sample.sizes, sample.counts, strict=True) if cell[column] > limit
    )
    assert share == over / sample.n
    assert clipped.n == sample.n and clipped.max(axis) <= limit
    assert clipped.marginal(axis) == sample.marginal(axis).clip(limit)[0]
    both = clipped.clip(AXES[1 - column], limit)[0]
    assert max(map(both.max, AXES)) <= limit


@given(samples)
def test_json(sample: JointDistribution) -> None:
    value = json.loads(json.dumps(sample.to_json()))
    assert distribution_of(count_document(value, "test")) == sample


def test_arrays_cannot_be_changed() -> None:
    sample = JointDistribution(AXES, ((1, 2), (1, 3)), (1, 2))
    assert sample.size_array.shape == (2, 2)
    with pytest.raises(ValueError, match="read-only"):
        sample.count_array[0] = 5
    with pytest.raises(KeyError):
        sample.max("width")


@pytest.mark.parametrize(
    ("axes", "sizes", "counts", "reason"),
    [
        (("length",), ((1,),), (1,), "two axes"),
        (("a", "a"), ((1, 1),), (1,), "two axes"),
        (AXES, (), (), "holds no sizes"),
        (AXES, ((1, 1),), (1, 2), "1 sizes but 2 counts"),
        (AXES, ((1, 0),), (1,), 'the batch "0", which is no size'),
        (AXES, ((1, 2**31),), (1,), "over the largest size"),
        (AXES, ((1, 1),), (0,), 'the count "0"'),
        (AXES, ((1, 1.0),), (1,), "isn't an int"),
        (AXES, ((1, float("nan")),), (1,), "isn't a finite number"),
        (AXES, ((1, np.int64(3)),), (1,), "isn't an int"),
        (AXES, ((1, 1, 1),), (1,), "isn't a pair"),
        (AXES, ((2, 1), (1, 1)), (1, 1), "ascending"),
        (AXES, ((1, 1), (1, 1)), (1, 1), "ascending"),
        (AXES, ((1, 1), (1, 2)), (2**53, 1), "over 9007199254740992 samples"),
    ],
)
def test_bad_fields_are_refused(axes: Any, sizes: Any, counts: Any, reason: str) -> None:
    with pytest.raises(LengthsError, match=reason):
        JointDistribution(axes, sizes, counts)
