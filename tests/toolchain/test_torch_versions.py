"""Which versions of torch and Triton are taken; other versions are described here, none is installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import edgecompile
from edgecompile.api.progress import listen
from edgecompile.cli import COMMANDS, cli
from edgecompile.cli.terminal.failures import describe_failure
from edgecompile.errors import MissingDependencyError, ModelError
from edgecompile.pipeline.preflight import begin_build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.pipeline.run import Run
from edgecompile.planning.request import PlanRequest
from edgecompile.toolchain import torch_versions
from edgecompile.toolchain.torch_versions import (
    UNTESTED,
    VERSIONS,
    check_torch,
    check_triton,
    note_untested,
    torch_version,
)
from tests.cli.command import run

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Describes what is installed: packages with their versions, and the requirements of torch."""
    monkeypatch.delenv(UNTESTED, raising=False)

    def describe(*requirements: str, **packages: str) -> None:
        def version(package: str) -> str:
            if package not in packages:
                raise PackageNotFoundError(package)
            return packages[package]

        monkeypatch.setattr(torch_versions, "version", version)
        monkeypatch.setattr(torch_versions, "requires", lambda package: list(requirements) or None)

    return describe


@pytest.mark.parametrize("torch", ["2.13.0", "2.13.0+cpu", "2.14.1", "2.15.0"])
def test_versions_of_the_table_are_taken(install: Install, torch: str) -> None:
    install(torch=torch)
    check_torch()
    assert torch.startswith(f"{torch_version().release}.")


@pytest.mark.parametrize(
    "torch", ["2.12.1", "1.13.0", "2.1.5", "2.16.0", "2.16.0a0+git4f", "3.0.0"]
)
def test_others_are_refused_by_name_or_tried(
    install: Install, monkeypatch: pytest.MonkeyPatch, torch: str
) -> None:
    install(torch=torch)
    with pytest.raises(MissingDependencyError) as caught:
        check_torch()
    assert f"torch {torch} is installed, and edgecompile knows torch 2.13 to 2.15" in str(
        caught.value
    )
    assert "'torch==2.14.*'" in (caught.value.hint or ""), "the newest that the tests ran with"
    monkeypatch.setenv(UNTESTED, "1")
    check_torch()
    assert torch_version() == (VERSIONS[0] if torch < "2.13" else VERSIONS[-1])
    assert f"haven't run with torch {torch}" in note_untested()


def test_without_torch_nothing_is_tried(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install()
    monkeypatch.setenv(UNTESTED, "1")
    with pytest.raises(MissingDependencyError, match="torch isn't installed"):
        check_torch()
    assert note_untested() == ""


def test_each_torch_has_its_triton(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    for torch, triton in (("2.13.0+cpu", "3.7.1"), ("2.14.1", "3.8.0")):
        install(torch=torch, triton=triton)
        check_triton()
    install(torch="2.14.1", triton="3.7.1")
    with pytest.raises(MissingDependencyError, match=r"torch 2\.14\.1, and 3\.7\.1 is") as caught:
        check_triton()
    assert caught.value.hint == "pip install --no-deps triton==3.8.0"
    monkeypatch.setenv(UNTESTED, "1")
    check_triton()
    install(torch="2.14.1")
    with pytest.raises(MissingDependencyError, match="none is installed"):
        check_triton()
    install(torch="2.16.0", triton="3.9.0")
    monkeypatch.delenv(UNTESTED)
    with pytest.raises(MissingDependencyError, match=r"torch 2\.16\.0"):
        check_triton()


def test_the_requirement_of_torch_itself_counts_over_the_table(install: Install) -> None:
    install('triton==3.8.2; platform_system == "Linux"', torch="2.14.2", triton="3.8.0")
    with pytest.raises(MissingDependencyError, match=r"needs triton 3\.8\.2"):
        check_triton()
    install("filelock", "triton==3.9.1", torch="2.15.0", triton="3.9.1")
    check_triton()


def test_nothing_is_looked_at_before_the_version(install: Install) -> None:
    install(torch="2.16.0")
    for act in (edgecompile.build, edgecompile.plan):
        with pytest.raises(MissingDependencyError, match=r"torch 2\.16\.0"):
            act("nowhere", lengths=[3])
    with pytest.raises(MissingDependencyError, match=r"torch 2\.16\.0"):
        edgecompile.explain("nowhere")


def test_commands_name_the_flag_and_take_it(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(torch="2.16.0")
    monkeypatch.setenv(UNTESTED, "")  # put back afterwards, as the flag sets it
    refused = run("explain", "nowhere")
    assert refused.exit_code == MissingDependencyError.exit_code
    assert "--untested-torch tries the one that is installed" in " ".join(refused.stderr.split())
    tried = run("explain", "nowhere", "--untested-torch")
    assert tried.exit_code == ModelError.exit_code, tried.stderr
    takers = {
        name
        for name in COMMANDS
        if any("--untested-torch" in p.opts for p in cli.get_command(None, name).params)
    }
    assert takers == {"build", "plan", "export", "compile", "pack", "explain", "verify", "bench"}


def test_a_build_notes_what_the_tests_lack(
    install: Install, tiny_model: Path, tmp_path: Path
) -> None:
    events: list[edgecompile.ProgressEvent] = []
    install(torch="2.15.0")
    request = BuildRequest(str(tiny_model), plan=PlanRequest(None), output=tmp_path / "made.ecb")
    with begin_build(Run(request, request.check_target(), listen(events.append))):
        pass
    notes = [event.text for event in events if event.kind == "note"]
    assert sum("tests haven't run with torch 2.15.0" in note for note in notes) == 1


def test_what_fails_unexpectedly_names_an_untested_version(install: Install) -> None:
    for torch, told in (("2.15.0", True), ("2.14.1", False)):
        install(torch=torch)
        hint = describe_failure(AttributeError("no attribute of Inductor")).hint or ""
        assert ("haven't run with torch 2.15.0" in hint) is told and "--debug" in hint
