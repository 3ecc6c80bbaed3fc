"""Other CPUs under qemu's user mode: runs a bundle whose code this host can't run itself.

The device needs no Python for that: a small program in C++ (``runtime/native/replay``), built by the
compiler that built the bundle, opens it with the C runtime as it ships and runs what it is given.
Emulation proves instructions and results, never speed.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from edgecompile.errors import NativeError, ToolchainError, UnsupportedHostError
from edgecompile.runtime.cpu.host import architecture
from edgecompile.runtime.format.dtypes import BY_CODE, BY_NUMPY
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.manifest.schema import MANIFEST_NAME, Manifest, Tolerance, Variant
from edgecompile.runtime.format.trust.policy import trust_environment
from edgecompile.targets.profile import VariantSpec
from edgecompile.toolchain.compilers import Toolchain, compile_object, find_toolchain, run_tool
from edgecompile.toolchain.native import (
    BASELINE_MARCH,
    c_runtime_sources,
    headers_id,
    native_headers_id,
    native_sources,
)

#: Debian's package of the emulators.
PACKAGE = "qemu-user"
_PROGRAMS = {"x86-64": "qemu-x86_64", "aarch64": "qemu-aarch64"}
_LOADERS = {"x86-64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}


@dataclass(frozen=True)
class Emulator:
    """qemu for one architecture.

    Attributes:
        arch: ``x86-64`` or ``aarch64``.
        command: the program and its options; what it is to run follows.
        name: the program and its version, such as ``qemu-aarch64 7.2.22``.
    """

    arch: str
    command: tuple[str, ...]
    name: str

    def features(self) -> frozenset[str]:
        """The features of the emulated CPU, in the names of the runtime's probe.

        Raises:
            ToolchainError: the probe can't be built or run.
        """
        toolchain, sources = find_toolchain(self.arch), native_sources()
        with tempfile.TemporaryDirectory(prefix="edgecompile-probe-") as folder:
            program = Path(folder) / "features"
            objects = [
                _compile(toolchain, source, (source.parent, sources), native_headers_id())
                for source in (sources / "probe" / "cpu_probe.c", sources / "replay" / "features.c")
            ]
            _link(toolchain, objects, program)
            done = subprocess.run(
                [*self.command, str(program)], capture_output=True, text=True, cwd=folder
            )
        if done.returncode != 0:
            raise ToolchainError(f"{self.name} can't run a program: {done.stderr.strip()}")
        return frozenset(done.stdout.split())


def find_emulator(arch: str) -> Emulator | None:
    """The emulator of an architecture; None where it, or a compiler for its programs, is missing."""
    name = _PROGRAMS.get(arch, "")
    path = shutil.which(name) or shutil.which(name + "-static")
    if path is None:
        return None
    try:
        toolchain = find_toolchain(arch)
    except ToolchainError:
        return None
    words = subprocess.run([path, "--version"], capture_output=True, text=True).stdout.split()
    version = words[words.index("version") + 1] if "version" in words[:-1] else ""
    command = [path]
    if architecture(platform.machine()) != arch:
        command += ["-L", str(_system_root(toolchain))]
    if "QEMU_CPU" not in os.environ:
        command += ["-cpu", "max"]
    return Emulator(arch, tuple(command), f"{name} {version}".rstrip())


def emulator_for(variant: Variant | VariantSpec, emulate: bool = True) -> Emulator | str:
    """The emulator for a variant that this host can't run, or the reason why there is none.

    Args:
        variant: its architecture and the features of the CPU that it requires.
        emulate: whether anything is wanted to.
    """
    if not emulate:
        return "emulation is off"
    emulator = find_emulator(variant.arch)
    if emulator is None:
        return (
            f"there is no emulator for {variant.arch} here: install {PACKAGE} to run it under one"
        )
    try:
        features = emulator.features()
    except ToolchainError as error:
        return error.message
    lacking = [name for name in variant.requires if name not in features]
    return f"{emulator.name} has no {', '.join(lacking)} either" if lacking else emulator


def _system_root(toolchain: Toolchain) -> Path:
    """The folder of the C library for the compiler's architecture: ``lib/`` in it has the loader."""
    loader = _LOADERS[toolchain.arch]
    path = subprocess.run(
        [toolchain.cxx, f"-print-file-name={loader}"], capture_output=True, text=True
    ).stdout.strip()
    # Only a path is normalised: lib64 of the other system may be a link to its lib.
    return Path(os.path.normpath(path)).parent.parent if os.sep in path else Path("/")


