"""The command line says how it is used."""

from __future__ import annotations

import os
import re

import pytest

from edgecompile import __version__
from edgecompile.cli import COMMANDS
from tests.cli.command import python, run

SUBCOMMANDS = [(name,) for name in COMMANDS] + [
    ("targets", "list"),
    ("targets", "show"),
    ("targets", "check"),
    ("targets", "detect"),
]


@pytest.mark.parametrize("command", [(), *SUBCOMMANDS], ids=" ".join)
def test_help_is_quick_and_has_examples(command: tuple[str, ...]) -> None:
    program = (
        "import sys; from edgecompile.cli import cli\n"
        f"try: cli.main([*{command!r}, '--help'], prog_name='edgecompile')\n"
        "except SystemExit as end: code = end.code\n"
        "heavy = {'torch', 'numpy', 'matplotlib', 'rich', 'transformers', 'onnx', 'jinja2'}\n"
        "print(sorted(heavy & set(sys.modules)), code, file=sys.stderr)"
    )
    process = python("-c", program)
    stdout, stderr = process.communicate()
    assert stderr.strip() == "[] 0"
    assert "Usage: edgecompile" in stdout
    if command and command[0] != "targets":
        assert re.search(r"Examples?:\n +edgecompile ", stdout)


def test_the_group_names_every_command_and_completion() -> None:
    result = run("-h")
    text = result.stdout
    assert result.exit_code == 0, result.stderr
    for name in COMMANDS:
        assert re.search(rf"^  {name} +[A-Z]", text, re.MULTILINE), name
    for shell in ("bash", "zsh", "fish"):
        assert f"_EDGECOMPILE_COMPLETE={shell}_source" in text


@pytest.mark.parametrize("command", [(), ("targets",)])
def test_a_group_alone_shows_its_help(command: tuple[str, ...]) -> None:
    result = run(*command)
    assert (result.exit_code, result.stdout) == (2, "")  # Click's convention
    assert result.stderr == run(*command, "--help").stdout


def test_completion_knows_commands_and_targets() -> None:
    environment = {
        **os.environ,
        "_EDGECOMPILE_COMPLETE": "bash_complete",
        "COMP_WORDS": "edgecompile build x --target cpu-",
        "COMP_CWORD": "4",
    }
    process = python("-m", "edgecompile", env=environment)
    stdout, _ = process.communicate()
    assert "plain,cpu-x86-64" in stdout.splitlines()


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout.split()[-1]) == (0, __version__)
