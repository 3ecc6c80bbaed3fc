"""The C runtime for tests: building it for an architecture, and calling it through ctypes."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgecompile.runtime.format.dtypes import BY_CODE, BY_NUMPY
from edgecompile.toolchain.compilers import Toolchain, compile_object, find_toolchain
from edgecompile.toolchain.native import headers_id
from tests.conftest import one_at_a_time
from tests.needs import need

REPOSITORY = Path(__file__).resolve().parents[3]
SOURCES = REPOSITORY / "edgecompile" / "c_runtime"
HEADER = SOURCES / "include" / "edgecompile_runtime.h"
EXAMPLE = REPOSITORY / "examples" / "c"
PROGRAMS = Path(__file__).resolve().parent / "programs"
BUILD = REPOSITORY / "build" / "tests-native"
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Werror")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1")
#: A leak ends a program with this.
SANITIZED = {"ASAN_OPTIONS": "detect_leaks=1:exitcode=99", "UBSAN_OPTIONS": "print_stacktrace=1"}


@dataclass(frozen=True)
class Machine:
    """An architecture: its compilers, and how its programs are run here."""

    arch: str
    prefix: str
    runner: tuple[str, ...]

    def tool(self, name: str) -> str:
        """A compiler; see tests.needs for where it is missing."""
        package = "g++" if not self.prefix else f"g++-{self.prefix.rstrip('-')}"
        return need(self.prefix + name, package)

    def run(
        self, command: Sequence[str | Path], *, stdin: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program of this architecture; see tests.needs for where that can't be done."""
        if self.runner:
            need(self.runner[0], "qemu-user")
        return subprocess.run(
            [*self.runner, *map(str, command)],
            input=stdin, capture_output=True, text=True,
            env={**os.environ, **variables},
        )  # fmt: skip


_FOREIGN = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")
NATIVE_ARCH = {"x86_64": "x86-64"}.get(os.uname().machine, os.uname().machine)
MACHINES = {
    NATIVE_ARCH: Machine(NATIVE_ARCH, "", ()),
    "aarch64": Machine(
        "aarch64",
        "" if NATIVE_ARCH == "aarch64" else "aarch64-linux-gnu-",
        () if NATIVE_ARCH == "aarch64" else _FOREIGN,
    ),
}


def build(
    machine: Machine,
    name: str,
    sources: Sequence[Path] = (),
    *,
    flags: Sequence[str] = (),
    link: Sequence[str] = (),
    shared: bool = False,
) -> Path:
    """Builds the host library, or a program of it and more sources; kept while nothing changes.

    Objects come through the product's cache: once for each architecture and set of flags, in any clone.
    """
    machine.tool("g++")
    toolchain = find_toolchain(machine.arch)
    paths = [*sorted(SOURCES.rglob("*.cpp")), *sources]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = list(pool.map(lambda path: _compile(toolchain, path, flags), paths))
    static = ["-static-libstdc++", "-static-libgcc"] if "-fsanitize" not in str(flags) else []
    script = ["-shared", f"-Wl,--version-script={SOURCES / 'edgecompile_runtime.map'}"]
    options = [*flags, *map(str, objects), *static, *link, *(script if shared else [])]
    target = _folder(machine, [name, *options]) / (f"lib{name}.so" if shared else name)
    _make(target, [toolchain.cxx, *options, "-ldl", "-lm", "-pthread"])
    return target


def _compile(toolchain: Toolchain, source: Path, flags: Sequence[str]) -> Path:
    """The object of one source."""
    c99 = ["-x", "c", "-std=c99", "-D_POSIX_C_SOURCE=200809L"]
    standard = c99 if source.suffix == ".c" else ["-std=c++17"]
    folders = [SOURCES, HEADER.parent]
    if SOURCES not in source.parents:
        folders.append(source.parent)
    return compile_object(
        toolchain,
        source.read_bytes(),
        name=source.name,
        flags=[*standard, "-O1", *WARNINGS, *flags],
        include_dirs=folders,
        headers_id=" ".join(map(headers_id, folders)),
    ).path


