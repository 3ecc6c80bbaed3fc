"""dispatch: the choice of a bucket, padding and cutting back."""

from __future__ import annotations

import random

import numpy as np
import pytest

from edgecompile.runtime.base.errors import OutsideBucketsError
from edgecompile.runtime.call.dispatch import Dispatcher
from edgecompile.runtime.format.manifest.schema import BucketSpec, Extent, Manifest, TensorSpec


def bucket(mode: str, lo: int, hi: int, batch: int = 2) -> BucketSpec:
    return BucketSpec(mode, {"batch": Extent(1, batch, 1), "length": Extent(lo, hi, lo)})


def dispatcher(manifest: Manifest, *buckets: BucketSpec) -> Dispatcher:
    return Dispatcher(manifest._replace(buckets=buckets))


def test_the_fixture(manifest: Manifest) -> None:
    chooser = Dispatcher(manifest)
    choices = {n: chooser.choose({"batch": 1, "length": n}) for n in (1, 32, 33, 64)}
    assert choices == {1: 0, 32: 0, 33: 1, 64: 1}
    assert chooser.fills(0) == [{}] and chooser.fills(1) == [{"length": 64}]
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
    assert chooser.choose({"batch": 1, "length": 4}) == 3, "exact before pad, the tighter batch"
    assert chooser.choose({"batch": 1, "length": 8}) == 4, "the largest lower end"
    assert chooser.choose({"batch": 2, "length": 8}) == 2, "every axis counts"
    assert chooser.choose({"batch": 1, "length": 22}) == 5, "the smallest upper end"
    padded = dispatcher(manifest, bucket("pad", 1, 32), bucket("pad", 1, 16))
    assert [padded.choose({"batch": 1, "length": n}) for n in (1, 16, 17)] == [1, 1, 0]


def test_lengths_in_steps(manifest: Manifest) -> None:
    def stepped(lo: int, hi: int, step: int) -> BucketSpec:
        axes = {"batch": Extent(1, 2, 1), "length": Extent(lo, hi, lo, step)}
        return BucketSpec("exact", axes)

    chooser = dispatcher(manifest, stepped(1, 61, 4), stepped(2, 64, 2), stepped(3, 59, 4))
    choices = [chooser.choose({"batch": 1, "length": n}) for n in (1, 2, 3, 4, 57, 59, 61, 64)]
    assert choices == [0, 1, 2, 1, 0, 2, 0, 1]
    with pytest.raises(OutsideBucketsError, match=r"exact batch 1..2, length 3..59 in steps of 4"):
        chooser.choose({"batch": 1, "length": 63})
    with pytest.raises(OutsideBucketsError, match=r"bucket 1 .* doesn't take .* length 5"):
        chooser.check(1, {"batch": 1, "length": 5})


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
                    (
                        item.mode != "exact",
                        item.axes["length"].hi,
                        -item.axes["length"].lo,
                        item.axes["batch"].hi,
                        i,
                    )
                    for i, item in enumerate(buckets)
                    if length in item.axes["length"] and batch in item.axes["batch"]
                ]
                sizes = {"batch": batch, "length": length}
                if fitting:
                    assert chooser.choose(sizes) == min(fitting)[-1]
                else:
                    with pytest.raises(OutsideBucketsError):
                        chooser.choose(sizes)


def joint(lo: int, hi: int, batch_lo: int, batch_hi: int) -> BucketSpec:
    axes = {"batch": Extent(batch_lo, batch_hi, batch_lo), "length": Extent(lo, hi, lo)}
    return BucketSpec("pad", axes, ("length", "batch"))


