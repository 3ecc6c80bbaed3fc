"""The workflow of CI: it runs every part of .ci/run, and every test once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from edgecompile.toolchain.compilers import cache_directory

yaml = pytest.importorskip("yaml")

REPOSITORY = Path(__file__).resolve().parents[2]
WORKFLOWS = REPOSITORY / ".github" / "workflows"
WORKFLOW, NIGHTLY = (
    yaml.safe_load((WORKFLOWS / name).read_text()) for name in ("ci.yml", "nightly.yml")
)


def commands(job: dict[str, Any]) -> list[list[str]]:
    """The words of each command that a job runs, one for each of its matrix' entries."""
    found = []
    for entry in job.get("strategy", {}).get("matrix", {}).get("include", [{}]):
        for step in job["steps"]:
            text = step.get("run", "")
            for name in re.findall(r"\$\{\{ matrix\.(\w+) \}\}", text):
                text = text.replace("${{ matrix." + name + " }}", entry[name])
            # A cross compiler is all that a job may install.
            found += [text.split()] if text and not text.startswith("sudo apt-get ") else []
    return found


COMMANDS = [words for job in WORKFLOW["jobs"].values() for words in commands(job)]
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]


def test_it_runs_every_part() -> None:
    assert {words[0] for words in COMMANDS} == {".ci/run"}
    cases = (REPOSITORY / ".ci" / "run").read_text()
    parts = set(re.findall(r"^  (\w+)\)", cases, re.MULTILINE)) - {"all"}
    assert parts >= {"check", "test"}
    assert {words[1] for words in COMMANDS} == parts


def test_each_night_runs_what_all_leaves_out() -> None:
    assert [".ci/run", "test", "--exhaustive"] in commands(NIGHTLY["jobs"]["exhaustive"])


def test_it_runs_every_test_once() -> None:
    """With ``--all``; what runs elsewhere too, on another architecture, has no such option."""
    tested = [words[2:] for words in COMMANDS if words[1] == "test" and "--all" in words]
    ran: list[str] = []
    # What pytest collects: files of tests, and folders that hold some.
    every = {
        f"tests/{path.relative_to(REPOSITORY / 'tests').parts[0]}"
        for path in (REPOSITORY / "tests").rglob("test_*.py")
    }
    for words in tested:
        named = {word for word in words if word.startswith("tests/")}
        ignored = {word.removeprefix("--ignore=") for word in words if "--ignore=" in word}
        assert named | ignored <= every
        ran += sorted((named or every) - ignored)
    assert sorted(ran) == sorted(every)


def test_what_it_caches_is_what_the_toolchain_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    (kept,) = {step["with"]["path"] for step in STEPS if "/cache@" in step.get("uses", "")}
    for variable in ("EDGECOMPILE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert Path(kept).expanduser() == cache_directory() / "objects"
    for step in STEPS:
        name = step.get("with", {}).get("cache-dependency-path", "tests/constraints.txt")
        assert (REPOSITORY / name).is_file()


def test_actions_are_named_by_commits_and_get_no_rights_to_write() -> None:
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert used and all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", name) for name in used)
    assert WORKFLOW["permissions"] == {"contents": "read"}
