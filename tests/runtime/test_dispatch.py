"""dispatch: the choice of a bucket, padding and cutting back."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from edgecompile.runtime.dispatch import Dispatcher
from edgecompile.runtime.errors import OutsideBucketsError
from edgecompile.runtime.manifest import BucketSpec, Extent, Manifest, TensorSpec


def bucket(mode: str, lo: int, hi: int, batch: int = 2) -> BucketSpec:
    return BucketSpec(mode, {"batch": Extent(1, batch, 1), "length": Extent(lo, hi, lo)})


def dispatcher(manifest: Manifest, *buckets: BucketSpec) -> Dispatcher:
    return Dispatcher(dataclasses.replace(manifest, buckets=buckets))


def test_the_fixture(manifest: Manifest) -> None:
    chooser = Dispatcher(manifest)
    choices = {n: chooser.choose({"batch": 1, "length": n}) for n in (1, 32, 33, 64)}
    assert choices == {1: 0, 32: 0, 33: 1, 64: 1}
    assert chooser.padded_length(0) == 0 and chooser.padded_length(1) == 64
    assert chooser.hint_sizes(0) == {"batch": 1, "length": 16}
    assert chooser.hint_sizes(1) == {"batch": 1, "length": 64}


def test_overlapping_buckets(manifest: Manifest) -> None:
    chooser = dispatcher(
        manifest,
        bucket("pad", 1, 32),
        bucket("pad", 1, 16),
        bucket("exact", 1, 64),
        bucket("exact", 1, 64, batch=1),
        bucket("exact", 8, 64, batch=1),
        bucket("exact", 20, 24),
    )
    assert chooser.choose({"batch": 1, "length": 4}) == 2, "exact before pad, then the first"
    assert chooser.choose({"batch": 1, "length": 8}) == 4, "the largest lower end"
    assert chooser.choose({"batch": 2, "length": 8}) == 2, "every axis counts"
    assert chooser.choose({"batch": 1, "length": 22}) == 5, "the smallest upper end"
    padded = dispatcher(manifest, bucket("pad", 1, 32), bucket("pad", 1, 16))
    assert [padded.choose({"batch": 1, "length": n}) for n in (1, 16, 17)] == [1, 1, 0]


def test_the_choice_is_the_least_by_the_rule(manifest: Manifest) -> None:
    rng = random.Random(0)
    for _ in range(200):
        buckets = []
        for _ in range(rng.randint(1, 6)):
            lo = rng.randint(1, 20)
            mode = rng.choice(["exact", "pad"])
            buckets.append(bucket(mode, lo, rng.randint(lo, 24), rng.randint(1, 2)))
        chooser = dispatcher(manifest, *buckets)
        for length in range(1, 26):
            for batch in (1, 2):
                fitting = [
                    (item.mode != "exact", item.axes["length"].hi, -item.axes["length"].lo, i)
                    for i, item in enumerate(buckets)
                    if length in item.axes["length"] and batch in item.axes["batch"]
                ]
                sizes = {"batch": batch, "length": length}
                if fitting:
                    assert chooser.choose(sizes) == min(fitting)[-1]
                else:
                    with pytest.raises(OutsideBucketsError):
                        chooser.choose(sizes)


@pytest.mark.parametrize(
    ("sizes", "hint"),
    [
        ({"batch": 1, "length": 65}, "cut length to at most 64"),
        ({"batch": 3, "length": 5}, "cut batch to at most 2"),
        ({"batch": 1, "length": 0}, "length must be at least 1"),
    ],
)
def test_outside(manifest: Manifest, sizes: dict[str, int], hint: str) -> None:
    with pytest.raises(OutsideBucketsError) as caught:
        Dispatcher(manifest).choose(sizes)
    assert "bucket 0: exact batch 1..2, length 1..32" in caught.value.message
    assert "bucket 1: pad batch 1..2, length 33..64" in caught.value.message
    assert caught.value.hint is not None and hint in caught.value.hint
    assert caught.value.exit_code == 25


def test_gap_and_forced_bucket(manifest: Manifest) -> None:
    chooser = dispatcher(manifest, bucket("exact", 1, 10), bucket("exact", 20, 64))
    with pytest.raises(OutsideBucketsError, match="gap between the buckets"):
        chooser.choose({"batch": 1, "length": 15})
    chooser.check(1, {"batch": 1, "length": 20})
    with pytest.raises(OutsideBucketsError, match=r"bucket 1 .* doesn't take the sizes"):
        chooser.check(1, {"batch": 1, "length": 5})


def test_padding(manifest: Manifest) -> None:
    inputs = (
        TensorSpec("ids", "int64", ("batch", "length"), 9),
        TensorSpec("bias", "float32", ("length", "length"), -1.5),
        TensorSpec("scale", "float32", ("batch",)),
    )
    outputs = (
        TensorSpec("states", "float32", ("batch", "length", 3)),
        TensorSpec("pooled", "float32", ("batch", 4)),
        TensorSpec("scores", "float32", ("length", "length")),
        TensorSpec("sum", "float32", ()),
    )
    chooser = Dispatcher(dataclasses.replace(manifest, inputs=inputs, outputs=outputs))
    sizes = {"batch": 2, "length": 40}
    arrays = [
        np.arange(80).reshape(2, 40),
        np.ones((40, 40), np.float32),
        np.ones(2, np.float32),
    ]
    same = chooser.pad(0, arrays, sizes)
    assert [id(array) for array in same] == [id(array) for array in arrays]
    ids, bias, scale = chooser.pad(1, arrays, sizes)
    assert ids.shape == (2, 64) and ids.dtype == np.int64
    np.testing.assert_array_equal(ids[:, :40], arrays[0])
    assert np.all(ids[:, 40:] == 9)
    assert bias.shape == (64, 64) and bias.dtype == np.float32
    assert np.all(bias[:40, :40] == 1) and bias.sum() == 1600 - 1.5 * (64 * 64 - 1600)
    assert scale is arrays[2]

    full = [np.ones((2, 64), np.int64), np.ones((64, 64), np.float32), arrays[2]]
    assert chooser.pad(1, full, {"batch": 2, "length": 64})[0] is full[0], "nothing to fill"

    crops = chooser.crops(sizes)
    shapes = [(2, 64, 3), (2, 4), (64, 64), ()]
    cut = [np.zeros(shapes[i])[crop].shape for i, crop in enumerate(crops)]
    assert cut == [(2, 40, 3), (2, 4), (40, 40), ()]
