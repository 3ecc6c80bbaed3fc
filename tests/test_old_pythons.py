"""The runtime's Python half with the Pythons and the numpy that devices have, oldest and newest.

$EDGECOMPILE_OLD_PYTHONS is the file that scripts/old-pythons printed.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.needs import lack

REPOSITORY = Path(__file__).resolve().parents[1]
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
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, cwd=bundle, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def interpreters() -> list[Interpreter]:
    """Those of the file; none if the variable isn't set."""
    path = os.environ.get(VARIABLE)
    lines = Path(path).read_text(encoding="utf-8").splitlines() if path else []
    return [Interpreter(*line.split("\t")) for line in lines]


FOUND = interpreters()


def test_old_and_new_ones_are_there() -> None:
    """Else the tests below would pass by running nothing."""
    if not os.environ.get(VARIABLE):
        lack(f"{VARIABLE} isn't set to what scripts/old-pythons DIR prints")
    assert FOUND
    series = {item.numpy.split(".")[0] for item in FOUND}
    assert series == {"1", "2"}


def name(python: Interpreter) -> str:
    return f"{python.version}-numpy{python.numpy}"


@pytest.mark.parametrize("python", FOUND, ids=name)
def test_the_self_test_passes(python: Interpreter, tiny_bundle: Path) -> None:
    # What warns today is an error with some later Python or numpy.
    strict = ("-W", "error")
    report = json.loads(python.run(tiny_bundle, "selftest", "--json", options=strict))
    assert report["ok"] and len(report["cases"]) == 9
    info = json.loads(python.run(tiny_bundle, "info", "--host", "--json", options=strict))
    assert info["chosen"] == report["variant"]
    versions = info["host"]["versions"]
    assert versions["python"].startswith(python.version + ".")
    assert versions["numpy"] == python.numpy


@pytest.mark.parametrize("python", [*FOUND[:1], *FOUND[-1:]], ids=name)
def test_the_oldest_and_the_newest_measure(python: Interpreter, tiny_bundle: Path) -> None:
    arguments = ("--seconds", "0.1", "--cold-runs", "1", "--json")
    report = json.loads(python.run(tiny_bundle, "bench", *arguments))
    assert report["lengths"]


@pytest.mark.parametrize("python", [*FOUND[:1], *FOUND[-1:]], ids=name)
def test_the_oldest_and_the_newest_run_the_example(python: Interpreter, tiny_bundle: Path) -> None:
    program = REPOSITORY / "examples" / "serve.py"
    assert "--connections" in python.run(tiny_bundle, str(program), "--help")