def _folder(machine: Machine, key: Sequence[str]) -> Path:
    digest = hashlib.sha256(repr((machine, key)).encode()).hexdigest()[:16]
    return BUILD / "host" / f"{machine.arch}-{digest}"


def _make(target: Path, command: Sequence[str]) -> None:
    """Runs a command that writes ``target``, once for all processes of a test run."""
    if target.exists():
        return
    with one_at_a_time(target.parent / "lock"):
        if not target.exists():
            beside = target.with_name("unfinished")
            _call([*command, "-o", str(beside)])
            os.replace(beside, target)


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"


# --- edgecompile_runtime.h
ABI_VERSION = 2
OK, BUNDLE, VERSION, DAMAGED, HOST_STATUS, INPUT, OUTSIDE, NATIVE, CLOSED = 0, *range(20, 27), 28


class Tensor(ctypes.Structure):
    """ecr_tensor."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("nbytes", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("sizes", ctypes.c_int64 * 8),
    )


class Outputs(ctypes.Structure):
    """ecr_outputs."""

    _fields_ = (("count", ctypes.c_int64), ("tensors", ctypes.POINTER(Tensor)))


class Options(ctypes.Structure):
    """ecr_options."""

    _fields_ = (
        ("threads", ctypes.c_int32),
        ("concurrency", ctypes.c_int32),
        ("verify", ctypes.c_int32),
        ("lazy", ctypes.c_int32),
        ("variant", ctypes.c_char_p),
        ("mode", ctypes.c_char_p),
        ("fallback", ctypes.c_char_p),
    )


class Spec(ctypes.Structure):
    """ecr_spec."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("least", ctypes.c_int64 * 8),
        ("most", ctypes.c_int64 * 8),
    )


class Signature(ctypes.Structure):
    """ecr_signature."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("variant", ctypes.c_char_p),
        ("n_inputs", ctypes.c_int32),
        ("n_outputs", ctypes.c_int32),
        ("n_buckets", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("inputs", ctypes.POINTER(Spec)),
        ("outputs", ctypes.POINTER(Spec)),
        ("atol", ctypes.c_double),
        ("rtol", ctypes.c_double),
        ("min_cosine", ctypes.c_double),
    )


class CLibraryError(Exception):
    """A call that failed."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def build_library() -> Path:
    """libedgecompile_runtime.so for this machine, which stays loaded once it is."""
    link = ["-Wl,-z,nodelete"]
    return build(MACHINES[NATIVE_ARCH], "edgecompile_runtime", shared=True, link=link)


class CLibrary:
    """libedgecompile_runtime.so."""

    def __init__(self, path: Path) -> None:
        self.c = ctypes.CDLL(str(path))
        handle, status = ctypes.c_void_p, ctypes.c_int32
        pointer = ctypes.POINTER
        signatures: dict[str, tuple[Any, list[Any]]] = {
            "abi_version": (status, []),
            "last_error": (ctypes.c_char_p, []),
            "open_versioned": (status, [status, ctypes.c_char_p, pointer(Options), pointer(handle)]),
            "describe": (status, [handle, pointer(ctypes.c_void_p)]),
            "text_free": (None, [ctypes.c_void_p]),
            "get_signature": (status, [handle, pointer(Signature)]),
            "run": (
                status, [handle, pointer(Tensor), ctypes.c_int64, pointer(pointer(Outputs))],
            ),
            "run_bucket": (
                status,
                [handle, status, pointer(Tensor), ctypes.c_int64, pointer(pointer(Outputs))],
            ),
            "stream_open": (status, [handle, pointer(handle)]),
            "stream_run": (
                status, [handle, pointer(Tensor), ctypes.c_int64, pointer(pointer(Outputs))],
            ),
            "stream_reset": (status, [handle]),
            "stream_close": (None, [handle]),
            "outputs_free": (None, [pointer(Outputs)]),
            "close": (None, [handle]),
        }  # fmt: skip
        for name, (result, arguments) in signatures.items():
            function = getattr(self.c, "ecr_" + name)
            function.restype, function.argtypes = result, arguments

    def check(self, status: int) -> None:
        if status != OK:
            raise CLibraryError(status, self.c.ecr_last_error().decode())

    def open(self, path: object, abi_version: int = ABI_VERSION, **options: int | bytes) -> CModel:
        handle = ctypes.c_void_p()
        chosen = ctypes.byref(Options(**options)) if options else None
        status = self.c.ecr_open_versioned(
            abi_version, str(path).encode(), chosen, ctypes.byref(handle)
        )
        self.check(status)
        return CModel(self, handle)


