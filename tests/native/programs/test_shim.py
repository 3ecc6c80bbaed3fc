"""Tensor handles of AOTInductor's C ABI: types, behaviour beside torch's own, errors, memory."""

from __future__ import annotations

import ctypes
import re
import subprocess
import threading
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from edgecompile.backends.cpu.backend import torch_include_dirs
from edgecompile.backends.operators import ops
from edgecompile.toolchain.compilers import find_toolchain
from tests.native.conftest import sanitizer_flags
from tests.native.programs.aoti import (
    DTYPES,
    FLOAT32,
    NATIVE,
    Handle,
    ShimError,
    int64s,
    load_shim,
    load_torch_shim,
    own_runtime,
)
from tests.native.sweep import sweep

CONSTANTS = re.compile(
    r"^ec_(aoti_torch_(?:dtype_(?!element)|layout_|memory_format_|device_type_)\w+)$"
)
#: What EC_API puts before a function of the C ABI, and its declaration.
DEFINITION = re.compile(
    r'extern "C" __attribute__\(\(visibility\("default"\)\)\)\s+([^;{}()]*?\b(ec_\w+)\s*\([^{};]*\))\s*\{'
)
#: Not torch's.
OWN = {"ec_check_failed"}
#: numpy has no bfloat16.
NUMPYS = sorted(set(DTYPES) - {"bfloat16"})


@cache
def defined() -> dict[str, str]:
    """Every function that the sources in shim/ define, macros expanded, and its declaration."""
    found = {}
    for source in sorted((NATIVE / "shim").rglob("*.cpp")):
        done = subprocess.run(
            [find_toolchain().cxx, "-std=c++20", "-E", "-P", f"-I{NATIVE}", str(source)],
            check=True,
            capture_output=True,
            text=True,
        )
        for declaration, name in DEFINITION.findall(done.stdout):
            found[name] = declaration
    return found


def test_every_function_is_exported():
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(own_runtime().path)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    exported = {line.split()[-1] for line in listing.splitlines()}
    assert len(defined()) > 90
    assert set(defined()) <= exported
    if not sanitizer_flags():  # then it is linked without the list of what is exported
        assert {name for name in exported if not name.startswith("ec_")} == set()


