"""A wheel's libraries of the native runtime stand in for a compiler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edgecompile.errors import ToolchainError
from edgecompile.hosts.detection import check_target, probe_features
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.pipeline.preflight import begin_plan
from edgecompile.pipeline.request import BuildRequest
from edgecompile.pipeline.run import Run
from edgecompile.planning.request import PlanRequest
from edgecompile.progress import NULL_PROGRESS
from edgecompile.targets.profile import load_target, load_variant
from edgecompile.toolchain import prebuilt
from edgecompile.toolchain.compilers import find_toolchain
from edgecompile.toolchain.native import (
    build_probe,
    c_runtime_sources,
    probe_library,
    runtime_library,
)
from tests.needs import need


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A host without compilers, and the folder of its wheel's libraries, which holds the CPU probe."""
    need("g++", "g++")
    library = probe_library("x86-64")
    folder = tmp_path / "_prebuilt"
    library.compile(folder / f"{library.name}-{library.key}")
    monkeypatch.setattr(prebuilt, "prebuilt_folder", lambda: folder)
    monkeypatch.setenv("PATH", str(tmp_path))
    find_toolchain.cache_clear()
    yield folder
    find_toolchain.cache_clear()


def test_no_compiler_is_needed(host: Path, tmp_path: Path) -> None:
    probe = build_probe("x86-64", tmp_path / "out")
    assert probe == tmp_path / "out" / "libecprobe.so"
    assert "sse2" in probe_features(probe)
    check = check_target(load_target("cpu-x86-64-v2"))
    assert check.runs_here == ("x86-64-v2",)
    assert [problem.message for problem in check.problems] == [
        "no g++, objcopy, nm for x86-64 on this machine"
    ]


def test_other_sources_or_flags_are_compiled(host: Path, tmp_path: Path) -> None:
    library = probe_library("x86-64")
    (part,) = library.parts
    for other in (
        replace(library, parts=(replace(part, flags=(*part.flags, "-O2")),)),
        replace(library, parts=(part, part)),
        replace(library, parts=(replace(part, folders=(c_runtime_sources(),)),)),
        runtime_library(load_variant("x86-64-v2")),
    ):
        with pytest.raises(ToolchainError, match=r"no g\+\+"):
            other.build(tmp_path / "out")


def test_a_compiler_that_is_named_is_used(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGECOMPILE_CXX", "/nonexistent/g++")
    with pytest.raises(ToolchainError, match="/nonexistent/g"):
        build_probe("x86-64", tmp_path / "out")


def test_only_a_plan_that_measures_needs_a_compiler(host: Path, tiny_model: Path) -> None:
    profile = load_target("cpu-x86-64-v2")

    def begin(**options: object) -> None:
        plan = PlanRequest(LengthDistribution.from_samples([3, 9]), max_length=32, **options)
        begin_plan(Run(BuildRequest(str(tiny_model), profile.name, plan), profile, NULL_PROGRESS))

    begin(quick=True)
    with pytest.raises(ToolchainError, match=r"no g\+\+") as caught:
        begin()
    assert caught.value.hint is not None and "apt-get install g++ binutils" in caught.value.hint