class CModel:
    """An ecr_model, with arrays instead of tensors."""

    def __init__(self, library: CLibrary, handle: ctypes.c_void_p) -> None:
        self.library = library
        self.handle = handle

    def __enter__(self) -> CModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.library.c.ecr_close(self.handle)

    def describe(self) -> dict[str, Any]:
        text = ctypes.c_void_p()
        self.library.check(self.library.c.ecr_describe(self.handle, ctypes.byref(text)))
        assert text.value is not None
        result = json.loads(ctypes.string_at(text.value))
        self.library.c.ecr_text_free(text)
        assert isinstance(result, dict)
        return result

    def run(
        self, inputs: Mapping[str, npt.NDArray[Any]], bucket: int | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        outputs = self.run_tensors(make_tensors(inputs), bucket)
        try:
            return {name: array.copy() for name, array in read_outputs(outputs).items()}
        finally:
            self.library.c.ecr_outputs_free(outputs)

    def run_tensors(self, tensors: Any, bucket: int | None = None) -> Any:
        outputs = ctypes.POINTER(Outputs)()
        rest = (tensors, len(tensors), ctypes.byref(outputs))
        if bucket is None:
            status = self.library.c.ecr_run(self.handle, *rest)
        else:
            status = self.library.c.ecr_run_bucket(self.handle, bucket, *rest)
        self.library.check(status)
        return outputs


class CStream:
    """An ecr_stream, with arrays instead of tensors."""

    def __init__(self, model: CModel) -> None:
        self.library = model.library
        self.handle = ctypes.c_void_p()
        status = self.library.c.ecr_stream_open(model.handle, ctypes.byref(self.handle))
        self.library.check(status)

    def run(self, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        outputs = self.run_kept(inputs)
        try:
            return {name: array.copy() for name, array in read_outputs(outputs).items()}
        finally:
            self.library.c.ecr_outputs_free(outputs)

    def run_kept(self, inputs: Mapping[str, npt.NDArray[Any]]) -> Any:
        """The outputs, which the caller frees."""
        outputs = ctypes.POINTER(Outputs)()
        rest = (make_tensors(inputs), len(inputs), ctypes.byref(outputs))
        self.library.check(self.library.c.ecr_stream_run(self.handle, *rest))
        return outputs

    def reset(self) -> None:
        self.library.check(self.library.c.ecr_stream_reset(self.handle))

    def close(self) -> None:
        self.library.c.ecr_stream_close(self.handle)


def make_tensors(inputs: Mapping[str, npt.NDArray[Any]]) -> Any:
    """The arrays as tensors; they have to be row-major, and to live as long."""
    tensors = (Tensor * len(inputs))()
    for tensor, (name, array) in zip(tensors, inputs.items(), strict=True):
        assert array.flags.c_contiguous
        tensor.name = name.encode()
        tensor.data = array.ctypes.data
        tensor.nbytes = array.nbytes
        tensor.dtype = BY_NUMPY[array.dtype.name].code
        tensor.ndim = array.ndim
        tensor.sizes[: array.ndim] = array.shape
    return tensors


def read_outputs(outputs: Any) -> dict[str, npt.NDArray[Any]]:
    """Views of the outputs, which end with them."""
    result = {}
    for i in range(outputs.contents.count):
        tensor = outputs.contents.tensors[i]
        shape = tuple(tensor.sizes[: tensor.ndim])
        data = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data)
        dtype = BY_CODE[tensor.dtype].numpy
        result[tensor.name.decode()] = np.frombuffer(data, dtype).reshape(shape)
    return result
