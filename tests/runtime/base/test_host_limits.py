"""limits: what the system refuses is told apart from damage, in Python and in C alike."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.base import limits
from edgecompile.runtime.base.errors import (
    FilePermissionError,
    HostLimitError,
    MemoryLimitError,
    NoExecError,
    OpenFilesError,
)
from edgecompile.runtime.cpu.host import architecture
from tests.other_user import OTHER_USER, admit_other_user
from tests.runtime.bundles import DummyBundle

# Opens a bundle after a limit was set, with ever more room below it: prints the error of each try,
# and ends when one succeeds. Each try is a process of its own, as a library stays loaded.
CHILD = """
import os, resource, sys
from edgecompile.runtime import EdgecompileError, open_bundle
from edgecompile.runtime.base import errors
import numpy, mmap, ctypes, hashlib  # what the loader needs of Python isn't what is limited
import edgecompile.runtime.model.model

classes = [item for item in vars(errors).values() if isinstance(item, type)]
names = {getattr(item, "exit_code", 0): item.__name__ for item in classes}
host = ctypes.CDLL(sys.argv[4]) if sys.argv[4] else None

def open_files(room):
    used = len(os.listdir("/proc/self/fd")) - 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + room, used + room))

def address_space(room):
    used = int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (used + (room << 17),) * 2)

def nothing(room):
    pass

def attempt(limit, room):
    handle = ctypes.c_void_p()
    path = sys.argv[1].encode()
    limit(room)
    if host is not None:
        status = host.ecr_open_versioned(2, path, None, ctypes.byref(handle))
        if status != 0:
            host.ecr_last_error.restype = ctypes.c_char_p
            text = host.ecr_last_error().decode()
            print(names.get(status), status, text.replace("\\n", " "))
        return min(status, 1)
    try:
        open_bundle(sys.argv[1], threads=1).close()
    except EdgecompileError as error:
        print(type(error).__name__, error.exit_code, str(error).replace("\\n", " "))
        return 1
    return 0

limit = {"files": open_files, "memory": address_space, "none": nothing}[sys.argv[2]]
for room in range(int(sys.argv[3])):
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            code = attempt(limit, room)
        finally:
            sys.stdout.flush()
            os._exit(code)
    if os.waitpid(pid, 0)[1] == 0:
        break
"""


@pytest.fixture(params=["Python", "C"])
def library(request: pytest.FixtureRequest) -> str:
    """The C runtime's library, or "" for Python."""
    if request.param == "Python":
        return ""
    c_library = pytest.importorskip("tests.native.c_runtime.c_library")
    return str(c_library.build_library())


