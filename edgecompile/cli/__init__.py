"""The command line: a thin skin over the library, one module per command, loaded when named.

``import edgecompile.cli`` brings in Click and nothing heavier; ``--help`` of every command stays
as cheap as that. stdout carries only data; messages for people go to stderr.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from types import FrameType
from typing import Any, NoReturn

import click

from edgecompile import __version__
from edgecompile.cli.terminal.session import Session
from edgecompile.runtime.base.installation import refuse_mixed_wheels

_SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("From a model to a bundle", ("build",)),
    ("The stages of a build", ("lengths", "plan", "export", "compile", "pack")),
    ("Why a model is refused or slow", ("explain",)),
    ("Check and measure a bundle", ("verify", "bench", "inspect", "drift")),
    ("Run a bundle here", ("selftest", "run", "encode", "generate", "chat", "report")),
    ("Servers", ("serve", "simulate", "image")),
    ("Signatures and materials", ("keygen", "sign", "verify-signature", "sbom")),
    ("Devices", ("targets",)),
)
COMMANDS: tuple[str, ...] = tuple(name for _, names in _SECTIONS for name in names)
#: The device's runtime has them; cli/device.py hands them over.
DEVICE_COMMANDS = ("selftest", "run", "encode", "generate", "chat", "report")
#: Commands that are in a folder of their own.
_FOLDERS = {
    "image": "server",
    "serve": "server",
    "simulate": "server",
    "keygen": "signing",
    "sbom": "signing",
    "sign": "signing",
    "verify-signature": "signing",
}
#: It has these too, for the device itself.
_ON_DEVICE = ("finish", "info", "transcribe", "tune")
_OF_STORES = ("install", "start", "confirm", "rollback", "status", "gc", "cohort")

_HELP = """Compile a PyTorch model ahead of time for the sequence lengths that its traffic really has.

The result is one folder, NAME.ecb, that a device runs with Python and numpy alone:

\b
  edgecompile build ./my-encoder --target cpu-x86-64 --lengths lengths.txt
  python3 my-encoder.ecb selftest       (on the device)
"""

_EPILOG = """\b
Completion (put the line into your shell's start-up file):
  bash   eval "$(_EDGECOMPILE_COMPLETE=bash_source edgecompile)"
  zsh    eval "$(_EDGECOMPILE_COMPLETE=zsh_source edgecompile)"
  fish   _EDGECOMPILE_COMPLETE=fish_source edgecompile | source

\b
Exit codes:
  0 done   2 wrong usage   30-53 build or server   10-29, 60-80 bundle or device
  70 a bug in edgecompile   74 input/output error   130 interrupted
"""


class LazyGroup(click.Group):
    """A group whose commands live in modules of the same name, imported when they are named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in DEVICE_COMMANDS:
            command = importlib.import_module("edgecompile.cli.device").make_command(cmd_name)
        else:
            parts = ("edgecompile.cli", _FOLDERS.get(cmd_name), cmd_name.replace("-", "_"))
            command = importlib.import_module(".".join(filter(None, parts))).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = get_close_matches(args[0], COMMANDS, n=1)
            cure = f"Did you mean '{close[0]}'?" if close else "Commands: " + ", ".join(COMMANDS)
            if args[0] in _ON_DEVICE:
                cure = f"The device has it: python3 BUNDLE {args[0]}"
            if args[0] in _OF_STORES:
                cure = f"The device has it: python -m edgecompile.runtime {args[0]}"
            raise click.UsageError(f"No such command '{args[0]}'. {cure}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, names in _SECTIONS:
            rows = []
            for name in names:
                command = self.get_command(ctx, name)
                assert command is not None
                rows.append((name.ljust(width), command.get_short_help_str(formatter.width)))
            with formatter.section(title):
                formatter.write_dl(rows)

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        """Runs a command; every failure ends as a message on stderr and an exit code of its own."""
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **extra)
        session = extra.setdefault("obj", Session())
        # Until the options are read: a failure to read them takes the form that was asked for.
        session.json = "--json" in (sys.argv[1:] if args is None else args)
        code: object = 0
        try:
            with session.contained():
                refuse_mixed_wheels()
                # None, or the code of ctx.exit(): no command of ours returns a value
                code = super().main(args, standalone_mode=False, **extra)
            session.stdout.flush()
        except (Exception, KeyboardInterrupt) as exc:
            code = session.fail(exc)
        sys.exit(code if isinstance(code, int) else 0)


@click.group(
    cls=LazyGroup,
    help=_HELP,
    epilog=_EPILOG,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(__version__, "--version", "-V", message="%(prog)s %(version)s")
def cli() -> None:
    """See ``_HELP``."""


def main() -> NoReturn:
    """The console script's entry point; never returns."""

    def stop(signum: int, frame: FrameType | None) -> None:
        # SystemExit unwinds the stack, so that temporary files are removed as after Ctrl-C
        sys.exit(128 + signum)

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # A signal that the parent chose to ignore (nohup) stays ignored.
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, stop)
    # Read by tokenizers, which otherwise warns on stderr whenever a process forks after its use.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    cli.main(prog_name="edgecompile")
    raise AssertionError("unreachable")
