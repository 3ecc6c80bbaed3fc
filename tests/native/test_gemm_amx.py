"""Products on tiles, as built: hosts without AMX can't run them, but see what became of them."""

from __future__ import annotations

import platform

import pytest

from edgecompile.instructions import find_objdump, scan_instructions
from edgecompile.targets import load_variant
from tests.native.conftest import Build


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the native tests' compiler is another's"
)
def test_products_use_tiles_and_nothing_that_the_variant_lacks(build_native: Build) -> None:
    variant = load_variant("x86-64-amx")
    library = build_native("amx", ["gemm_bf16.cpp", "gemm_int8.cpp"], march=variant.name)
    objdump = find_objdump(variant.arch)
    assert objdump is not None
    evidence = scan_instructions(library, variant.arch, objdump)
    counts = {use.feature: use.count for use in evidence.uses}
    assert set(counts) <= set(variant.requires)
    assert {"amx_tile", "amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni"} <= set(counts)
    # Two tiles of rows, or one with two sums: four products each at least; int8 has the first only.
    assert counts["amx_bf16"] >= 8 and counts["amx_int8"] >= 4
    assert evidence.packed_operations(512) > 0
