"""native/cuda/run.cpp: where the memory of a run lies."""

from __future__ import annotations

import ctypes
import itertools
import platform
from pathlib import Path

import numpy as np
import pytest

from edgecompile.runtime.cpu.host import architecture

HARNESS = Path(__file__).with_name("places_harness.cpp")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    native = pytest.importorskip("edgecompile.toolchain.gpu_native")
    from edgecompile.toolchain.compilers import find_toolchain, link_shared
    from edgecompile.toolchain.native import BASELINE_MARCH, compile_native

    arch = architecture(platform.machine())
    toolchain = find_toolchain(arch)
    flags = (f"-march={BASELINE_MARCH[arch]}", "-O2")
    objects = compile_native(toolchain, [*native.gpu_runtime_sources(), HARNESS], flags)
    path = tmp_path_factory.mktemp("places") / "libplaces.so"
    link_shared(toolchain, [o.path for o in objects], path, exports=["ec_*"], soname=path.name)
    library = ctypes.CDLL(str(path))
    library.ec_test_place.restype = ctypes.c_int64
    return library


def place(
    library: ctypes.CDLL, sizes: np.ndarray, freed: np.ndarray, outputs: np.ndarray
) -> tuple[int, np.ndarray]:
    offsets = np.zeros(len(sizes), np.int64)
    arrays = (sizes, freed, outputs, offsets)
    total = library.ec_test_place(
        ctypes.c_int64(len(sizes)), *(x.ctypes.data_as(ctypes.c_void_p) for x in arrays)
    )
    return int(total), offsets


def test_what_lives_at_once_lies_apart(library: ctypes.CDLL) -> None:
    random = np.random.default_rng(0)
    for count in (0, 1, 2, 5, 40, 200):
        for _ in range(20):
            sizes = random.integers(0, 1 << int(random.integers(1, 22)), count)
            starts = np.arange(count)
            freed = starts + 1 + random.integers(0, int(random.integers(1, 12)), count)
            outputs = np.where(random.random(count) < 0.1, 0, -1).astype(np.int32)
            total, offsets = place(library, sizes, freed, outputs)
            rooms = -(-np.maximum(sizes, 1) // 256) * 256
            kept = np.flatnonzero(outputs < 0)
            assert (offsets[kept] % 256 == 0).all()
            assert total == max([0, *(offsets[kept] + rooms[kept])])
            peak = 0
            for moment in range(count):
                alive = [i for i in kept if starts[i] <= moment < freed[i]]
                spans = sorted((offsets[i], offsets[i] + rooms[i]) for i in alive)
                assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
                peak = max(peak, sum(end - first for first, end in spans))
            assert peak <= total <= 1.6 * peak


def test_places_are_used_again(library: ctypes.CDLL) -> None:
    # A chain: each is freed once the next one exists, so two places serve.
    count = 50
    sizes = np.full(count, 1000, np.int64)
    total, offsets = place(library, sizes, np.arange(count) + 2, np.full(count, -1, np.int32))
    assert total == 2048 and set(offsets) == {0, 1024}
