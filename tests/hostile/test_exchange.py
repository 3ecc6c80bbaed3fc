"""Files that are exchanged or changed between check and use: what was hashed is what is used.

Each test makes the change at one point of opening a bundle, by wrapping the function that runs
there.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.base.errors import BundleError, DamagedBundleError, NativeError
from edgecompile.runtime.commands.selftest import run_selftest
from edgecompile.runtime.cpu import host as cpu
from edgecompile.runtime.cpu import libraries as libraries_module
from edgecompile.runtime.cpu import library
from edgecompile.runtime.cpu import programs as programs_module
from edgecompile.runtime.cpu.libraries import PinnedLibrary, pin_library
from edgecompile.runtime.format.files import hashes, weights
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.files.weights import map_weights
from edgecompile.runtime.model import model as model_module
from edgecompile.runtime.model.open_bundle import open_bundle
from tests.hostile.conftest import Toy
from tests.hostile.exchange import after, before, exchange, other_weights, run_once, write_into
from tests.hostile.fuzzer import build_programs
from tests.hostile.loaders import NativeLoader
from tests.hostile.toy import PROBE, PROGRAMS, RUNTIME, WEIGHTS

pytestmark = pytest.mark.slow

LIBRARIES = (PROBE, RUNTIME, *PROGRAMS)


def test_the_toy_bundle_is_valid(toy: Toy) -> None:
    path = toy.bundle.write()
    run_once(toy)
    report = run_selftest(path)
    assert report["ok"], report


def test_the_intruder_leaves_a_trace(toy: Toy) -> None:
    # Otherwise its absence would prove nothing.
    toy.bundle.files[PROBE] = toy.libraries.intruder
    toy.bundle.write()
    with pytest.raises(NativeError, match="has no ec_probe"):
        run_once(toy)
    assert toy.trace.exists()


@pytest.mark.parametrize("verify", ["fast", "auto", "full"])
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_exchanged_after_the_sizes_were_checked_is_refused(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, name: str, verify: str
) -> None:
    toy.bundle.write()
    size = len(toy.bundle.files[name])
    intruder = toy.libraries.intruder[:size].ljust(size, b"\0")
    checked = "check_hashes" if verify == "full" else "check_sizes"
    done = after(
        monkeypatch, BundleFolder, checked, lambda: exchange(toy.bundle.folder / name, intruder)
    )
    with pytest.raises(DamagedBundleError, match=rf"{os.path.basename(name)}.*file-hash"):
        run_once(toy, verify=verify)
    assert done
    assert not toy.trace.exists()


@pytest.mark.parametrize(
    ("name", "owner", "function"),
    [
        (PROBE, cpu, "load_library"),
        (RUNTIME, library, "load_library"),
        (PROGRAMS[0], library.RuntimeLibrary, "open_program"),
        (PROGRAMS[1], library.RuntimeLibrary, "open_program"),
    ],
)
def test_a_library_exchanged_after_it_was_hashed_is_not_loaded(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, name: str, owner: Any, function: str
) -> None:
    toy.bundle.write()
    place = toy.bundle.folder / name
    original = place.read_bytes()

    def act() -> None:
        exchange(place, toy.libraries.intruder)

    if name == PROGRAMS[1]:
        # The second call: the first one opens the other program.
        first = getattr(owner, function)

        def second(*arguments: Any) -> Any:
            result = first(*arguments)
            monkeypatch.setattr(owner, function, first)
            done.extend(before(monkeypatch, owner, function, act))
            calls.append(1)
            return result

        done: list[bool] = []
        calls: list[int] = []
        monkeypatch.setattr(owner, function, second)
    else:
        done = before(monkeypatch, owner, function, act)
    run_once(toy)
    assert place.read_bytes() != original
    assert not toy.trace.exists()


@pytest.mark.parametrize(
    ("name", "owner", "function"),
    [
        (PROBE, PinnedLibrary, "check_again"),
        (RUNTIME, library, "load_library"),
        (PROGRAMS[0], library.RuntimeLibrary, "open_program"),
    ],
)
def test_a_library_written_to_after_it_was_hashed_is_refused(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, name: str, owner: Any, function: str
) -> None:
    toy.bundle.write()
    place = toy.bundle.folder / name
    size = place.stat().st_size
    intruder = toy.libraries.intruder[:size].ljust(size, b"\0")
    done = before(monkeypatch, owner, function, lambda: write_into(place, intruder))
    with pytest.raises(DamagedBundleError, match=r"file-hash\]; it changed since"):
        run_once(toy)
    assert done
    assert not toy.trace.exists()


def test_a_descriptor_that_somebody_else_closed_is_not_loaded(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a daemon does that closes all descriptors it doesn't know.
    toy.bundle.write()
    other = toy.bundle.folder / "intruder.so"
    other.write_bytes(toy.libraries.intruder)
    pin = programs_module.pin_library

    def pin_and_lose(folder: BundleFolder, name: str) -> PinnedLibrary:
        pinned = pin(folder, name)
        fd = os.open(other, os.O_RDONLY)
        os.dup2(fd, pinned.fd)
        os.close(fd)
        return pinned

    monkeypatch.setattr(programs_module, "pin_library", pin_and_lose)
    with pytest.raises(DamagedBundleError, match="it changed since"):
        run_once(toy)
    assert not toy.trace.exists()


def test_a_pinned_library_written_to_is_not_used_by_the_next_model(toy: Toy) -> None:
    toy.bundle.write()
    place = toy.bundle.folder / PROGRAMS[0]
    folder = BundleFolder(str(toy.bundle.folder))
    first = pin_library(folder, PROGRAMS[0])
    data = place.read_bytes()
    write_into(place, b"\0" * len(data))
    with pytest.raises(DamagedBundleError, match="file-hash"):
        pin_library(folder, PROGRAMS[0])
    exchange(place, data)
    second = pin_library(folder, PROGRAMS[0])
    assert (first.entry.sha256, first.fd) != (second.entry.sha256, second.fd)
    assert pin_library(folder, PROGRAMS[0]) is second
    folder.close()


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_c_interface_looks_at_a_pinned_library_again(toy: Toy, name: str) -> None:
    toy.bundle.write()
    place = toy.bundle.folder / name
    fast = NativeLoader("plain", build_programs()["plain"], wall_seconds=60, variables={})
    fast._command[1] = "1"  # ECR_VERIFY_FAST: only what is loaded is hashed
    assert fast.ask(toy.bundle.folder).code == 0
    # The last byte belongs to no part of the library.
    data = place.read_bytes()
    write_into(place, data[:-1] + bytes([data[-1] ^ 1]))
    answer = fast.ask(toy.bundle.folder)
    assert (answer.code, answer.rules) == (22, {"file-hash"}), answer
    exchange(place, data)
    assert fast.ask(toy.bundle.folder).code == 0
    assert fast.close() == []


def test_a_new_name_is_no_change_of_the_content(toy: Toy, tmp_path: Path) -> None:
    folder = BundleFolder(toy.bundle.write())
    first = pin_library(folder, RUNTIME)
    time.sleep(0.02)
    os.link(toy.bundle.folder / RUNTIME, tmp_path / "copy.so")
    assert pin_library(folder, RUNTIME) is first
    first.check_again()
    folder.close()


def test_without_proc_nothing_is_remembered_by_its_name(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.bundle.write()
    monkeypatch.setattr(libraries_module.os.path, "exists", lambda path: False)
    place = toy.bundle.folder / PROGRAMS[0]
    folder = BundleFolder(str(toy.bundle.folder))
    pinned = pin_library(folder, PROGRAMS[0])
    assert (pinned.path, pinned.fd) == (str(place), -1)
    pinned.check_again()
    size = len(place.read_bytes())
    exchange(place, toy.libraries.intruder[:size].ljust(size, b"\0"))
    with pytest.raises(DamagedBundleError, match="isn't the file that was hashed"):
        pinned.check_again()
    with pytest.raises(DamagedBundleError, match="file-hash"):
        pin_library(folder, PROGRAMS[0])
    folder.close()


def test_weights_written_to_after_a_model_was_opened_are_hashed_again(toy: Toy) -> None:
    folder = BundleFolder(toy.bundle.write())
    kept = map_weights(folder, WEIGHTS, check_hash=True)
    write_into(toy.bundle.folder / WEIGHTS, other_weights(toy))
    with pytest.raises(DamagedBundleError, match="file-hash"):
        map_weights(folder, WEIGHTS, check_hash=True)
    assert kept.constants
    folder.close()


def test_a_folder_exchanged_for_a_link_is_refused(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    toy.bundle.write()

    def act() -> None:
        code = toy.bundle.folder / "code"
        code.rename(tmp_path / "elsewhere")
        code.symlink_to(tmp_path / "elsewhere")

    assert after(monkeypatch, BundleFolder, "check_sizes", act) == []
    with pytest.raises(DamagedBundleError, match="file-kind"):
        run_once(toy)


def test_another_bundle_in_its_place_is_not_mixed_in(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = Path(toy.bundle.write())

    def act() -> None:
        path.rename(tmp_path / "moved.ecb")
        toy.bundle.files = dict.fromkeys(toy.bundle.files, toy.libraries.intruder)
        toy.bundle.document["name"] = "another"
        toy.bundle.write()

    done = after(monkeypatch, BundleFolder, "check_sizes", act)
    with open_bundle(path, threads=1) as opened:
        assert done
        assert opened.info["name"] == "tiny"
    assert not toy.trace.exists()


def test_the_selftest_reads_vectors_of_the_bundle_that_it_opened(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = Path(toy.bundle.write())

    def act() -> None:
        path.rename(tmp_path / "moved.ecb")
        toy.bundle.document["outputs"][0]["name"] = "renamed"
        toy.bundle.files = {name: b"another" for name in toy.bundle.files}
        toy.bundle.write()

    done = after(monkeypatch, model_module.Model, "warm_up", act)
    report = run_selftest(str(path))
    assert done
    assert report["ok"], report


@pytest.mark.parametrize("verify", ["auto", "full"])
def test_weights_exchanged_after_the_first_check_are_refused(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, verify: str
) -> None:
    toy.bundle.write()
    place = toy.bundle.folder / WEIGHTS
    checked = "check_hashes" if verify == "full" else "check_sizes"
    done = after(monkeypatch, BundleFolder, checked, lambda: exchange(place, other_weights(toy)))
    with pytest.raises(DamagedBundleError, match=r"weights\.fp32.*file-hash"):
        run_once(toy, verify=verify)
    assert done


@pytest.mark.parametrize("function", ["read_constants", "hash_descriptor"])
@pytest.mark.parametrize("moment", [before, after])
def test_weights_exchanged_once_they_are_open_are_not_used(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, function: str, moment: Any
) -> None:
    folder = BundleFolder(toy.bundle.write())
    place = toy.bundle.folder / WEIGHTS
    owner = weights if function == "read_constants" else hashes
    done = moment(monkeypatch, owner, function, lambda: exchange(place, other_weights(toy)))
    mapped = map_weights(folder, WEIGHTS, check_hash=True)
    folder.close()
    assert done
    assert bytes(mapped._bytes) == toy.bundle.files[WEIGHTS] != place.read_bytes()


def test_weights_changed_in_place_before_their_hash_are_refused(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = BundleFolder(toy.bundle.write())
    place = toy.bundle.folder / WEIGHTS
    after(monkeypatch, weights, "read_constants", lambda: place.write_bytes(other_weights(toy)))
    with pytest.raises(DamagedBundleError, match="file-hash"):
        map_weights(folder, WEIGHTS, check_hash=True)
    folder.close()


@pytest.mark.parametrize("size", [0, 8, 100])
@pytest.mark.parametrize("moment", [before, after])
def test_weights_cut_off_while_they_are_opened_are_refused(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, moment: Any, size: int
) -> None:
    folder = BundleFolder(toy.bundle.write())
    place = toy.bundle.folder / WEIGHTS
    done = moment(monkeypatch, weights, "read_constants", lambda: os.truncate(place, size))
    with pytest.raises(BundleError):
        map_weights(folder, WEIGHTS, check_hash=False)
    folder.close()
    assert done


def test_one_file_of_two_bundles_has_the_hash_of_each(toy: Toy, tmp_path: Path) -> None:
    first = BundleFolder(toy.bundle.write())
    toy.bundle.folder = tmp_path / "second.ecb"
    toy.bundle.document = toy.bundle.listed()
    entry = toy.bundle.document["files"][WEIGHTS]
    entry["sha256"] = hashlib.sha256(b"another content").hexdigest()
    toy.bundle.write()
    (tmp_path / "second.ecb" / WEIGHTS).unlink()
    os.link(tmp_path / "toy.ecb" / WEIGHTS, tmp_path / "second.ecb" / WEIGHTS)
    second = BundleFolder(str(tmp_path / "second.ecb"))
    kept = map_weights(first, WEIGHTS, check_hash=True)
    with pytest.raises(DamagedBundleError, match="file-hash"):
        map_weights(second, WEIGHTS, check_hash=True)
    assert map_weights(first, WEIGHTS, check_hash=True) is kept
    for folder in (first, second):
        folder.close()


def test_a_file_that_grows_is_not_hashed_for_ever(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = BundleFolder(toy.bundle.write())
    place = toy.bundle.folder / WEIGHTS
    calls = []
    preadv = os.preadv

    def growing(*arguments: Any) -> int:
        calls.append(1)
        assert len(calls) < 100
        with place.open("ab") as file:
            file.write(bytes(4096))
        return preadv(*arguments)

    fd = folder.open(WEIGHTS)
    monkeypatch.setattr(os, "preadv", growing)
    with pytest.raises(DamagedBundleError, match="file-size-differs"):
        folder.check_hash(WEIGHTS, fd)
    monkeypatch.undo()
    os.close(fd)
    folder.close()
