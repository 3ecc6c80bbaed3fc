"""Compiling on the machines of a Ray cluster.

What a program is compiled from goes into a folder beside the results. A machine that finds it, because
both share the disk, works there; to another one the files travel, and the library and its tensors come
back as bytes. Every machine needs the same edgecompile, torch and compiler: a library would depend on
where it was made.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from edgecompile.backends.artifact import Artifact, TensorStore
from edgecompile.backends.cpu.backend import ProgramTask
from edgecompile.errors import ClusterError, CompileError, EdgecompileError
from edgecompile.export.program import PROGRAM_FILE
from edgecompile.files import replacing
from edgecompile.hosts.cluster import Cluster, fetch, open_cluster
from edgecompile.installation import own_files_id
from edgecompile.toolchain.compilers import find_toolchain


class Backend(Protocol):
    """A compiler of programs."""

    def compile_program(self, task: ProgramTask) -> Artifact: ...


@dataclass(frozen=True)
class Parcel:
    """A task as it travels.

    Attributes:
        backend: compiles it.
        task: its program is a file.
        folder: the one that all of the task's paths are in.
        files: the files that the task reads, by path in ``folder``; contents are fetched when
            needed.
        known: names of tensors that need not come back.
        like: :func:`describe_tools` of the machine that asks.
    """

    backend: Backend
    task: ProgramTask
    folder: Path
    files: Mapping[str, Any]
    known: frozenset[str]
    like: Mapping[str, str]


@dataclass(frozen=True)
class Returned:
    """The result of a task as it travels back.

    Attributes:
        artifact: its paths are the other machine's; or what was wrong.
        library: its bytes; None where the folder is shared: then all is in its place.
        tensors: the tensors that weren't known, by the file's name.
    """

    artifact: Artifact | EdgecompileError
    library: bytes | None = None
    tensors: Mapping[str, bytes] | None = None


def describe_tools(arch: str) -> dict[str, str]:
    """Facts that shape a library beside the task, by names for people."""
    return {
        "edgecompile": own_files_id()[:12],
        "torch": torch.__version__,
        "compiler": find_toolchain(arch).version,
    }


def compile_on_ray(
    tasks: Sequence[ProgramTask], backend: Backend, folder: Path, jobs: int | None
) -> Generator[Artifact, None, None]:
    """Compiles tasks on the cluster; yields in their order.

    Args:
        tasks: their outputs and libraries are in ``folder``.
        backend: compiles them.
        folder: shared with the machines of the cluster, or not.
        jobs: tasks at once; None: one for each CPU of the cluster.

    Raises:
        MissingDependencyError, ClusterError: there is no cluster, a machine is lost, or it has other
            tools than this one.
        CompileError: the same as for compiling here.
    """
    if not tasks:
        return
    with tempfile.TemporaryDirectory(prefix=".ray-", dir=folder) as here, open_cluster() as cluster:
        parcels = _pack(tasks, backend, folder, Path(here), cluster)
        with closing(cluster.map(compile_parcel, parcels, jobs)) as returned:
            for task, reply in zip(tasks, returned, strict=True):
                yield _unpack(task, reply)


def _pack(
    tasks: Sequence[ProgramTask], backend: Backend, folder: Path, here: Path, cluster: Cluster
) -> Iterator[Parcel]:
    programs: dict[int, Path] = {}  # of the variants of a bucket there is one
    shared: dict[Path, Any] = {}
    for task in tasks:
        number = id(task.exported)
        if number not in programs:
            programs[number] = here / str(len(programs)) / PROGRAM_FILE
            _leave(task, programs[number])
        reads = [programs[number], *([task.native.path] if task.native else ())]
        for path in reads:
            if path not in shared:
                shared[path] = cluster.share(path.read_bytes())
        yield Parcel(
            backend,
            replace(task, exported=replace(task.exported, source=programs[number])),
            folder,
            {str(path.relative_to(folder)): shared[path] for path in reads},
            frozenset(path.name for path in task.store.directory.iterdir()),
            describe_tools(task.variant.arch),
        )


def _leave(task: ProgramTask, path: Path) -> None:
    """Puts the task's program at ``path``."""
    source = task.exported.source
    if not isinstance(source, Path):
        task.exported.save(path.parent)
        return
    path.parent.mkdir()
    try:
        os.link(source, path)
    except OSError:  # another disk
        shutil.copyfile(source, path)


def compile_parcel(parcel: Parcel) -> Returned:
    """Compiles a task, on a machine of the cluster; what is wrong comes back as a value."""
    try:
        _check_tools(parcel)
        program = parcel.task.exported.source
        if isinstance(program, Path) and program.is_file():
            # A copy has no key in it: what identifies the program is found on the machine that asks.
            return Returned(parcel.backend.compile_program(replace(parcel.task)))
        with tempfile.TemporaryDirectory(prefix="edgecompile-") as folder:
            return _compile_apart(parcel, Path(folder))
    except EdgecompileError as error:
        return Returned(error)


def _check_tools(parcel: Parcel) -> None:
    ours = describe_tools(parcel.task.variant.arch)
    others = [
        f"{name} {ours[name]}, not {text}"
        for name, text in parcel.like.items()
        if ours[name] != text
    ]
    if others:
        raise ClusterError(
            f"machine {platform.node()} of the Ray cluster has {'; '.join(others)}",
            hint="install the same versions on every machine of the cluster",
        )


def _compile_apart(parcel: Parcel, folder: Path) -> Returned:
    """Compiles in a folder of this machine."""
    task = parcel.task

    def moved(path: Path) -> Path:
        return folder / path.relative_to(parcel.folder)

    for name, content in parcel.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(fetch(content))
    assert isinstance(task.exported.source, Path)
    store = TensorStore(moved(task.store.directory))
    artifact = parcel.backend.compile_program(
        replace(
            task,
            exported=replace(task.exported, source=moved(task.exported.source)),
            native=task.native and replace(task.native, path=moved(task.native.path)),
            output=moved(task.output),
            store=store,
        )
    )
    paths = [path for path in store.directory.iterdir() if path.name not in parcel.known]
    tensors = {path.name: path.read_bytes() for path in paths}
    return Returned(artifact, artifact.library.read_bytes(), tensors)


def _unpack(task: ProgramTask, came: Returned) -> Artifact:
    """The artifact in its place on this machine."""
    if isinstance(came.artifact, EdgecompileError):
        raise came.artifact
    for name, content in (came.tensors or {}).items():
        with replacing(task.store.directory / name) as file:
            file.write(content)
    if came.library is not None:
        task.output.parent.mkdir(parents=True, exist_ok=True)
        with replacing(task.output) as file:
            file.write(came.library)
    replace(came.artifact, key=task.key, compiler=task.compiler, library=task.output).save()
    artifact = task.find()
    if artifact is None:
        raise CompileError(
            f"{task.output} isn't whole after it came from the Ray cluster", hint="build once more"
        )
    return artifact
