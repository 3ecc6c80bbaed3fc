"""simd.h: lane operations against numpy, and partial loads and stores at the edge of a page."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from tests.native.conftest import Build
from tests.native.kernels.vecmath_check import Harness

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (Path(__file__).parent / "vecmath_harness.cpp", "math/vecmath_exports.cpp")


@pytest.fixture(scope="session")
def library(build_native: Build, march: str) -> Path:
    return build_native("vecmath", SOURCES, march=march)


@pytest.fixture(scope="session")
def harness(library: Path) -> Harness:
    return Harness(library)


def operands(lanes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((2, 16)) * 10).astype(np.float32)[:, :lanes].copy()


@pytest.mark.parametrize("seed", range(5))
def test_operations(harness: Harness, seed: int) -> None:
    for lanes in harness.float_lanes:
        a, b = operands(lanes, seed)
        run = lambda kind, a=a, b=b, lanes=lanes: harness.lanes(lanes, kind, a, b)  # noqa: E731
        np.testing.assert_allclose(run(2), np.full(lanes, a.astype(np.float64).sum()), rtol=1e-5)
        expected = {
            3: np.full(lanes, a.max()),
            4: np.minimum(a, b),
            5: np.maximum(a, b),
            6: np.copysign(a, b),
            7: np.trunc(a),
            10: np.roll(a, lanes // 2),
            11: np.where(a > b, a, b),
            12: np.arange(lanes),
            14: np.abs(a),
        }
        for kind, want in expected.items():
            np.testing.assert_array_equal(run(kind), want.astype(np.float32), f"kind {kind}")
        np.testing.assert_allclose(run(13), a * b + a, rtol=1e-4, atol=1e-5)


def test_any_and_all_look_at_every_lane(harness: Harness) -> None:
    for lanes in harness.float_lanes:
        zeros = np.zeros(lanes, np.float32)
        assert not harness.lanes(lanes, 8, zeros, zeros).any()
        assert harness.lanes(lanes, 9, zeros + 1, zeros).all()
        for i in range(lanes):
            a = zeros.copy()
            a[i] = 1
            assert harness.lanes(lanes, 8, a, zeros).all()  # any(a > 0)
            assert not harness.lanes(lanes, 9, 1 - a, zeros).any()  # all(1 - a > 0)


def test_min_and_max_give_the_second_operand_for_nan(harness: Harness) -> None:
    for lanes in harness.float_lanes:
        nan, one = np.full(lanes, np.nan, np.float32), np.ones(lanes, np.float32)
        for kind in (4, 5):
            assert np.isnan(harness.lanes(lanes, kind, one, nan)).all()
            assert (harness.lanes(lanes, kind, nan, one) == 1).all()


@pytest.mark.parametrize("x", [0.0, -0.0, 1.5, float("inf"), float("nan"), 1e-45])
def test_broadcast_keeps_every_value(harness: Harness, x: float) -> None:
    got = harness.broadcast(x)
    want = np.float32(x)
    assert np.signbit(got) == np.signbit(want)
    assert got == want or (np.isnan(got) and np.isnan(want))


def test_partial_loads_fill_and_partial_stores_leave_the_rest(harness: Harness) -> None:
    for lanes in harness.float_lanes:
        a, b = operands(lanes)
        for n in range(lanes + 3):
            count = min(n, lanes)
            loaded = harness.lanes(lanes, 1, a, b, n)
            np.testing.assert_array_equal(
                loaded, np.append(a[:count], np.full(lanes - count, -7.0))
            )
            stored = harness.lanes(lanes, 0, a, b, n)
            np.testing.assert_array_equal(
                stored, np.append(a[:count], np.full(lanes - count, 123.0)).astype(np.float32)
            )


# Arrays that end where memory ends: a page without access follows. Run in a process of its own, as
# reading past the end kills it.
EDGE = """
    import ctypes, mmap, sys
    import numpy as np
    from tests.native.kernels.vecmath_check import FUNCTIONS, Harness
    from pathlib import Path

    harness = Harness(Path(sys.argv[1]))
    libc = ctypes.CDLL(None, use_errno=True)
    page = mmap.PAGESIZE
    ends = []
    keep = []
    for _ in range(3):
        memory = mmap.mmap(-1, 2 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert libc.mprotect(ctypes.c_void_p(start + page), page, 0) == 0
        keep.append(memory)
        ends.append(start + page)
    if sys.argv[2] == "outside":
        harness.run_at("exp", 4, ends[0] - 4, None, ends[1] - 16, 4)
        sys.exit("read past the end of memory without a fault: the guard page guards nothing")
    for function in FUNCTIONS:
        for lanes in harness.float_lanes:
            for n in range(1, 2 * lanes + 1):
                a, b, out = (end - 4 * n for end in ends)
                ctypes.memset(a, 0, 4 * n)
                ctypes.memset(b, 0, 4 * n)
                harness.run_at(function.name, lanes, a, b, out, n)
"""


def run_at_edge(library: Path, mode: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(EDGE), str(library), mode],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_partial_vectors_touch_nothing_outside(library: Path) -> None:
    done = run_at_edge(library, "inside")
    assert done.returncode == 0, done.stderr


def test_the_guard_page_catches_what_lies_outside(library: Path) -> None:
    assert run_at_edge(library, "outside").returncode == -11
