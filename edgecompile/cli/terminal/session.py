"""One run of the command line: its output options, its streams, how it fails."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO

import click

from edgecompile.cli.terminal.failures import describe_failure, in_flags

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgecompile.cli.terminal.console import Console


class Session:
    """Click's ``obj``, which every command gets.

    Attributes:
        json: print the result as JSON.
        quiet: on stderr only warnings and errors.
        debug: tracebacks, and the warnings of the libraries below.
        stdout: the stream for data. While a command runs, ``sys.stdout`` is stderr, so that a
            model's factory that prints something can't spoil what a script reads.
    """

    def __init__(self) -> None:
        self.json = False
        self.quiet = False
        self.debug = False
        self.stdout: TextIO = sys.stdout
        self._emitted = False

    @cached_property
    def console(self) -> Console:
        """The console for people, on stderr; made at its first use because rich takes time to load."""
        from edgecompile.cli.terminal.console import Console

        return Console(quiet=self.quiet)

    @contextmanager
    def contained(self) -> Iterator[None]:
        """Gives ``sys.stdout`` and the warning filters back as they were."""
        self.stdout = sys.stdout
        try:
            with warnings.catch_warnings():
                yield
        finally:
            sys.stdout = self.stdout

    def enter_command(self) -> None:
        """Called once the command line has been understood, before the work begins."""
        sys.stdout = sys.stderr
        if not self.debug:
            # They concern the authors of torch and of the model; ours go through the console.
            warnings.simplefilter("ignore")
        from edgecompile.toolchain.compilers import cache_directory

        # torch makes this folder while it is imported, among the temporary files if it has no name.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_directory() / "inductor"))

    def emit(self, document: Mapping[str, Any], table: Callable[[], RenderableType]) -> None:
        """Prints a command's result on stdout: the document as JSON, or else its table.

        Args:
            document: plain JSON types only; NaN and infinities are refused.
            table: a function that makes the rich renderable; called only if it is wanted.
        """
        self._emitted = True
        try:
            if self.json:
                self.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
            else:
                from edgecompile.cli.terminal.tables import print_data

                print_data(table(), self.stdout)
            self.stdout.flush()
        except OSError as error:
            error.filename = error.filename or "standard output"
            raise

    def fail(self, exc: BaseException) -> int:
        """Tells the person what went wrong, and with --json the script. Returns the exit code.

        A command that has printed its result fails by its exit code: stdout holds one document.
        """
        if isinstance(exc, click.exceptions.NoArgsIsHelpError):
            exc.show()  # the help as it is: nobody did anything wrong
            return exc.exit_code
        failure = describe_failure(exc)
        if self.debug:
            traceback.print_exception(exc, file=sys.stderr)
            if details := getattr(exc, "details", ""):
                print(details, file=sys.stderr)
        if failure.message:
            with suppress(BrokenPipeError):
                self.console.failure(failure.message, failure.hint)
        try:
            if self.json and failure.message and not self._emitted:
                self.stdout.write(json.dumps(failure.to_json(exc), indent=2) + "\n")
            self.stdout.flush()
        except OSError:
            # stdout's reader has gone, or its disk is full: the interpreter's own flush at exit
            # would fail again and overrule the exit code.
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stdout.fileno())
        return failure.exit_code


def _store(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    assert param.name is not None
    setattr(ctx.ensure_object(Session), param.name, value)


#: Kept in the session, not passed on.
_OUTPUT_OPTIONS = [
    click.Option(names, is_flag=True, expose_value=False, callback=_store, help=text)
    for names, text in (
        (["--json"], 'Print the result on stdout as JSON; a failure as {"error": {…}}.'),
        (["--quiet", "-q"], "Print only warnings and errors on stderr."),
        (["--debug"], "Print the traceback of a failure; let the libraries below warn."),
    )
]


class Command(click.Command):
    """A command that keeps stdout for its data; its function gets the session first."""

    def __init__(self, *, callback: Any, params: list[click.Parameter], **more: Any) -> None:
        params = [*params, *_OUTPUT_OPTIONS]
        super().__init__(callback=click.pass_obj(callback), params=params, **more)

    def invoke(self, ctx: click.Context) -> Any:
        session = ctx.ensure_object(Session)
        session.enter_command()
        from edgecompile.errors import EdgecompileError, UsageError

        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            ctx.exit(session.fail(error))  # Click itself would end with 1, as for an error
        except EdgecompileError as error:
            root = ctx.find_root().command
            build = root.get_command(ctx, "build") if isinstance(root, click.Group) else None
            params = [*(build.params if build is not None else ()), *self.params]
            error.message = in_flags(error.message, params)
            cures = [in_flags(error.hint, params)] if error.hint else []
            if isinstance(error, UsageError):
                cures.append(f"see '{ctx.command_path} --help'")
            error.hint = "; ".join(cures) or None
            raise