class EmulatedModel:
    """An open bundle in an emulated process: what :func:`edgecompile.runtime.call.replay.run_cases`
    takes; a context manager.

    Args:
        bundle: a bundle, named or still staged.
        variant: the one to run.
        emulator: the emulator of its architecture.
        min_cosine: the least cosine of an output; None: any.

    Raises:
        UnsupportedHostError: the emulated CPU can't run the variant.
        NativeError: the bundle can't be opened there.
        ToolchainError, CompileError: the program that opens it can't be built.
    """

    def __init__(
        self, bundle: Path, variant: str, emulator: Emulator, min_cosine: float | None = None
    ) -> None:
        self.bundle = bundle.resolve()
        self.emulator = emulator
        self.manifest: Manifest = parse_manifest((bundle / MANIFEST_NAME).read_bytes(), str(bundle))
        self.min_cosine = min_cosine
        with ExitStack() as opening:
            prefix = "edgecompile-emulated-"
            folder = opening.enter_context(tempfile.TemporaryDirectory(prefix=prefix))
            self._errors = opening.enter_context(tempfile.TemporaryFile(dir=folder))
            self._start(variant, Path(folder), opening)
            self._open = opening.pop_all()

    @property
    def tolerance(self) -> Tolerance:
        """The manifest's."""
        return self.manifest.tolerance

    def __enter__(self) -> EmulatedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process."""
        self._open.close()

    def open_file(self, name: str) -> int:
        """A descriptor of a file of the bundle; it is the caller's to close."""
        return os.open(self.bundle / name, os.O_RDONLY | os.O_CLOEXEC)

    def run_bucket(
        self, bucket: int, inputs: Mapping[str, npt.NDArray[Any]]
    ) -> dict[str, npt.NDArray[Any]]:
        """The outputs of one bucket's program.

        Raises:
            NativeError: the run failed, or its process died.
        """
        with self._talking():
            self._stdin.write(struct.pack("<ii", bucket, len(inputs)))
            for name, array in inputs.items():
                _write_tensor(self._stdin, name, np.ascontiguousarray(array))
            self._stdin.flush()
            return dict(_read_tensor(self._stdout) for _ in range(self._read_answer()))

    def _start(self, variant: str, folder: Path, opening: ExitStack) -> None:
        program = folder / "replay"
        build_replay(self.emulator.arch, program)
        env = {k: v for k, v in os.environ.items() if not k.startswith("EDGECOMPILE_")}
        env |= trust_environment()  # a new bundle has no signatures
        self._process = subprocess.Popen(
            [*self.emulator.command, str(program), str(self.bundle), variant],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=env, cwd=folder,
        )  # fmt: skip
        opening.callback(self._end)
        # The emulator writes a core file, of gigabytes, where a program dies.
        resource.prlimit(self._process.pid, resource.RLIMIT_CORE, (0, 0))
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        with self._talking():
            self._read_answer()

    def _end(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):  # what it was never told goes with it
                if pipe is not None:
                    pipe.close()
        self._process.wait()

    def _read_answer(self) -> int:
        """The number of tensors that follow; raises what the program said instead."""
        status, count = struct.unpack("<ii", _read(self._stdout, 8))
        if status == 0:
            return int(count)
        text = _read(self._stdout, count).decode("utf-8", "replace")
        message, _, hint = text.partition("\nhint: ")
        kind = UnsupportedHostError if status == UnsupportedHostError.exit_code else NativeError
        raise kind(message, hint=hint or None)

    @contextmanager
    def _talking(self) -> Iterator[None]:
        """Says what became of the process where it no longer answers."""
        try:
            yield
        except (EOFError, BrokenPipeError):
            code = self._process.wait()
            self._errors.seek(0)
            message = self._errors.read().decode("utf-8", "replace").strip()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
            raise NativeError(
                f"the program under {self.emulator.name} {how}"
                + (f": {message}" if message else "")
            ) from None


def build_replay(arch: str, program: Path) -> None:
    """Builds the program that opens a bundle under the emulator of ``arch``, at ``program``.

    Raises:
        ToolchainError, CompileError, DiskFullError.
    """
    toolchain, interface = find_toolchain(arch), c_runtime_sources()
    include_dirs = (interface, interface / "include")
    key = headers_id(interface)
    sources = [*sorted(interface.rglob("*.cpp")), native_sources() / "replay" / "replay.cpp"]
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        objects = pool.map(lambda path: _compile(toolchain, path, include_dirs, key), sources)
        _link(toolchain, list(objects), program)


def _compile(
    toolchain: Toolchain, source: Path, include_dirs: tuple[Path, ...], headers_id: str
) -> Path:
    standard = ("-x", "c", "-std=c11") if source.suffix == ".c" else ("-std=c++17", "-pthread")
    return compile_object(
        toolchain,
        source.read_bytes(),
        name=source.name,
        flags=(*standard, "-O1", f"-march={BASELINE_MARCH[toolchain.arch]}"),
        include_dirs=include_dirs,
        headers_id=headers_id,
    ).path


def _link(toolchain: Toolchain, objects: list[Path], program: Path) -> None:
    command = [toolchain.cxx, *map(str, objects), "-o", str(program)]
    command += ["-static-libstdc++", "-static-libgcc", "-pthread", "-ldl"]
    run_tool(command, f"linking {program.name}")


def _write_tensor(pipe: IO[bytes], name: str, array: npt.NDArray[Any]) -> None:
    encoded = name.encode()
    code = BY_NUMPY[array.dtype.name].code
    pipe.write(struct.pack("<i", len(encoded)) + encoded)
    sizes = struct.pack(f"<{array.ndim}q", *array.shape)
    pipe.write(struct.pack("<ii", code, array.ndim) + sizes + struct.pack("<q", array.nbytes))
    pipe.write(array.tobytes())


def _read(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _read_tensor(pipe: IO[bytes]) -> tuple[str, npt.NDArray[Any]]:
    name = _read(pipe, struct.unpack("<i", _read(pipe, 4))[0]).decode()
    code, ndim = struct.unpack("<ii", _read(pipe, 8))
    shape = struct.unpack(f"<{ndim}q", _read(pipe, 8 * ndim))
    data = _read(pipe, struct.unpack("<q", _read(pipe, 8))[0])
    return name, np.frombuffer(data, BY_CODE[code].numpy).reshape(shape)
