"""aoti: the binding itself, below the checks of Model."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import edgecompile.runtime
from edgecompile.runtime import Model, open_bundle
from edgecompile.runtime.base.errors import NativeError
from edgecompile.runtime.call.inputs import make_inputs
from edgecompile.runtime.cpu.functions import ABI_VERSION, FUNCTIONS, OPTIONAL, ProfileRow
from edgecompile.runtime.cpu.libraries import pin_library
from edgecompile.runtime.cpu.library import Program, load_runtime
from edgecompile.runtime.cpu.tensors import MAX_DIMS, NativeTensor, pack_arrays
from edgecompile.runtime.format.manifest.schema import Variant
from tests.runtime.bundles import change_libraries

HEADER = Path(edgecompile.runtime.__file__).parent / "native" / "base" / "edgecompile_abi.h"


@pytest.fixture(scope="module")
def model(native_bundle: str) -> Iterator[Model]:
    with open_bundle(native_bundle) as opened:
        yield opened


def program_of(model: Model) -> Program:
    return model._programs.get(0)


def arrays_for(model: Model) -> list[np.ndarray]:
    sizes = {axis: extent.lo for axis, extent in model.manifest.buckets[0].axes.items()}
    inputs = make_inputs(model.manifest, sizes)
    return [inputs[spec.name] for spec in model.manifest.inputs]


def test_the_binding_agrees_with_the_header() -> None:
    text = HEADER.read_text()
    assert f"#define EC_ABI_VERSION {ABI_VERSION}\n" in text
    assert f"#define EC_MAX_DIMS {MAX_DIMS}\n" in text
    declared = set(re.findall(r"^EC_API .*?(ec_\w+)\(", text, re.MULTILINE))
    functions = FUNCTIONS + OPTIONAL
    assert {name for name, _, _ in functions} == declared
    for name, _, arguments in functions:
        found = re.search(rf"\b{name}\(([^)]*)\)", text)
        assert found is not None
        count = 0 if found.group(1) == "void" else found.group(1).count(",") + 1
        assert len(arguments) == count, name
    assert ctypes.sizeof(NativeTensor) == 8 + 8 + 8 + 4 + 4 + 2 * 8 * MAX_DIMS
    assert ctypes.sizeof(ProfileRow) == 8 + 4 + 4 + 9 * 8


def test_arrays_are_described_where_they_lie() -> None:
    """Also those that may not be written to, are empty, or have gaps."""
    whole = np.ones((3, 4), np.float32)
    for array in (whole, whole[1:], whole[:, 1:2], whole.T, whole[:0], np.ones((), np.bool_)):
        frozen = array.view()
        frozen.flags.writeable = False
        for given in (array, frozen):
            described = NativeTensor.from_buffer_copy(pack_arrays([given]))
            assert described.data == given.__array_interface__["data"][0]


def variant_of(model: Model) -> Variant:
    """The variant that this CPU was given."""
    return next(x for x in model.manifest.variants if x.name == model.info["variant"])


def test_a_runtime_library_is_loaded_once(model: Model) -> None:
    variant = variant_of(model)
    pinned = pin_library(model._folder, variant.runtime)
    assert load_runtime(pinned, Path(variant.runtime).name) is model._runtime


def test_a_runtime_that_another_linker_made_is_not_loaded_beside_it(
    model: Model, native_copy: Path
) -> None:
    """Its SONAME is the same, so programs would be bound to the first, and counted there."""
    change_libraries(native_copy)
    with open_bundle(native_copy) as other:
        assert other._runtime is model._runtime
        other._runtime.start_profile()
        program_of(other).run(arrays_for(other))
        rows = {row.kernel: row.calls for row in other._runtime.stop_profile()}
    assert rows.pop(b"run") == 1 and rows


def test_number_of_threads(model: Model) -> None:
    before = model._runtime.threads
    try:
        for count in (1, 2):
            model._runtime.threads = count
            assert model._runtime.threads == count
        with pytest.raises(NativeError, match=r"setting -1 threads failed: ."):
            model._runtime.threads = -1
    finally:
        model._runtime.threads = before


def test_runs_leak_no_handles(model: Model) -> None:
    program, arrays = program_of(model), arrays_for(model)
    program.run(arrays)
    before = model._runtime.live_tensors
    for _ in range(20):
        program.run(arrays)
    assert model._runtime.live_tensors == before
    used, _ = model._runtime.buffer_bytes
    model._runtime.trim()
    assert model._runtime.buffer_bytes == (used, 0)


def test_native_failures_become_errors(model: Model) -> None:
    program, arrays = program_of(model), arrays_for(model)
    want = program.run(arrays)
    with pytest.raises(NativeError, match=r"running .* failed: ."):
        program.run(arrays[:-1])
    with pytest.raises(NativeError, match="outputs, the manifest has"):
        program.run(arrays, [(None,)] * (len(model.manifest.outputs) + 1))
    with pytest.raises(NativeError, match="dimensions, the manifest has"):
        program.run(arrays, [(None,) * 7] * len(model.manifest.outputs))
    for got, expected in zip(program.run(arrays), want):  # noqa: B905 (Python 3.8)
        np.testing.assert_array_equal(got, expected)


def test_runs_into_given_memory(model: Model) -> None:
    program, arrays = program_of(model), arrays_for(model)
    want = program.run(arrays)
    results = [np.full(x.shape, 7, x.dtype) for x in want]
    program.run_into(arrays, results)
    for got, expected in zip(results, want):  # noqa: B905 (Python 3.8)
        np.testing.assert_array_equal(got, expected)
    # Every other column of something wider, and less than there is.
    wide = [np.full((*x.shape[:-1], 2 * x.shape[-1]), 7, x.dtype) for x in want]
    program.run_into(arrays, [x[..., :-2:2] for x in wide])
    for got, expected in zip(wide, want):  # noqa: B905 (Python 3.8)
        np.testing.assert_array_equal(got[..., :-2:2], expected[..., :-1])
        assert (got[..., 1::2] == 7).all() and (got[..., -2:] == 7).all()


def test_memory_that_does_not_fit_is_refused(model: Model) -> None:
    program, arrays = program_of(model), arrays_for(model)
    results = [np.empty_like(x) for x in program.run(arrays)]
    with pytest.raises(NativeError, match="memory for 0 was given"):
        program.run_into(arrays, [])
    longer = [np.empty((*x.shape[:-1], x.shape[-1] + 1), x.dtype) for x in results]
    with pytest.raises(NativeError, match=r"output 0 is float32 \[.*\], memory for float32 \["):
        program.run_into(arrays, longer)
    with pytest.raises(NativeError, match=r"memory for float64 \[.*\] was given"):
        program.run_into(arrays, [x.astype(np.float64) for x in results])
    with pytest.raises(NativeError, match="inputs, 0 were given"):
        program.run_into([], results)
    before = model._runtime.live_tensors
    program.run_into(arrays, results)
    assert model._runtime.live_tensors == before


def test_a_profile_counts_runs_and_kernels(model: Model) -> None:
    program, arrays = program_of(model), arrays_for(model)
    model._runtime.start_profile()
    for _ in range(3):
        program.run(arrays)
    rows = {row.kernel: row for row in model._runtime.stop_profile()}
    assert rows[b"run"].calls == 3
    assert 0 < sum(row.ns for name, row in rows.items() if name != b"run") <= rows[b"run"].ns
    assert all(row.calls % 3 == 0 for row in rows.values())
    program.run(arrays)
    model._runtime.start_profile()
    assert model._runtime.stop_profile() == []


def test_ceilings_are_plausible(model: Model) -> None:
    flops, moved = model._runtime.measure_ceilings()
    assert 1e8 < flops < 1e15 and 1e8 < moved < 1e13


def test_missing_constants_are_named(model: Model) -> None:
    weights = model._programs._weights
    assert weights is not None
    kept = weights.constants
    pinned = pin_library(model._folder, variant_of(model).programs[0])
    needed = [item.name for item in kept]
    weights.constants = ()
    try:
        with pytest.raises(NativeError) as caught:
            model._runtime.open_program(pinned, weights, 1)
    finally:
        weights.constants = kept
    assert any(name in caught.value.message for name in needed)


def test_a_closed_program(native_bundle: str) -> None:
    with open_bundle(native_bundle) as model:
        program, arrays = program_of(model), arrays_for(model)
    program.close()
    with pytest.raises(NativeError, match="the program is closed"):
        program.run(arrays)