def test_types_are_torchs(tmp_path: Path):
    """Each function has exactly the type of the function that it stands in for."""
    shims = [s for entry in ops.C_SHIMS.values() for s in entry]
    lines = [
        "#include <torch/csrc/inductor/aoti_torch/c/shim.h>",
        "#include <torch/csrc/inductor/aoti_torch/generated/c_shim_aten.h>",
        "#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>",
        "#include <type_traits>",
        *(f'extern "C" {shim.rstrip(";")};' for shim in shims),
    ]
    names = sorted(set(defined()) - OWN)
    assert {"ec_aoti_torch_empty_strided", "ec_aoti_torch_cpu_ec_linear"} <= set(names)
    for name in names:
        lines.append(f'extern "C" {defined()[name]};')
        lines.append(
            f'static_assert(std::is_same_v<decltype(&{name}), decltype(&{name[3:]})>, "{name}");'
        )
    source = tmp_path / "types.cpp"
    source.write_text("\n".join(lines) + "\n")
    includes = [f"-I{path}" for path in torch_include_dirs()]
    done = subprocess.run(
        [find_toolchain().cxx, "-std=c++20", "-fsyntax-only", "-w", *includes, str(source)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_constants_are_torchs():
    ours, torchs = load_shim(), load_torch_shim()
    names = [m.group(1) for m in map(CONSTANTS.match, defined()) if m]
    assert len(names) > 25
    for name in names:
        assert ours.function(name)() == torchs.function(name)(), name


@sweep("code", [*range(12), 15, *range(23, 30), 44, 45])
def test_element_sizes_are_torchs(code: int):
    sizes = [
        s.function("aoti_torch_dtype_element_size")(code) for s in (load_shim(), load_torch_shim())
    ]
    assert sizes[0] == sizes[1] > 0


def test_unknown_dtype_has_no_size():
    assert load_shim().function("aoti_torch_dtype_element_size")(99) == 0


def facts(shim, handle):
    """The questions that generated code can ask about a tensor."""
    return {
        "dim": shim.dims(handle),
        "sizes": shim.sizes(handle),
        "strides": shim.strides(handle),
        "offset": shim.offset(handle),
        "numel": shim.value("get_numel", ctypes.c_int64, handle),
        "storage": shim.storage_size(handle),
        "storage_numel": shim.value("get_storage_numel", ctypes.c_int64, handle),
        "dtype": shim.value("get_dtype", ctypes.c_int32, handle),
        "device": shim.value("get_device_type", ctypes.c_int32, handle),
        "index": shim.value("get_device_index", ctypes.c_int32, handle),
        "layout": shim.value("get_layout", ctypes.c_int32, handle),
        "contiguous": shim.value("is_contiguous", ctypes.c_bool, handle),
        "defined": shim.value("is_defined", ctypes.c_bool, handle),
        "null": shim.data(handle) is None,
    }


def random_layout(rng: np.random.Generator, dims: int):
    """Sizes and strides of a random permutation, with gaps, repeated and empty dimensions."""
    sizes = [int(n) for n in rng.integers(1, 5, dims)]
    strides = [0] * dims
    step = 1
    for d in rng.permutation(dims):
        strides[d] = step
        step *= sizes[d] + int(rng.random() < 0.2)
        if rng.random() < 0.15:
            strides[d] = 0
    if dims and rng.random() < 0.1:
        sizes[int(rng.integers(dims))] = 0
    return sizes, strides


@sweep("seed", range(60))
def test_handles_behave_as_torchs(shim, seed: int):
    """The same random sequence of calls on both libraries gives the same facts at every step."""
    torchs = load_torch_shim()
    rng = np.random.default_rng(seed)
    dtype = int(rng.choice([FLOAT32, DTYPES["int64"], DTYPES["bool"], DTYPES["float16"]]))
    sizes, strides = random_layout(rng, int(rng.integers(0, 6)))
    pairs = [(shim.empty(sizes, strides, dtype), torchs.empty(sizes, strides, dtype))]
    span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    if 0 not in sizes:
        offset = int(rng.integers(0, span))
        inner = [int(n) for n in rng.integers(1, 3, 2)]
        steps = [int(rng.integers(0, 1 + (span - offset - 1) // 2)) for _ in inner]
        first = [
            s.view(h, inner, steps, offset) for s, h in zip((shim, torchs), pairs[0], strict=True)
        ]
        pairs.append(tuple(first))
        # Offsets of views of views add up.
        pairs.append(
            tuple(s.view(h, (1,), (1,), 0) for s, h in zip((shim, torchs), first, strict=True))
        )
        pairs.append(
            tuple(
                s.make("as_strided", h, int64s((1, 1)), int64s((3, 1)))
                for s, h in zip((shim, torchs), first, strict=True)
            )
        )
    for name in ("new_tensor_handle", "assign_tensors_out", "clone", "clone_preserve_strides"):
        for pair in list(pairs[:2]):
            pairs.append(tuple(s.make(name, h) for s, h in zip((shim, torchs), pair, strict=True)))
    for ours, theirs in pairs:
        assert facts(shim, ours) == facts(torchs, theirs)
    for ours, theirs in pairs:
        shim.delete(ours)
        torchs.delete(theirs)


def test_new_handles_share_memory_and_keep_it_alive(shim):
    base = shim.empty((4, 3))
    view = shim.view(base, (3, 4), (1, 3))
    alias = shim.make("new_tensor_handle", base)
    assert shim.data(view) == shim.data(alias) == shim.data(base)
    shim.delete(base, alias)
    np.testing.assert_array_equal(shim.array(view).shape, (3, 4))
    shim.delete(view)


def test_assign_makes_an_alias(shim):
    source, target = shim.empty((2, 2)), shim.empty((7,))
    shim.call("assign_tensors", source, target)
    assert shim.data(target) == shim.data(source)
    assert shim.sizes(target) == (2, 2)
    shim.delete(source, target)


def test_uninitialized_handle_is_undefined_until_assigned(shim):
    handle = shim.make("new_uninitialized_tensor")
    assert not shim.value("is_defined", ctypes.c_bool, handle)
    source = shim.empty((3,))
    shim.call("assign_tensors", source, handle)
    assert shim.value("is_defined", ctypes.c_bool, handle)
    shim.delete(source, handle)


def test_blob_offset_counts_from_the_data(shim):
    array = np.arange(10, dtype=np.float32)
    handle = Handle()
    shim.call(
        "create_tensor_from_blob_v2",
        ctypes.c_void_p(array.ctypes.data),
        ctypes.c_int64(1),
        int64s((4,)),
        int64s((2,)),
        ctypes.c_int64(3),
        FLOAT32,
        0,
        0,
        ctypes.byref(handle),
        0,
        None,
        ctypes.c_int64(0),
    )
    np.testing.assert_array_equal(shim.array(handle), array[3:10:2])
    assert shim.offset(handle) == 3
    shim.delete(handle)


def test_pool_views(shim):
    pool = shim.empty((64,), dtype=DTYPES["uint8"])
    arguments = (pool, ctypes.c_int64(16), FLOAT32, ctypes.c_int64(1), int64s((4,)), int64s((1,)))
    part = shim.make("_alloc_from_pool", *arguments)
    assert shim.data(part) == shim.data(pool) + 16
    assert shim.value("get_dtype", ctypes.c_int32, part) == FLOAT32
    shim.delete(pool, part)


def test_buffers_are_aligned(shim):
    for n in (1, 5, 17, 1000, 12345):
        handle = shim.empty((n,))
        assert shim.data(handle) % 64 == 0
        shim.delete(handle)


# ---- Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "strides", "dtype", "message"),
    [
        ((1,) * 9, (1,) * 9, FLOAT32, "9 dimensions"),
        ((-1,), (1,), FLOAT32, "size -1"),
        ((2,), (-1,), FLOAT32, "stride -1"),
        ((2,), (1,), 77, "unknown dtype code 77"),
        ((2**40, 2**40), (2**40, 1), FLOAT32, "too large"),
        ((2**60,), (1,), DTYPES["float64"], "too large"),
        ((2**45,), (1,), FLOAT32, "out of memory"),
    ],
)
def test_impossible_tensors_are_refused(shim, sizes, strides, dtype, message):
    with pytest.raises(ShimError, match=message) as caught:
        shim.empty(sizes, strides, dtype)
    assert str(caught.value).startswith("aoti_torch_empty_strided: ")


def test_other_devices_and_layouts_are_refused(shim):
    with pytest.raises(ShimError, match="device type 1 was asked for"):
        shim.make("empty_strided", ctypes.c_int64(1), int64s((1,)), int64s((1,)), FLOAT32, 1, 0)


def test_views_outside_their_storage_are_refused(shim):
    handle = shim.empty((10,))
    with pytest.raises(ShimError, match="view of 44 bytes does not fit a storage of 40 bytes"):
        shim.view(handle, (2,), (1,), 9)
    with pytest.raises(ShimError, match="too large"):
        shim.view(handle, (2,), (1,), -1)
    shim.delete(handle)


def test_null_handles_are_errors(shim):
    with pytest.raises(ShimError, match="aoti_torch_get_dim: tensor handle is null"):
        shim.dims(Handle())
    shim.delete(Handle())  # as torch: nothing happens


def test_dimension_out_of_range(shim):
    handle = shim.empty((2, 3))
    assert shim.value("get_size", ctypes.c_int64, handle, ctypes.c_int64(-1)) == 3
    assert shim.value("get_stride", ctypes.c_int64, handle, ctypes.c_int64(0)) == 3
    with pytest.raises(ShimError, match="dimension 2 of a tensor with 2"):
        shim.value("get_size", ctypes.c_int64, handle, ctypes.c_int64(2))
    shim.delete(handle)


def test_errors_belong_to_their_thread(shim):
    with pytest.raises(ShimError):
        shim.dims(Handle())
    seen = []
    thread = threading.Thread(target=lambda: seen.append(shim.library.ec_last_error()))
    thread.start()
    thread.join()
    assert seen == [b""]
    assert b"null" in shim.library.ec_last_error()


# ---- Memory ---------------------------------------------------------------------------------------


def test_varying_lengths_do_not_grow_memory(shim):
    """Kept memory is bounded by the most that was ever in use, whatever the sizes were."""
    rng = np.random.default_rng(0)
    shim.library.ec_trim()

    def run(length: int) -> int:
        handles = [shim.empty((1, length, width)) for width in (384, 384, 1536, 3, 1)]
        used = shim.live()[1]
        shim.delete(*handles)
        return used

    start = shim.live()[1]
    peak = 4 << 20
    for n in rng.integers(1, 513, 4000):
        peak = max(peak, run(int(n)))
        assert shim.library.ec_cached_bytes() <= peak
    assert shim.live()[1] == start
    shim.library.ec_trim()
    assert shim.library.ec_cached_bytes() == 0


@pytest.mark.skipif(bool(sanitizer_flags()), reason="a sanitizer has an allocator of its own")
def test_trimmed_memory_goes_back_to_the_system(shim):
    """Also from the middle of malloc's heap, which has large blocks, too, once one was freed."""

    def resident() -> int:
        # Exact, unlike statm, where each CPU may keep back what it counted last.
        found = re.search(r"Rss: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text())
        assert found is not None
        return int(found[1]) << 10

    shim.delete(shim.empty((4 << 20,)))
    shim.library.ec_trim()
    handles = [shim.empty((1 << 18,)) for _ in range(17)]
    for handle in handles:
        ctypes.memset(shim.data(handle), 1, 1 << 20)
    before, last = resident(), handles.pop()
    shim.delete(*handles)
    shim.library.ec_trim()
    given = before - resident()
    shim.delete(last)
    assert given > 15 << 20


def test_freed_buffers_are_used_again(shim):
    first = shim.empty((1000,))
    address = shim.data(first)
    shim.delete(first)
    second = shim.empty((1000,))
    assert shim.data(second) == address
    shim.delete(second)


def test_threads_share_the_allocator(shim):
    """Handles made on one thread and freed on another, with contents checked on the way."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 20000, 400)
    made: list[tuple[Handle, int]] = []
    lock = threading.Lock()
    wrong: list[int] = []

    def work(part: np.ndarray) -> None:
        for n in part:
            handle = shim.empty((int(n),), dtype=DTYPES["int64"])
            shim.call("cpu_fill__Scalar", handle, ctypes.c_double(n))
            with lock:
                made.append((handle, int(n)))
                handle, value = made.pop(len(made) // 2)
            if not (shim.array(handle) == value).all():
                wrong.append(value)
            shim.delete(handle)

    threads = [threading.Thread(target=work, args=(lengths[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not made
