"""Tools and environments that tests need: made when the first test asks, if scripts/test started them.

Elsewhere a test whose need is missing is skipped; in CI it fails.
"""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import pytest

ENVIRONMENT = Path(__file__).resolve().parents[1] / "scripts" / "environment"
#: scripts/test sets it: what is missing may be installed.
PROVIDE = "EDGECOMPILE_PROVIDE"


def in_ci() -> bool:
    """Whether everything has to run."""
    return os.environ.get("CI", "").lower() in ("1", "true")


def lack(what: str) -> NoReturn:
    """Skips the test; in CI (CI=true), where all of it has to run, fails it."""
    if in_ci():
        pytest.fail(f"{what}; in CI that is no reason to skip")
    pytest.skip(what)


@functools.cache
def provide(*what: str) -> str:
    """Asks scripts/environment for it, once in a process; what it prints, empty if it failed."""
    if not os.environ.get(PROVIDE):
        return ""
    done = subprocess.run([str(ENVIRONMENT), *what], stdout=subprocess.PIPE, text=True, check=False)
    return (done.stdout.strip() or "done") if done.returncode == 0 else ""


def need(tool: str, package: str) -> str:
    """The path of a program; ``package`` is Debian's that has it."""
    path = shutil.which(tool)
    if path is None and provide("packages", package):
        path = shutil.which(tool)
    if path is None:
        lack(f"{tool} isn't installed (Debian's package {package})")
    return path


def need_network() -> None:
    """That the mirror of this machine's apt answers."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    if not listed:
        lack("apt knows no package source (apt-get update)")
    site = urlsplit(listed[0])
    try:
        port = site.port or (443 if site.scheme == "https" else 80)
        socket.create_connection((site.hostname or "", port), timeout=20).close()
    except OSError as error:
        lack(f"the mirror of this machine's apt can't be reached ({error})")


def need_variable(variable: str) -> str:
    """The value of an environment variable that names what scripts/environment makes."""
    value = os.environ.get(variable) or provide(variable)
    if not value:
        lack(f"{variable} isn't set to what scripts/environment {variable} prints")
    os.environ[variable] = value
    return value


def need_baseline(module: str) -> Any:
    """A package of those that bundles are measured against (benchmarks/requirements.txt), imported."""
    if importlib.util.find_spec(module) is None and provide("baselines"):
        importlib.invalidate_caches()
    try:
        return importlib.import_module(module)
    except ImportError:
        lack(f"{module} isn't installed (pip install -r benchmarks/requirements.txt)")


def need_triton() -> Path:
    """Triton's ptxas; scripts/test installs both with the rest of the environment."""
    from edgecompile.backends.cuda.requirements import find_ptxas
    from edgecompile.errors import MissingDependencyError
    from edgecompile.toolchain.torch_versions import check_triton

    try:
        check_triton()
    except MissingDependencyError as error:
        lack(error.message)
    return find_ptxas()


def need_aarch64_compiler() -> str:
    """The cross compiler for aarch64."""
    need("aarch64-linux-gnu-objcopy", "binutils-aarch64-linux-gnu")
    return need("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")