def errors_of(
    python: str, bundle: Path | str, limit: str, tries: int, library: str, *before: str
) -> list[str]:
    """The errors of opening, a line each, with more and more room."""
    done = subprocess.run(
        [*before, python, "-c", CHILD, str(bundle), limit, str(tries), library],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    # glibc itself ends a process that has no memory for thread-local data; nothing can catch that.
    told = [line for line in done.stderr.splitlines() if "thread-local data: ABORT" not in line]
    assert done.returncode == 0 and not told, done.stderr
    return done.stdout.splitlines()


def test_too_many_open_files(native_bundle: str, device_python: str, library: str) -> None:
    lines = errors_of(device_python, native_bundle, "files", 60, library)
    assert len(lines) >= 3, "descriptors are needed in several places"
    for line in lines:
        assert line.startswith("OpenFilesError 69 ") and "ulimit -n" in line, line
        assert "copy" not in line


def test_a_limit_of_address_space(native_bundle: str, device_python: str, library: str) -> None:
    lines = errors_of(device_python, native_bundle, "memory", 400, library)
    assert len(lines) >= 3
    for line in lines:
        assert line.startswith("MemoryLimitError 73 ") and "ulimit -v" in line, line
    assert any("bytes of address space" in line for line in lines)


def test_a_file_that_this_user_may_not_read(
    native_copy: Path, shared_folder: Path, device_python: str, library: str
) -> None:
    """Its owner is another user, as where root copied the bundle."""
    admit_other_user(native_copy, shared_folder)
    program = next(native_copy.rglob("*.so"))
    for place, mode in (
        (program, 0o600),
        (native_copy / "manifest.json", 0o600),
        (native_copy, 0o700),
    ):
        copied = place.is_file() and place.read_bytes()
        if copied:
            place.unlink()  # it may be linked to the original
            place.write_bytes(copied)
        before = place.stat().st_mode
        place.chmod(mode)
        lines = errors_of(device_python, native_copy, "none", 1, library, *OTHER_USER)
        place.chmod(before)
        assert len(lines) == 1
        assert lines[0].startswith("FilePermissionError 71 "), lines
        assert str(place) in lines[0] and "user 65534" in lines[0] and "chmod" in lines[0]


@pytest.fixture
def noexec(tmp_path: Path) -> Iterator[Path]:
    """A file system from which nothing may be run."""
    place = tmp_path / "noexec"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "noexec,size=64m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_noexec_mount(native_bundle: str, noexec: Path, device_python: str, library: str) -> None:
    shutil.copytree(native_bundle, noexec / "copy.ecb")
    lines = errors_of(device_python, noexec / "copy.ecb", "none", 1, library)
    assert len(lines) == 1 and lines[0].startswith("NoExecError 72 "), lines
    assert "mounted noexec" in lines[0] and "move the bundle" in lines[0]


def test_a_full_table_of_the_system_is_not_a_limit_of_the_process(
    bundle: DummyBundle, tmp_path: Path, device_python: str, library: str
) -> None:
    """The dynamic loader's words have the name of a library that is missing, here those words."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    needed, needing = str(tmp_path / os.strerror(23)), str(tmp_path / "probe.so")
    command = [compiler, "-shared", "-fPIC", "-x", "c", "/dev/null", "-x", "none", "-o"]
    subprocess.run([*command, needed, "-Wl,-soname," + os.strerror(23)], check=True)
    subprocess.run([*command, needing, "-Wl,--no-as-needed", needed], check=True)
    bundle.files["code/x86-64/libecprobe.so"] = Path(needing).read_bytes()
    bundle.document["probes"] = {architecture(platform.machine()): "code/x86-64/libecprobe.so"}
    (line,) = errors_of(device_python, bundle.write(), "none", 1, library)
    assert line.startswith("OpenFilesError 69 ") and "the whole system" in line, line


@pytest.mark.parametrize(
    ("number", "wanted"),
    [
        (24, OpenFilesError),
        (23, OpenFilesError),
        (13, FilePermissionError),
        (12, MemoryLimitError),
        (5, None),
        (40, None),
    ],
)
def test_errors_of_the_system(number: int, wanted: Any) -> None:
    error = limits.explain_errno(number, "x.ecb")
    assert type(error) is (wanted or type(None))
    if error is not None:
        assert isinstance(error, HostLimitError) and "x.ecb" in error.message and error.hint


def test_words_of_the_dynamic_loader(tmp_path: Path) -> None:
    def explain(text: str) -> Any:
        return type(limits.explain_loading("/x: " + text, "x.so", str(tmp_path)))

    assert (
        explain("failed to map segment from shared object: Operation not permitted") is NoExecError
    )
    assert explain("cannot open shared object file: Too many open files") is OpenFilesError
    assert explain("failed to map segment: Cannot allocate memory") is MemoryLimitError
    assert explain("cannot open shared object file: Permission denied") is NoExecError
    assert explain("invalid ELF header") is type(None)


def test_a_lack_of_memory_is_a_memory_error_that_says_where() -> None:
    wanted = pytest.raises(MemoryError, match="warming up: Unable to allocate")
    with wanted, limits.memory_for("warming up"):
        raise MemoryError("Unable to allocate 3 GiB")
    wanted = pytest.raises(MemoryLimitError, match="no memory for 12345 bytes")
    with wanted, limits.memory_for("outside"):
        raise limits.no_memory("inside", 12345)
