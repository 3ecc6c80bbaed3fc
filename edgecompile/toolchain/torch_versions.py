"""Versions of torch that programs are built with, and the differences between them.

Everything that depends on the version is a field of :class:`TorchVersion`, so that the next version is one more
row of :data:`VERSIONS`. Reading it loads no framework.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

from edgecompile.errors import MissingDependencyError

#: Set to 1, it lets versions pass that the table lacks.
UNTESTED = "EDGECOMPILE_UNTESTED_TORCH"


@dataclass(frozen=True)
class TorchVersion:
    """A minor version of torch.

    Attributes:
        release: first two numbers of the version.
        triton: release of Triton that it goes with, where torch's own requirements name none (builds for CPUs).
        tested: whether the tests have run with it.
        tile_heuristics: module of Inductor that offers tiles for matmuls.
    """

    release: str
    triton: str
    tested: bool
    tile_heuristics: str


#: The oldest version first. Nobody has run 2.15 or read its sources: its row repeats that of 2.14, with the newest
#: Triton that there was.
VERSIONS = (
    TorchVersion("2.13", "3.7.1", True, "torch._inductor.template_heuristics.triton"),
    TorchVersion("2.14", "3.8.0", True, "torch._inductor.heuristics.template.triton"),
    TorchVersion("2.15", "3.9.0", False, "torch._inductor.heuristics.template.triton"),
)

_TESTED = tuple(row.release for row in VERSIONS if row.tested)
#: The cure where Inductor's code isn't laid out as expected.
USE_TESTED = f"this version of torch isn't supported; use torch {' or '.join(_TESTED)}"


def check_torch() -> None:
    """Refuses a torch that the table lacks, unless :data:`UNTESTED` is set.

    Raises:
        MissingDependencyError: it is older or newer, or isn't installed.
    """
    known = [row.release for row in VERSIONS]
    installed = installed_version("torch")
    newest = f"pip install 'torch=={_TESTED[-1]}.*'"
    if not installed:
        raise MissingDependencyError("torch isn't installed", hint=newest)
    if _release(installed) in known or os.environ.get(UNTESTED) == "1":
        return
    raise MissingDependencyError(
        f"torch {installed} is installed, and edgecompile knows torch {known[0]} to {known[-1]}",
        hint=f"{newest}; `{UNTESTED}=1` tries the one that is installed",
    )


def note_untested() -> str:
    """A clause about a torch that the tests haven't run with; "" for one that they have."""
    installed = installed_version("torch")
    if _release(installed) in _TESTED:
        return ""
    return f"edgecompile's tests haven't run with torch {installed}" if installed else ""


def torch_version() -> TorchVersion:
    """The row of the torch that is installed; of one that the table lacks the row beside it."""
    installed = _number(installed_version("torch"))
    older = [row for row in VERSIONS if _number(row.release) <= installed]
    return older[-1] if older else VERSIONS[0]


def check_triton() -> None:
    """Refuses a Triton that doesn't go with torch, unless :data:`UNTESTED` is set.

    Raises:
        MissingDependencyError: it is another release, or isn't installed.
    """
    check_torch()
    needed, installed = needed_triton(), installed_version("triton")
    if installed == needed or (installed and os.environ.get(UNTESTED) == "1"):
        return
    raise MissingDependencyError(
        f'`backend="triton"` needs triton {needed} with torch {installed_version("torch")}'
        + (f", and {installed} is installed" if installed else ", and none is installed"),
        hint=f"pip install --no-deps triton=={needed}",
    )


def needed_triton() -> str:
    """The release of Triton that goes with the torch that is installed."""
    for requirement in requires("torch") or ():
        if match := re.match(r"triton *== *([\d.]+)", requirement):
            return match[1]
    return torch_version().triton


def installed_version(package: str) -> str:
    """The version of a package; "" where it isn't installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _release(text: str) -> str:
    return ".".join(text.split(".")[:2])


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])
