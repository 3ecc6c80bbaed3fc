"""Padded buckets of a real bundle agree with exact ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgecompile.runtime import open_bundle
from edgecompile.runtime.call.inputs import make_inputs
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.manifest.schema import BucketSpec, Extent
from tests.runtime.model.test_model import assert_agree


def test_padding_agrees_with_exact(native_copy: Path, native_bundle: str) -> None:
    """The same program, told to be a padded bucket: it has to mask the padding."""
    manifest = parse_manifest((native_copy / "manifest.json").read_bytes())
    axis = manifest.length_axis
    fitting = [i for i, item in enumerate(manifest.buckets) if item.mode == "exact"]
    if (
        axis is None
        or not fitting
        or any(axis in item.shape and item.pad is None for item in manifest.inputs)
    ):
        pytest.skip("the bundle has nothing that can be padded")
    index = fitting[-1]
    axes = dict(manifest.buckets[index].axes)
    lo, hi = axes[axis].lo, min(axes[axis].hi, axes[axis].lo + 40)
    axes[axis] = Extent(lo, hi, hi)
    padded = manifest._replace(
        buckets=(BucketSpec("pad", axes),),
        axes={name: Extent(item.lo, item.hi) for name, item in axes.items()},
        variants=tuple(
            item._replace(programs=(item.programs[index],)) for item in manifest.variants
        ),
        golden=(),
    )
    place = native_copy / "manifest.json"
    place.unlink()
    place.write_bytes(padded.to_bytes())
    with open_bundle(native_copy) as short, open_bundle(native_bundle) as model:
        sizes = {name: item.lo for name, item in axes.items()}
        for length in sorted({lo, (lo + hi) // 2, hi}):
            inputs = make_inputs(manifest, {**sizes, axis: length}, length)
            assert_agree(manifest, short.run(inputs), model.run_bucket(index, inputs))
        stats = short.stats
        assert stats["padding"] > 0 or lo == hi


def test_padding_of_several_axes_agrees_with_exact(native_copy: Path, native_bundle: str) -> None:
    """The same program, told to be static in length and batch; and once more, told to be exact."""
    manifest = parse_manifest((native_copy / "manifest.json").read_bytes())
    names = tuple(manifest.axes)
    if (
        manifest.length_axis is None
        or manifest.axes.get("batch", Extent(1, 1)).hi == 1
        or any(item.pad is None for item in manifest.inputs)
    ):
        pytest.skip("the bundle has no two axes that can be padded")
    axes = manifest.buckets[-1].axes
    low = {name: Extent(1, extent.hi, extent.hi) for name, extent in axes.items()}
    padded = manifest._replace(
        buckets=(BucketSpec("pad", low, names), BucketSpec("exact", axes)),
        axes={name: Extent(1, item.hi) for name, item in axes.items()},
        variants=tuple(
            item._replace(programs=(item.programs[-1],) * 2) for item in manifest.variants
        ),
        golden=(),
    )
    place = native_copy / "manifest.json"
    place.unlink()
    place.write_bytes(padded.to_bytes())
    with open_bundle(native_copy) as static, open_bundle(native_bundle) as model:
        assert static.info["buckets"][0]["pad_axes"] == list(names)
        # Both from 1 and to the middle, which the exact bucket beside may not take.
        for length in (1, 2, axes["length"].lo, axes["length"].hi):
            for batch in sorted({1, axes["batch"].hi}):
                sizes = {"length": length, "batch": batch}
                inputs = make_inputs(manifest, sizes, length)
                assert_agree(manifest, static.run_bucket(0, inputs), model.run(inputs))
        stats = static.stats
        elements = axes["length"].hi * axes["batch"].hi
        asked = sum(length * batch * n for length, batch, n in stats["sizes"]["cells"])
        assert stats["runs"] == 8 and stats["padding"] == pytest.approx(1 - asked / (8 * elements))
