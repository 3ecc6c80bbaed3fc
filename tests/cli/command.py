"""Runs the command line, in this process or in one of its own, and what it is given."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from click.testing import CliRunner, Result

from edgecompile.cli import cli

COSTS = "length,exact_ms,pad_ms\n2,2.2,1.8\n16,3.3,2.8\n64,7,6.3\n256,26.6,24.9\n"
LENGTHS = "".join(f"{2 + 7 * i % 120}\n" for i in range(200))


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, input=stdin)


def python(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
