"""The objects of the native runtime."""

from __future__ import annotations

import pytest

from edgecompile.targets.profile import load_variant
from edgecompile.toolchain.compilers import find_toolchain
from edgecompile.toolchain.native import compile_native, runtime_sources

pytestmark = pytest.mark.slow


def test_no_source_fills_the_library() -> None:
    """Each instance of a template is small, and unrolled loops in 36 of them once made 0.9 MB."""
    variant = load_variant("x86-64-v4")
    sources = runtime_sources()
    flags = [f"-march={variant.march}", *variant.extra_flags]
    objects = compile_native(find_toolchain(variant.arch), sources.values(), flags)
    sizes = {name: item.path.stat().st_size for name, item in zip(sources, objects, strict=True)}
    assert {name: size for name, size in sizes.items() if size > 300_000} == {}
