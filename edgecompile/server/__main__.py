"""``python -m edgecompile.server BUNDLE…``: serves bundles over HTTP."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence

from edgecompile import __version__
from edgecompile.runtime.base.errors import EdgecompileError
from edgecompile.runtime.base.installation import refuse_mixed_wheels
from edgecompile.server.process.arguments import add_options, read_arguments
from edgecompile.server.process.supervisor import Supervisor


def make_parser(
    prog: str = "python -m edgecompile.server",
    kind: type[argparse.ArgumentParser] = argparse.ArgumentParser,
) -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = kind(prog=prog, description="Serves bundles over HTTP until SIGTERM.")
    parser.add_argument("--version", action="version", version="edgecompile " + __version__)
    add_options(parser)
    text = "print one JSON object once the server is ready"
    parser.add_argument("--json", action="store_true", help=text)
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def main(
    arguments: Sequence[str] | None = None, parser: argparse.ArgumentParser | None = None
) -> int:
    """Serves; returns the exit code."""
    argv = sys.argv[1:] if arguments is None else list(arguments)
    options = (parser or make_parser()).parse_args(argv)
    logging.basicConfig(format="edgecompile: %(message)s", level=logging.INFO)
    try:
        refuse_mixed_wheels()
        settings = read_arguments(options)
        rest = [item for item in argv if item not in ("--json", "--debug")]
        return Supervisor(settings, rest, options.json).run()
    except EdgecompileError as error:
        if options.debug:
            raise
        if options.json:
            entry = {
                "code": error.exit_code,
                "class": type(error).__name__,
                "message": error.message,
                "hint": error.hint,
            }
            print(json.dumps({"error": entry}, indent=1), flush=True)
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
