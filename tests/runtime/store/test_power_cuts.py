"""A loss of power at each change of each command: a whole, verified version serves. Planted bugs are found."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.base.errors import EdgecompileError, SelftestError
from edgecompile.runtime.store import install as installing
from edgecompile.runtime.store import removal
from edgecompile.runtime.store import store as commands
from edgecompile.runtime.store.removal import collect
from edgecompile.runtime.store.store import Store
from tests.image.layouts import write
from tests.runtime.store.device import MODEL, Device, pack
from tests.runtime.store.power import Recorder, write_tree

pytestmark = pytest.mark.slow

#: Workspaces, and folders that aren't versions yet: what serves a version reads nothing of them.
UNREAD = re.compile(rf"\.unpacked(/|$)|{MODEL}/versions/\{installing.STAGE}-")


@pytest.fixture
def device(tmp_path: Path) -> Device:
    """A device that runs release 1, and has release 2 as a bundle."""
    device = Device(tmp_path / "device")
    device.run(device.release(1))
    device.release(2)
    return device


def record(device: Device, command: Callable[[], Any], **syncs: bool) -> Recorder:
    device.root.mkdir(exist_ok=True)
    with Recorder(device.root, **syncs) as recorder:
        command()
    return recorder


def find_faults(device: Device, recorder: Recorder, allowed: set[int]) -> Iterator[str]:
    """The disks after a cut that serve another release than those allowed, or none that is whole."""
    assert len(recorder.changes) > recorder.base + 2, "nothing was recorded"
    for number, tree in enumerate(recorder.cuts(UNREAD)):
        root = device.place / "cut"
        write_tree(tree, root)
        try:
            served = device.served(root)
            if not served <= allowed:
                yield f"cut {number}: serves {served}"
        except (EdgecompileError, AssertionError, OSError) as error:
            yield f"cut {number}: {error}"
        finally:
            shutil.rmtree(root)


def count_starts(device: Device, version: int, **syncs: bool) -> int:
    """How often a version on trial is started whose service loses the power at once; at most 9."""
    for count in range(9):
        with Recorder(device.root, **syncs) as recorder:
            path = device.start()
        if device.number(path) != version:
            return count
        tree = recorder.worst()
        shutil.rmtree(device.root)
        write_tree(tree, device.root)
    return 9


def switch(device: Device) -> None:
    """Release 2 on trial."""
    device.install(device.place / "2.ecb")


def use_up(device: Device) -> None:
    """Release 2 on trial without a start left."""
    switch(device)
    for _ in range(3):
        device.start()


def take_back(device: Device) -> None:
    use_up(device)
    device.start()


def in_tar(device: Device) -> None:
    device.install(pack(device.place / "2.ecb", device.place / "2.tar", "w:gz"))


def in_layout(device: Device) -> None:
    layout = device.place / "2.oci"
    write(device.place / "2.ecb", "--only-bundle", "-o", layout)
    device.install(f"oci:{layout}")


COMMANDS: dict[str, tuple[Callable[[Device], Any], Callable[[Device], Any], set[int]]] = {
    "install": (lambda device: None, switch, {1, 2}),
    "install a tar": (lambda device: None, in_tar, {1, 2}),
    "install a layout": (lambda device: None, in_layout, {1, 2}),
    "start": (switch, Device.start, {2}),
    "last start": (use_up, Device.start, {1, 2}),
    "confirm": (lambda d: (switch(d), d.start()), lambda d: commands.confirm(d.store), {2}),
    "rollback": (switch, lambda d: commands.rollback(d.store), {1, 2}),
    "gc": (take_back, lambda d: collect(d.store), {1}),
    "gc in a trial": (
        lambda d: (take_back(d), d.install(d.release(3))),
        lambda d: collect(d.store),
        {3},
    ),
}


@pytest.mark.parametrize(
    ("name", "at_once"), [*((name, False) for name in COMMANDS), ("install", True)]
)
def test_a_whole_version_serves_after_each_cut(device: Device, name: str, at_once: bool) -> None:
    before, command, allowed = COMMANDS[name]
    before(device)
    recorder = record(device, lambda: command(device), at_once=at_once)
    assert list(find_faults(device, recorder, allowed)) == []


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("form", ["folder", "tar"])
def test_the_first_installation(tmp_path: Path, form: str, at_once: bool) -> None:
    device = Device(tmp_path)
    path = device.release(1)
    if form == "tar":
        path = pack(path, tmp_path / "1.tar")
    recorder = record(device, lambda: device.install(path), at_once=at_once)
    assert list(find_faults(device, recorder, {1})) == []


@pytest.mark.parametrize(("install", "cuts"), [(switch, 8), (in_tar, 4)])
def test_an_installation_that_was_cut_is_done_again(
    device: Device, install: Callable[[Device], None], cuts: int
) -> None:
    recorder = record(device, lambda: install(device))
    trees = list(recorder.cuts())
    root = device.root
    for tree in trees[:: len(trees) // cuts]:
        device.root = device.place / "again"
        write_tree(tree, device.root)
        install(device)
        collect(device.store)
        assert device.number(device.start()) == 2
        names = {path.name for path in Path(device.store.versions).iterdir()}
        assert names == set(device.store.read().versions)
        assert len(names) == 2 and not (device.root / ".unpacked").exists()
        shutil.rmtree(device.root)
    device.root = root


def test_a_bad_version_is_gone_after_exactly_three_starts(device: Device) -> None:
    switch(device)
    assert count_starts(device, 2) == 3
    assert device.number(device.start()) == 1


# --- Planted bugs: each is found
@pytest.mark.parametrize("at_once", [False, True])
def test_found_when_nobody_waits_for_a_version(
    device: Device, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    monkeypatch.setattr(installing, "sync_tree", lambda path, fd: None)
    recorder = record(device, lambda: switch(device), at_once=at_once)
    assert any(find_faults(device, recorder, {1, 2}))


def test_found_when_the_folder_is_opened_after_the_files(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_tree = installing.sync_tree

    def late(path: str, fd: int) -> None:
        with installing.open_folder(path) as own:
            sync_tree(path, own)

    monkeypatch.setattr(installing, "sync_tree", late)
    recorder = record(device, lambda: switch(device), at_once=True)
    assert any(find_faults(device, recorder, {1, 2}))


@pytest.mark.parametrize("syncs", [{"files": False}, {"folders": False}])
def test_found_without_fsync(device: Device, syncs: dict[str, bool]) -> None:
    recorder = record(device, lambda: switch(device), **syncs)
    assert any(find_faults(device, recorder, {1, 2}))


def test_found_when_the_link_comes_before_the_data(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring = installing._bring

    def early(folder: Any, store: Store, state: Any, version: Any, *rest: Any) -> int:
        store.change(lambda now: now.tried(version))
        return bring(folder, store, state, version, *rest)

    monkeypatch.setattr(installing, "_bring", early)
    recorder = record(device, lambda: switch(device))
    assert any(find_faults(device, recorder, {1, 2}))


def test_found_when_the_link_comes_before_the_proof(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.release(2, good=False)

    def attempt() -> None:
        with pytest.raises(SelftestError):
            switch(device)

    assert list(find_faults(device, record(device, attempt), {1})) == []

    @contextmanager
    def late(prover: Any, path: str) -> Iterator[Callable[[str], None]]:
        def test(sha256: str) -> None:
            version, _ = installing._describe(_opened(device, path))
            place = str(Path(path).with_name(version.id))
            installing.rename(path, place)
            device.store.change(lambda now: now.tried(version))
            prover.prove(place, sha256)

        yield test

    begin = installing.Prover.begin
    monkeypatch.setattr(
        installing.Prover,
        "begin",
        lambda prover, path: (late if ".new-" in path else begin)(prover, path),
    )
    monkeypatch.setattr(installing, "remove", lambda path: None)
    assert any(find_faults(device, record(device, attempt), {1}))


def _opened(device: Device, path: str) -> Any:
    from edgecompile.runtime.format.files.folder import BundleFolder

    folder = BundleFolder(path, trust=str(device.signed.trust))
    folder.close()
    return folder


def test_found_when_the_count_comes_after_the_start(device: Device) -> None:
    switch(device)
    assert count_starts(device, 2, files=False, folders=False) == 9


@pytest.fixture
def killed(device: Device) -> Iterator[Recorder]:
    """A device on which a rollback was killed before the disk had it; its programs see it all the same."""
    use_up(device)
    recorder = Recorder(device.root, folders=False)
    with recorder:
        device.start()
    recorder.folders = True
    yield recorder


def test_gc_waits_for_what_a_killed_command_did(device: Device, killed: Recorder) -> None:
    with killed:
        collect(device.store)
    assert list(find_faults(device, killed, {1, 2})) == []


def test_found_when_gc_comes_too_early(
    device: Device, killed: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "sync_folder", lambda path: None)
    for name in ("settle", "write"):
        monkeypatch.setattr(Store, name, lambda store, state: None)
    with killed:
        collect(device.store)
    assert any(find_faults(device, killed, {1, 2}))
