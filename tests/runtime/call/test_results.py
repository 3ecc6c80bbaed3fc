"""results: outputs in new arrays and in the caller's, also with a runtime that can't write there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import Model, open_bundle
from edgecompile.runtime.base.errors import InputError
from edgecompile.runtime.call.inputs import make_inputs
from edgecompile.runtime.call.results import ResultMaker, _misfit
from edgecompile.runtime.format.manifest.schema import TensorSpec

Arrays = Any


@pytest.fixture(scope="module")
def model(native_bundle: str) -> Iterator[Model]:
    with open_bundle(native_bundle) as opened:
        yield opened


def inputs_for(model: Model, seed: int = 0) -> Arrays:
    sizes = {axis: extent.lo + 1 for axis, extent in model.manifest.buckets[0].axes.items()}
    if not model.manifest.buckets[0].contains(sizes):
        sizes = {axis: extent.lo for axis, extent in model.manifest.buckets[0].axes.items()}
    return make_inputs(model.manifest, sizes, seed)


@pytest.mark.parametrize("native", [True, False])
def test_results_go_where_the_caller_says(
    model: Model, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = model._programs.get(0)
    inputs = inputs_for(model)
    want = model.run(inputs)
    monkeypatch.setattr(program, "runs_into", native)
    new = model.run(inputs)
    out = {name: np.empty_like(array) for name, array in want.items()}
    again = model.run(inputs, out)
    assert list(new) == list(again) == [spec.name for spec in model.manifest.outputs]
    for name, array in want.items():
        np.testing.assert_array_equal(new[name], array)
        assert again[name] is out[name]
        np.testing.assert_array_equal(out[name], array)
        assert new[name].flags.owndata and new[name].flags.c_contiguous
    # Columns of a larger array, which is left alone otherwise.
    wide = {name: np.full((*x.shape[:-1], x.shape[-1] + 3), 5, x.dtype) for name, x in want.items()}
    model.run(inputs, {name: array[..., 1:-2] for name, array in wide.items()})
    for name, array in want.items():
        np.testing.assert_array_equal(wide[name][..., 1:-2], array)
        assert (wide[name][..., 0] == 5).all() and (wide[name][..., -2:] == 5).all()


def unaligned(array: Arrays) -> Arrays:
    memory = bytearray(array.nbytes + 1)
    return np.frombuffer(memory, array.dtype, array.size, 1).reshape(array.shape)


def test_what_results_can_not_go_to(model: Model) -> None:
    inputs = inputs_for(model)
    good = model.run(inputs)
    name, array = next(iter(good.items()))
    read_only = array.copy()
    read_only.flags.writeable = False
    for bad, text in (
        (array.astype(np.float64), "has dtype float64, must be float32"),
        (array.astype(">f4"), "has dtype >f4, must be float32"),
        (array[:, :-1], "has shape .*, must be "),
        (array.tolist(), "is a list, must be an array"),
        (read_only, "is read-only"),
        (array[::-1, ..., ::-1], "has strides .* that native code can't write with"),
        (np.lib.stride_tricks.as_strided(array, strides=(4,) * array.ndim), "overlaps itself"),
        (unaligned(array), "isn't aligned in memory"),
    ):
        with pytest.raises(InputError, match=f"out: {name}: {text}"):
            model.run(inputs, {**good, name: bad})
    with pytest.raises(InputError, match="nonsense: the model has no such output"):
        model.run(inputs, {**good, "nonsense": array})
    with pytest.raises(InputError, match=f"{name}: is missing"):
        model.run(inputs, {})
    with pytest.raises(InputError, match="out must be a mapping of names to arrays, not list"):
        model.run(inputs, [array])  # type: ignore[arg-type]


def test_nothing_has_strides() -> None:
    """A result whose size depends on values may be empty."""
    empty = np.empty((0, 16), np.float32)
    assert _misfit(empty, np.dtype(np.float32), (None, 16)) is None
    assert _misfit(empty[:, :3], np.dtype(np.float32), (None, 16)) is not None


def test_parts_of_one_array_that_lie_apart(model: Model) -> None:
    inputs = inputs_for(model)
    want = model.run(inputs)
    name, array = next(iter(want.items()))
    both = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    out = {**want, name: both[..., ::2]}
    if len(want) > 1:
        other, second = list(want.items())[1]
        if second.shape == array.shape and second.dtype == array.dtype:
            out[other] = both[..., 1::2]
    model.run(inputs, out)
    np.testing.assert_array_equal(both[..., ::2], array)


def test_overlaps_are_refused(model: Model) -> None:
    inputs = inputs_for(model)
    good = model.run(inputs)
    name, array = next(iter(good.items()))
    memory = np.zeros(array.size * 4 + 64, np.float32)
    first = memory[: array.size].reshape(array.shape)
    ids, taken = next(iter(inputs.items()))
    own = memory.view(taken.dtype)[: taken.size].reshape(taken.shape)
    own[...] = taken
    with pytest.raises(InputError, match="overlaps an input"):
        model.run({**inputs, ids: own}, {**good, name: first})


def test_shapes_follow_the_sizes(model: Model) -> None:

    outputs = (
        TensorSpec("states", "float32", ("batch", "length", 3)),
        TensorSpec("found", "int64", (None, 2)),
        TensorSpec("sum", "float32", ()),
    )
    maker = ResultMaker(model.manifest._replace(outputs=outputs))
    assert maker.shapes({"batch": 2, "length": 40}) == [(2, 40, 3), (None, 2), ()]
