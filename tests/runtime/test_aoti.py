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
from edgecompile.runtime.aoti import (
    _FUNCTIONS,
    ABI_VERSION,
    MAX_DIMS,
    NativeTensor,
    Program,
    load_runtime,
)
from edgecompile.runtime.errors import NativeError
from edgecompile.runtime.inputs import make_inputs
from edgecompile.runtime.libraries import pin_library

HEADER = Path(edgecompile.runtime.__file__).parent / "native" / "edgecompile_abi.h"


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
    assert {name for name, _, _ in _FUNCTIONS} == declared
    for name, _, arguments in _FUNCTIONS:
        found = re.search(rf"\b{name}\(([^)]*)\)", text)
        assert found is not None
        count = 0 if found.group(1) == "void" else found.group(1).count(",") + 1
        assert len(arguments) == count, name
    assert ctypes.sizeof(NativeTensor) == 8 + 8 + 8 + 4 + 4 + 2 * 8 * MAX_DIMS


def test_a_runtime_library_is_loaded_once(model: Model) -> None:
    variant = model.manifest.variants[
        [item.name for item in model.manifest.variants].index(model.info["variant"])
    ]
    assert load_runtime(pin_library(model._folder, variant.runtime)) is model._runtime


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
        program.run(arrays, [(slice(None),)] * (len(model.manifest.outputs) + 1))
    with pytest.raises(NativeError, match="dimensions, the manifest has"):
        program.run(arrays, [(slice(None),) * 7] * len(model.manifest.outputs))
    for got, expected in zip(program.run(arrays), want):  # noqa: B905 (Python 3.8)
        np.testing.assert_array_equal(got, expected)


def test_missing_constants_are_named(model: Model) -> None:
    weights = model._programs._weights
    assert weights is not None
    kept = weights.constants
    pinned = pin_library(model._folder, model.manifest.variants[0].programs[0])
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
