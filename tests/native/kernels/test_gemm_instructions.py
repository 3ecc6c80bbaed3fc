"""Products on tiles and of pairs, as built: hosts without them can't run them, but see what became of them."""

from __future__ import annotations

import platform
from collections import Counter

import pytest

from edgecompile.audit.instructions import InstructionEvidence, find_objdump, scan_instructions
from edgecompile.targets.profile import load_variant
from edgecompile.toolchain.compilers import find_toolchain
from edgecompile.toolchain.native import compile_native
from tests.native.conftest import NATIVE, Build, march_flags
from tests.needs import need_aarch64_compiler

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        platform.machine() != "x86_64", reason="the native tests' compiler is another's"
    ),
]


def products(build_native: Build, march: str) -> tuple[dict[str, int], InstructionEvidence]:
    """How often products built for a variant use each feature, of which it has all, and what was seen."""
    variant = load_variant(march)
    library = build_native(
        march,
        [f"kernels/gemm/narrow/gemm_{kind}.cpp" for kind in ("bf16", "int8", "int4")],
        march=march,
    )
    objdump = find_objdump(variant.arch)
    assert objdump is not None
    evidence = scan_instructions(library, variant.arch, objdump)
    counts = {use.feature: use.count for use in evidence.uses}
    assert set(counts) <= set(variant.requires)
    return counts, evidence


def test_products_use_tiles_and_nothing_that_the_variant_lacks(build_native: Build) -> None:
    counts, evidence = products(build_native, "x86-64-amx")
    assert {"amx_tile", "amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni"} <= set(counts)
    # Two tiles of rows, or one with two sums: four products each at least.
    assert counts["amx_bf16"] >= 8
    # The first step's and the others': of both halves of int4 (with and without minimums) and of
    # int8, and of whole blocks.
    assert counts["amx_int8"] >= 2 * (2 + 2 + 2 + 1)
    assert evidence.packed_operations(512) > 0


def test_products_of_pairs_use_them_and_nothing_that_the_variant_lacks(build_native: Build) -> None:
    counts, _ = products(build_native, "x86-64-avx512bf16")
    # One product for each of up to 12 rows by two vectors, four steps unrolled, in the largest tile;
    # of int8 6 rows by two vectors, in whole blocks and in the last one.
    assert counts["avx512_bf16"] >= 96 and counts["avx512_vnni"] >= 24


def test_products_by_avx_vnni_use_it_and_nothing_that_the_variant_lacks(
    build_native: Build,
) -> None:
    counts, _ = products(build_native, "x86-64-avxvnni")
    # 6 rows by two vectors, in whole blocks and in the last one.
    assert counts["avx_vnni"] >= 24


def test_products_of_matrices_use_them_and_nothing_that_the_variant_lacks() -> None:
    need_aarch64_compiler()
    variant = load_variant("aarch64-i8mm")
    sources = [NATIVE / f"kernels/gemm/narrow/gemm_{kind}.cpp" for kind in ("bf16", "int8", "int4")]
    objects = compile_native(find_toolchain(variant.arch), sources, march_flags(variant.name))
    objdump = find_objdump(variant.arch)
    assert objdump is not None
    counts = Counter[str]()
    for item in objects:
        for use in scan_instructions(item.path, variant.arch, objdump).uses:
            counts[use.feature] += use.count
    # 64 inputs of 8 rows by 8 columns: of int8 with one scale and with two, of int4 with minimums and without.
    assert counts["i8mm"] >= 4 * 8 * 16 and counts["asimddp"] > 0
    # Four steps of 6 rows by four vectors in the largest tile.
    assert counts["bf16"] >= 4 * 6 * 4
    assert set(counts) <= set(variant.requires)
