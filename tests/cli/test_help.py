"""The command line says how it is used."""

from __future__ import annotations

import os
import re

import pytest

from edgecompile import __version__
from edgecompile.cli import COMMANDS
from edgecompile.cli.options.groups import GROUPS
from edgecompile.runtime import __main__ as device
from tests.cli.command import python, run

SUBCOMMANDS = [(name,) for name in COMMANDS] + [
    ("targets", "list"),
    ("targets", "show"),
    ("targets", "check"),
    ("targets", "detect"),
]

(_CHOICES,) = [a.choices for a in device.make_parser()._actions if isinstance(a.choices, dict)]
#: Commands of the runtime that the build host lacks.
OF_THE_DEVICE = sorted({*_CHOICES} - {*COMMANDS, *device._HIDDEN})


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


@pytest.mark.parametrize("command", GROUPS)
def test_help_groups_the_options_and_begins_with_the_five_most_used(command: str) -> None:
    text = run(command, "--help").stdout
    groups = GROUPS[command]
    assert (groups[0][0], len(groups[0][1])) == ("Most used", 5)
    assert re.findall(r"^(\w[^:]*):$", text, re.MULTILINE)[: len(groups)] == [
        title for title, _ in groups
    ]
    printed = re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)
    # Each once; one that no group names would be printed behind them.
    assert printed == [flag for _, flags in groups for flag in flags]


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


@pytest.mark.parametrize("command", OF_THE_DEVICE)
def test_commands_of_the_device_are_found_from_the_host(command: str) -> None:
    result = run(command)
    assert result.exit_code == 2
    assert re.search(rf"The device has it: python.* {command}$", result.stderr, re.MULTILINE)


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
