"""What a test can't do without: where it is missing the test is skipped, but in CI it fails."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def lack(what: str) -> NoReturn:
    """Skips the test; in CI (CI=true), where all of it has to run, fails it."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"{what}; in CI that is no reason to skip")
    pytest.skip(what)


def need(tool: str, package: str) -> str:
    """The path of a program; ``package`` is Debian's that has it."""
    path = shutil.which(tool)
    if path is None:
        lack(f"{tool} isn't installed (Debian's package {package})")
    return path
