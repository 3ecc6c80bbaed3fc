"""NVIDIA's assembler on a host that compiles for GPUs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from edgecompile.errors import CompileError, ToolchainError
from edgecompile.toolchain.torch_versions import needed_triton

#: Packages with a ptxas, by the release of CUDA; "" is the one that Triton brings.
_PACKAGES = {
    "": ("triton", ""),
    "12.6": ("nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvcc-cu12==12.6.85"),
}


@cache
def find_ptxas(release: str = "") -> Path:
    """The assembler of a release of CUDA; of "" the one that Triton brings.

    Raises:
        ToolchainError: it isn't installed, or there is none of that release.
    """
    if release not in _PACKAGES:
        raise ToolchainError(
            f"no ptxas of CUDA {release} is known",
            hint="known are " + ", ".join(name for name in _PACKAGES if name),
        )
    package, requirement = _PACKAGES[release]
    try:
        candidates = [file for file in files(package) or () if file.name == "ptxas"]
    except PackageNotFoundError:
        candidates = []
    paths = [Path(str(file.locate())) for file in candidates]
    for path in paths:
        if os.access(path, os.X_OK):
            return path
    raise ToolchainError(
        f"there is no ptxas{' of CUDA ' + release if release else ''} here",
        hint=f"pip install --no-deps {requirement or f'triton=={needed_triton()}'}",
    )


@cache
def ptxas_version(path: Path) -> str:
    """The full version of an assembler, such as V12.8.93."""
    text = run_assembler([str(path), "--version"])
    match = re.search(r"\bV\d+\.\d+\.\d+", text)
    if match is None:
        raise ToolchainError(f"{path} doesn't say its version")
    return match[0]


def run_assembler(command: Sequence[str], what: str = "") -> str:
    """Runs a command and returns its output; raises CompileError where it fails, naming the kernel that it was for."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolchainError(f"{command[0]} can't be run: {error}") from error
    if done.returncode:
        raise CompileError(
            f"ptxas refuses the kernel {what}:\n" + "\n".join(done.stderr.splitlines()[:8]),
            hint="this is a defect of Triton's code generator; please report the model",
        )
    return done.stdout + done.stderr
