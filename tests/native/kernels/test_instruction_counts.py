"""Instructions that kernels take, counted by callgrind: a guard that no busy machine can upset.

The bounds lie about a quarter over what the kernels took with g++ 12 when they were set. What they
are to catch is of another size: scalar code takes eight times as many.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.native.conftest import HERE, KERNEL_SOURCES, Build
from tests.needs import need

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.uname().machine != "x86_64", reason="the bounds are of x86-64's instructions"
    ),
]

# Valgrind knows nothing newer than AVX2, and hides what the CPU has beyond it.
MARCH = "x86-64-v3"
LANES = 8


@pytest.fixture(scope="module")
def program(build_native: Build) -> Path:
    sources = [*KERNEL_SOURCES, HERE / "kernels" / "count_kernels.cpp"]
    return build_native("count_kernels", sources, march=MARCH, shared=False)


def count(program: Path, *arguments: object) -> int:
    """Instructions below ``counted``."""
    valgrind = need("valgrind", "valgrind")
    command = [valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command += ["--toggle-collect=counted", str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found is not None, done.stderr
    return int(found.group(1))


@pytest.mark.parametrize(
    ("kind", "m", "n", "k", "bound"),
    [
        ("gemm", 48, 384, 384, 2.3),
        ("gemm", 48, 384, 1536, 2.3),
        ("gemm", 7, 1536, 384, 3.7),
        ("gemm", 1, 384, 384, 3.5),
        ("bf16", 48, 384, 384, 3.2),
        ("int8", 48, 384, 384, 2.2),
        ("int4", 48, 384, 384, 1.6),
    ],
)
def test_a_product_takes_few_instructions(
    program: Path, kind: str, m: int, n: int, k: int, bound: float
) -> None:
    """Per multiply-add of a whole vector: 1 would be nothing but multiply-adds."""
    instructions = count(program, kind, m, n, k)
    assert instructions / (m * n * k / LANES) < bound


@pytest.mark.parametrize(("length", "bound"), [(16, 7.8), (64, 4.4)])
def test_attention_takes_few_instructions(program: Path, length: int, bound: float) -> None:
    """Per multiply-add of a whole vector in its two products; the softmax comes on top."""
    heads, dim = 12, 32
    instructions = count(program, "attention", length, heads, dim)
    assert instructions / (2 * heads * length * length * dim / LANES) < bound


def test_scalar_code_would_be_noticed(build_native: Build) -> None:
    """The same kernels with vectors of four lanes and no multiply-add, as a lesser variant has."""
    sources = [*KERNEL_SOURCES, HERE / "kernels" / "count_kernels.cpp"]
    lesser = build_native("count_kernels", sources, march="x86-64-v2", shared=False)
    instructions = count(lesser, "gemm", 48, 384, 384)
    assert instructions / (48 * 384 * 384 / LANES) > 1.25 * 2.3


def test_the_count_is_exact(program: Path) -> None:
    """It is what the kernel does, and nothing of how the program starts or what else runs."""
    once, again = (count(program, "gemm", 5, 64, 40) for _ in range(2))
    assert once == again
    assert 5 * 64 * 40 / LANES < once < 10_000