def test_the_bucket_that_computes_least_where_several_axes_are_padded(manifest: Manifest) -> None:
    chooser = dispatcher(
        manifest,
        joint(1, 64, 1, 8),  # 512 elements
        joint(1, 128, 1, 1),  # 128
        joint(1, 32, 1, 8),  # 256
        joint(1, 64, 1, 4),  # 256
        joint(1, 128, 1, 8),
    )
    choices = {
        (length, batch): chooser.choose({"batch": batch, "length": length})
        for length, batch in ((50, 1), (50, 2), (50, 5), (20, 4), (20, 5), (100, 1), (100, 2))
    }
    assert choices == {
        (50, 1): 1,
        (50, 2): 3,
        (50, 5): 0,
        (20, 4): 2,  # as many elements as bucket 3, of a shorter length
        (20, 5): 2,
        (100, 1): 1,
        (100, 2): 4,
    }


def test_slabs_are_told_apart_by_the_other_axis(manifest: Manifest) -> None:
    chooser = dispatcher(manifest, joint(1, 64, 1, 1), joint(1, 32, 2, 8), joint(33, 64, 2, 8))
    choices = [chooser.choose({"batch": b, "length": n}) for n, b in ((5, 1), (5, 2), (33, 8))]
    assert choices == [0, 1, 2]
    with pytest.raises(OutsideBucketsError, match=r"bucket 1: pad \(length, batch\) batch 2..8"):
        chooser.choose({"batch": 9, "length": 5})


def test_among_the_same_elements_the_tightest_then_the_first(manifest: Manifest) -> None:
    same = [joint(1, 64, 1, 8), joint(1, 64, 2, 8), joint(9, 64, 1, 8), joint(9, 64, 1, 8)]
    chooser = dispatcher(manifest, *same)
    assert chooser.choose({"batch": 2, "length": 10}) == 2, "the largest lo of the length axis"
    assert chooser.choose({"batch": 2, "length": 5}) == 1, "then of the others"
    assert chooser.choose({"batch": 1, "length": 5}) == 0


def test_padding_several_axes(manifest: Manifest) -> None:
    inputs = (
        TensorSpec("ids", "int64", ("batch", "length"), 9),
        TensorSpec("scale", "float32", ("batch",), 0.5),
        TensorSpec("bias", "float32", ("length", 3), 7),
        TensorSpec("table", "float32", (2, 2)),
    )
    outputs = (
        TensorSpec("states", "float32", ("batch", "length", 3)),
        TensorSpec("scores", "float32", ("batch", "batch")),
    )
    changed = manifest._replace(inputs=inputs, outputs=outputs, buckets=(joint(1, 8, 1, 4),))
    chooser = Dispatcher(changed)
    assert chooser.fills(0) == [{"length": 8, "batch": 4}]
    assert chooser.hint_sizes(0) == {"batch": 4, "length": 8}
    arrays = [
        np.arange(6).reshape(2, 3),
        np.ones(2, np.float32),
        np.ones((3, 3), np.float32),
        np.ones((2, 2), np.float32),
    ]
    sizes = {"batch": 2, "length": 3}
    ids, scale, bias, table = chooser.pad(0, arrays, sizes)
    wanted = np.full((4, 8), 9)
    wanted[:2, :3] = arrays[0]
    np.testing.assert_array_equal(ids, wanted)
    np.testing.assert_array_equal(scale, np.array([1, 1, 0.5, 0.5], np.float32))
    assert bias.shape == (8, 3) and np.all(bias[3:] == 7)
    assert table is arrays[3], "fixed sizes aren't those of an axis, whatever they are"

    one_short = [np.ones((4, 3), np.int64), np.ones(4, np.float32), *arrays[2:]]
    padded = chooser.pad(0, one_short, {"batch": 4, "length": 3})
    assert padded[0].shape == (4, 8) and padded[1] is one_short[1]
    full = [np.ones((4, 8), np.int64), np.ones(4, np.float32), np.ones((8, 3), np.float32)]
    assert chooser.pad(0, full, {"batch": 4, "length": 8})[0] is full[0]


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
    chooser = Dispatcher(manifest._replace(inputs=inputs, outputs=outputs))
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
