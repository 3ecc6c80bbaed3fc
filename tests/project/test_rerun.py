"""scripts/test: a failed test has one more chance, --exhaustive runs what --all leaves out, --torch takes another torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENT = f"""
need_system_packages() {{ :; }}
make_venv() {{ echo "torch ${{torch:-}}"; }}
use_torch() {{ torch=$1; }}
fail() {{ echo "$1"; exit 1; }}
venv={sys.prefix}
"""
OPTIONS = """
def pytest_addoption(parser):
    parser.addoption("--all-variants", action="store_true")
"""
PASSES_LATER = """
import pathlib

def test_passes_later():
    mark = pathlib.Path(__file__).with_name("ran")
    ran = mark.exists()
    mark.touch()
    assert ran

def test_passes():
    pass
"""


def run(folder: Path, tests: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    for name in ("scripts", "tests"):
        (folder / name).mkdir()
    shutil.copy(REPOSITORY / "scripts" / "test", folder / "scripts")
    (folder / "scripts" / "environment").write_text(ENVIRONMENT)
    (folder / "tests" / "conftest.py").write_text(OPTIONS)
    (folder / "tests" / "test_some.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    command = ["scripts/test", *(arguments or ["--all"])]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_what_passes_alone_is_named_unstable(tmp_path: Path) -> None:
    done = run(tmp_path, PASSES_LATER)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last == "UNSTABLE: failed, then passed alone: tests/test_some.py::test_passes_later"


def test_what_fails_again_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, PASSES_LATER + "\ndef test_fails():\n    assert False\n")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-2:] == [
        "FAILED TWICE tests/test_some.py::test_fails",
        "UNSTABLE: failed, then passed alone: tests/test_some.py::test_passes_later",
    ]


def test_without_failures_it_runs_once(tmp_path: Path) -> None:
    done = run(tmp_path, "def test_passes():\n    pass\n")
    assert done.returncode == 0
    assert done.stdout.count("test session starts") == 1


MARKED = """
import pytest

@pytest.mark.exhaustive
def test_another_model():
    pass

def test_some():
    pass

def test_others():
    pass
"""


@pytest.mark.parametrize(
    ("arguments", "passed", "deselected"),
    [
        (["--all"], 2, 1),
        (["--all", "tests/"], 2, 1),  # a part of what CI runs
        (["tests/test_some.py", "--all"], 3, 0),
        (["--exhaustive", "tests/test_some.py"], 1, 2),
    ],
)
def test_each_runs_what_the_other_leaves_out_and_all_of_a_file(
    tmp_path: Path, arguments: list[str], passed: int, deselected: int
) -> None:
    done = run(tmp_path, MARKED, *arguments, "-n", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    ran = f"{passed} passed" + f", {deselected} deselected" * (deselected > 0)
    last = done.stdout.splitlines()[-1]
    assert ran in last and ("deselected" in last) == (deselected > 0)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--torch", "2.14", "tests/test_some.py", "-n", "0"], 0, "1 passed"),
        (["--torch", "2.14", "-n", "0"], 4, "not found: tests/toolchain"),
        (["--torch", "tests/test_some.py"], 1, "--torch takes a version"),
    ],
)
def test_another_torch_runs_builds_or_what_is_named(
    tmp_path: Path, arguments: list[str], code: int, says: str
) -> None:
    done = run(tmp_path, "def test_passes():\n    pass\n", *arguments)
    assert done.returncode == code and says in done.stdout + done.stderr
    assert code == 1 or "torch 2.14" in done.stdout
