"""libraries: what was hashed is what is loaded."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable

import pytest

import edgecompile.runtime.model.model  # noqa: F401  what is done after a fork
from edgecompile.runtime.base.errors import DamagedBundleError, NativeError
from edgecompile.runtime.cpu import libraries, library
from edgecompile.runtime.cpu.libraries import load_library, pin_library
from edgecompile.runtime.format.files import weights
from edgecompile.runtime.format.files.folder import BundleFolder
from tests.runtime.bundles import DummyBundle

NAMES = ("code/x86-64-v3/bucket-0.so", "code/x86-64-v3/bucket-1.so")


def answer(library: ctypes.CDLL) -> int:
    return int(library.ec_test_answer())


def test_an_exchanged_file_is_not_loaded(
    bundle: DummyBundle, compile_c: Callable[[str], bytes]
) -> None:
    bundle.files[NAMES[0]] = compile_c("int ec_test_answer(void) { return 41; }")
    folder = BundleFolder(bundle.write())
    pinned = pin_library(folder, NAMES[0])
    place = bundle.folder / NAMES[0]
    place.unlink()
    place.write_bytes(compile_c("int ec_test_answer(void) { return 13; }"))
    assert answer(load_library(pinned)) == 41
    folder.close()


def test_two_libraries_are_two_even_after_files_were_closed(
    bundle: DummyBundle, compile_c: Callable[[str], bytes]
) -> None:
    for value, name in enumerate(NAMES, 70):
        bundle.files[name] = compile_c(f"int ec_test_answer(void) {{ return {value}; }}")
    folder = BundleFolder(bundle.write())
    libraries = [load_library(pin_library(folder, name)) for name in NAMES]
    assert [answer(library) for library in libraries] == [70, 71]
    folder.close()


def test_the_same_content_is_pinned_once(
    bundle: DummyBundle, compile_c: Callable[[str], bytes]
) -> None:
    data = compile_c("int ec_test_answer(void) { return 99; }")
    bundle.files.update({name: data for name in NAMES})
    folder = BundleFolder(bundle.write())
    first = pin_library(folder, NAMES[0])
    descriptors = len(os.listdir("/proc/self/fd"))
    assert pin_library(folder, NAMES[1]) is first
    assert len(os.listdir("/proc/self/fd")) == descriptors
    folder.close()


def test_a_changed_library_is_refused_before_it_is_loaded(
    bundle: DummyBundle, compile_c: Callable[[str], bytes]
) -> None:
    source = "__attribute__((constructor)) void f(void) { __builtin_trap(); }"
    bundle.files[NAMES[0]] = b"a content that no other test has"
    path = bundle.write()
    (bundle.folder / NAMES[0]).write_bytes(compile_c(source))
    folder = BundleFolder(path)
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DamagedBundleError, match="file-size-differs"):
        pin_library(folder, NAMES[0])
    assert len(os.listdir("/proc/self/fd")) == descriptors
    folder.close()


def test_no_lock_is_held_while_a_library_is_hashed(
    bundle: DummyBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler's close may come then, and wait for a thread that pins another one."""
    bundle.files.update({name: name.encode() + b" hashed" for name in NAMES})
    folder = BundleFolder(bundle.write())
    check_hash, held = BundleFolder.check_hash, []

    def check(self: BundleFolder, name: str, fd: int) -> None:
        held.append(libraries._lock.locked())
        check_hash(self, name, fd)
        if len(held) == 1:  # another thread is faster
            assert not held[0]
            thread = threading.Thread(target=lambda: first.append(pin_library(folder, name)))
            thread.start()
            thread.join()

    first: list[libraries.PinnedLibrary] = []
    monkeypatch.setattr(BundleFolder, "check_hash", check)
    descriptors = len(os.listdir("/proc/self/fd"))
    pinned = pin_library(folder, NAMES[0])
    assert held == [False, False] and pinned is first[0]
    assert len(os.listdir("/proc/self/fd")) == descriptors + 1
    folder.close()


def test_a_child_finds_no_lock_taken() -> None:
    held = (libraries._lock, library._loaded_lock, weights._shared_lock)
    for lock in held:
        lock.acquire()
    pid = os.fork()
    if pid == 0:
        locks = (libraries._lock, library._loaded_lock, weights._shared_lock)
        os._exit(any(lock.locked() for lock in locks))
    for lock in held:
        lock.release()
    assert os.waitpid(pid, 0)[1] == 0


def test_symbols_stay_private(bundle: DummyBundle, compile_c: Callable[[str], bytes]) -> None:
    bundle.files[NAMES[0]] = compile_c("int ec_test_private(void) { return 1; }")
    folder = BundleFolder(bundle.write())
    load_library(pin_library(folder, NAMES[0]))
    with pytest.raises(AttributeError):
        ctypes.CDLL(None).ec_test_private  # noqa: B018
    folder.close()


def test_what_is_no_library(bundle: DummyBundle) -> None:
    folder = BundleFolder(bundle.write())
    with pytest.raises(NativeError, match=r"bucket-0\.so: can't be loaded"):
        load_library(pin_library(folder, NAMES[0]))
    folder.close()
