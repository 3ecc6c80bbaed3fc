"""The runtime's Python half with the Pythons and the numpy that devices have, oldest and newest.

$EDGECOMPILE_OLD_PYTHONS is the file that scripts/pythons/old printed.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.needs import need_variable

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
VARIABLE = "EDGECOMPILE_OLD_PYTHONS"


class Interpreter(NamedTuple):
    """A Python with one version of numpy in a folder of its own."""

    version: str
    numpy: str
    path: str
    folder: str

    def run(self, bundle: Path, *arguments: str, options: tuple[str, ...] = ()) -> str:
        """Output of a command of the runtime that the bundle brings."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        environment["PYTHONPATH"] = self.folder
        command = [self.path, *options, "-s", str(bundle), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=bundle)
        assert done.returncode == 0, f"{self}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def pythons() -> list[Interpreter]:
    """Those that this machine has, oldest and newest numpy of both series."""
    lines = Path(need_variable(VARIABLE)).read_text(encoding="utf-8").splitlines()
    found = [Interpreter(*line.split("\t")) for line in lines]
    assert {item.numpy.split(".")[0] for item in found} == {"1", "2"}
    return found


def test_the_self_test_passes(pythons: list[Interpreter], tiny_bundle: Path) -> None:
    # What warns today is an error with some later Python or numpy.
    strict = ("-W", "error")
    for python in pythons:
        report = json.loads(python.run(tiny_bundle, "selftest", "--json", options=strict))
        assert report["ok"] and len(report["cases"]) == 18, python
        info = json.loads(python.run(tiny_bundle, "info", "--host", "--json", options=strict))
        assert info["chosen"] == report["variant"], python
        versions = info["host"]["versions"]
        assert versions["python"].startswith(python.version + "."), python
        assert versions["numpy"] == python.numpy, python


def test_the_oldest_and_the_newest_measure(pythons: list[Interpreter], tiny_bundle: Path) -> None:
    arguments = ("--seconds", "0.1", "--cold-runs", "1", "--json")
    for python in (pythons[0], pythons[-1]):
        report = json.loads(python.run(tiny_bundle, "bench", *arguments))
        assert report["lengths"], python


def test_the_oldest_and_the_newest_run_the_example(
    pythons: list[Interpreter], tiny_bundle: Path
) -> None:
    program = REPOSITORY / "examples" / "serve.py"
    for python in (pythons[0], pythons[-1]):
        assert "--host" in python.run(tiny_bundle, str(program), "--help"), python
