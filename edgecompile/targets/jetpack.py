"""Releases of JetPack, the system of Jetson modules (profiles/jetpacks/*.toml), and what stands in
their place where a GPU isn't a Jetson's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgecompile.errors import PlanError, TargetError
from edgecompile.runtime.format.recipe.schema import version_pair
from edgecompile.targets.schema import (
    JETPACK_KEYS,
    check_table,
    nearest,
    problems_error,
    read_table,
    search_path,
)

if TYPE_CHECKING:
    from edgecompile.targets.profile import TargetProfile


_FOLDER = "jetpacks"


@dataclass(frozen=True)
class JetPack:
    """The versions in a release.

    Attributes:
        name: such as "6.2"; "" of :data:`NO_JETPACK`.
        ubuntu, glibc, python, cuda, tensorrt: versions; "" where any will do.
        tensorrt_least, tensorrt_below: the versions of TensorRT that may finish a bundle for this release: the
            first and what lies above it, up to but without the second.
        opset: newest ONNX opset to use.
        ran: the parts of its TensorRT that were run, and where; "": none.
        sources: (key, where it comes from) pairs.
    """

    name: str
    ubuntu: str
    glibc: str
    python: str
    cuda: str
    tensorrt: str
    tensorrt_least: str
    tensorrt_below: str
    opset: int
    ran: str = ""
    sources: tuple[tuple[str, str], ...] = ()

    def takes(self, tensorrt: str) -> bool:
        """Whether a version of TensorRT, of which major.minor counts, may finish a bundle."""
        least, below = version_pair(self.tensorrt_least), version_pair(self.tensorrt_below)
        return least <= version_pair(tensorrt) < below

    def releases(self, versions: Sequence[str]) -> tuple[str, ...]:
        """The ones of some TensorRT releases (major.minor) that may finish a bundle."""
        return tuple(name for name in versions if self.takes(name))


#: Of a machine that is no Jetson: whoever runs it installs what TensorRT they like. The bounds are
#: those of the names that the runtime uses and of the operators that are known.
NO_JETPACK = JetPack("", "", "", "", "", "", "10.3", "11.5", 20)


def list_jetpacks(folders: Sequence[Path] | None = None) -> tuple[str, ...]:
    """The names that :func:`load_jetpack` knows, ascending."""
    folders = search_path() if folders is None else folders
    return tuple(sorted({path.stem for f in folders for path in (f / _FOLDER).glob("*.toml")}))


def find_jetpack(profile: TargetProfile, name: str | None) -> JetPack:
    """The release that a target is built for.

    Args:
        profile: the target; it has a GPU.
        name: one of its releases; None: the first.

    Returns:
        The release; for a GPU that isn't a Jetson's, the TensorRT that its profile asks for.

    Raises:
        PlanError: the target knows no such release.
        TargetError: no release has the profile's TensorRT, or see :func:`load_jetpack`.
    """
    if not profile.jetpacks and name is None:
        return _without_jetpack(profile.tensorrt)
    jetpack = load_jetpack(name or profile.jetpacks[0])
    if jetpack.name not in profile.jetpacks:
        raise PlanError(
            f"{profile.name} knows no JetPack {jetpack.name}",
            hint=f"it knows {', '.join(profile.jetpacks) or 'none: it is no Jetson'}",
        )
    return jetpack


def find_older(profile: TargetProfile, jetpack: JetPack) -> JetPack | None:
    """The release that a bundle for a target's default one may serve, too: the one before of the same major.

    Raises:
        TargetError: see :func:`load_jetpack`.
    """
    major = jetpack.name.partition(".")[0]
    names = [n for n in profile.jetpacks if n.partition(".")[0] == major]
    older = [n for n in names if version_pair(n) < version_pair(jetpack.name)]
    return load_jetpack(max(older, key=version_pair)) if older else None


def _without_jetpack(tensorrt: str) -> JetPack:
    """The bounds and opset of the release that has this TensorRT, without its other versions."""
    if not tensorrt:
        return NO_JETPACK
    releases = [load_jetpack(name) for name in list_jetpacks()]
    for release in releases:
        if release.takes(tensorrt):
            bounds = (release.tensorrt_least, release.tensorrt_below)
            return JetPack("", "", "", "", "", "", *bounds, release.opset)
    ranges = ", ".join(f"{item.tensorrt_least} to {item.tensorrt_below}" for item in releases)
    raise TargetError(
        f"nothing is known of TensorRT {tensorrt}",
        hint=f"known are {ranges} (excluded); without the key `tensorrt`, "
        f"{NO_JETPACK.tensorrt_least} to {NO_JETPACK.tensorrt_below}",
    )


def load_jetpack(name: str, folders: Sequence[Path] | None = None) -> JetPack:
    """Reads ``jetpacks/NAME.toml`` from the first of the profiles' folders that has it.

    Raises:
        TargetError: there is none of that name, or its file is malformed; every problem is named.
    """
    folders = search_path() if folders is None else folders
    names = list_jetpacks(folders)
    if name not in names:
        raise TargetError(
            f"unknown JetPack {name!r}{nearest(name, names)}",
            hint=f"known: {', '.join(names) or 'none'}",
        )
    path = next(p for f in folders if (p := f / _FOLDER / f"{name}.toml").is_file())
    table, problems = read_table(path, lambda item: check_table(item, JETPACK_KEYS, "release"))
    if problems:
        raise problems_error(f"the release {path} is malformed", problems)
    return JetPack(**{**table, "sources": tuple(table.get("sources", {}).items())})
