"""Versions on a device: what is installed, tried, confirmed and taken back, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import __main__ as program
from edgecompile.runtime.base.children import child_command
from edgecompile.runtime.base.errors import (
    DamagedBundleError,
    DeviceDiskError,
    EdgecompileError,
    StoreError,
)
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.model.open_bundle import open_bundle
from edgecompile.runtime.store import disk, store
from edgecompile.runtime.store import install as installing
from edgecompile.runtime.store.proof import Prover
from edgecompile.runtime.store.removal import collect
from edgecompile.runtime.store.state import Version
from edgecompile.runtime.store.store import Store, confirm, rollback
from tests.hostile.exchange import after, exchange
from tests.hostile.toy import PROBE, PROGRAMS, WEIGHTS, build_libraries, make_toy_bundle
from tests.runtime.signed import RELEASE, make_key
from tests.runtime.store.device import MODEL, Device

Attack = Callable[[Device], Path]


@pytest.fixture
def device(tmp_path: Path) -> Device:
    """A device that runs release 10, which has the floor 5."""
    device = Device(tmp_path / "device")
    device.run(device.release(10, floor=5))
    return device


def serving(device: Device) -> int:
    """The release that programs open by the link, whole and verified."""
    return device.number(Path(device.store.path, "current"))


def left(device: Device) -> set[str]:
    """The names of what lies among the versions."""
    return {path.name for path in Path(device.store.versions).iterdir()}


def test_an_update(device: Device) -> None:
    report = device.install(device.release(11, floor=11))
    assert (report["starts_left"], report["floor"]) == (3, 5)
    assert serving(device) == 11
    device.start()
    assert device.store.read().floor == 5  # only once it is known to be good
    confirm(device.store)
    confirm(device.store)
    state = device.store.read()
    assert (state.starts_left, state.floor, state.seen) == (None, 11, RELEASE["created"])
    with open_bundle(Path(device.store.path, "current"), trust=str(device.signed.trust)) as model:
        assert model.info["name"] == MODEL
    # The version before is below the floor now.
    with pytest.raises(EdgecompileError) as caught:
        rollback(device.store)
    assert caught.value.exit_code == 77
    assert serving(device) == 11


def test_equal_files_are_there_once(device: Device) -> None:
    old = Path(device.start())
    report = device.install(device.release(11))
    new = Path(device.start())
    for name in (WEIGHTS, PROBE, *PROGRAMS):
        assert (old / name).samefile(new / name)
    assert report["copied"] == len((new / "reports/plan.json").read_bytes())
    for folder, folders, files in os.walk(new):
        modes = {stat.S_IMODE(Path(folder, name).stat().st_mode) for name in files}
        assert modes <= {0o444}
        assert {stat.S_IMODE(Path(folder, name).stat().st_mode) for name in folders} <= {0o555}


def test_a_file_that_the_disk_lost_is_not_linked(device: Device) -> None:
    old = Path(device.start())
    (old / WEIGHTS).chmod(0o644)
    (old / WEIGHTS).write_bytes(bytes((old / WEIGHTS).stat().st_size))
    device.install(device.release(11))
    assert serving(device) == 11
    assert not (old / WEIGHTS).samefile(Path(device.start()) / WEIGHTS)


def test_a_damaged_version_that_nothing_uses_is_brought_again(device: Device) -> None:
    path = device.release(11)
    device.install(path)
    place = Path(device.start())
    device.install(device.release(12))
    shutil.rmtree(place / "golden")
    device.install(path)
    assert serving(device) == 11


def test_a_damaged_version_that_a_rollback_needs_is_not_replaced(device: Device) -> None:
    place = Path(device.start())
    device.run(device.release(11))
    shutil.rmtree(place / "golden")
    with pytest.raises(StoreError, match=r"is damaged \[store-version\]"):
        device.install(device.release(10, floor=5))
    assert serving(device) == 11


def test_an_installed_version_is_not_installed_again(device: Device) -> None:
    path = device.release(11)
    device.install(path)
    device.start()
    assert device.install(path)["starts_left"] == 2  # nor is its trial begun anew


def test_rollback_of_a_confirmed_version(device: Device) -> None:
    device.run(device.release(11))
    rollback(device.store)
    assert serving(device) == 10
    with pytest.raises(EdgecompileError, match=r"no version to return to.*\[store-previous\]"):
        rollback(device.store)


def test_a_version_that_replaces_one_on_trial_falls_back_to_the_confirmed_one(
    device: Device,
) -> None:
    device.install(device.release(11))
    device.install(device.release(12))
    for _ in range(4):
        path = device.start()
    assert device.number(path) == 10
    assert device.store.read().refused[0].endswith("-12")


def test_the_first_version_stays(tmp_path: Path) -> None:
    device = Device(tmp_path)
    device.install(device.release(1))
    assert {device.number(device.start()) for _ in range(6)} == {1}


def test_nothing_is_confirmed_that_was_never_started(device: Device) -> None:
    device.install(device.release(11))
    with pytest.raises(EdgecompileError, match=r"never started.*store-trial"):
        confirm(device.store)
    assert device.store.read().starts_left == 3


# --- What is refused
def unsigned(device: Device) -> Path:
    path = device.release(11)
    shutil.rmtree(path / "signatures")
    return path


def by_another(device: Device) -> Path:
    path = device.release(11)
    device.signed.path = path
    device.signed.sign(key=make_key())
    return path


def changed(name: str) -> Attack:
    def attack(device: Device) -> Path:
        path = device.release(11)
        data = bytearray((path / name).read_bytes())
        data[-1] ^= 1
        (path / name).write_bytes(data)
        return path

    return attack


def unlisted(name: str) -> Attack:
    def attack(device: Device) -> Path:
        path = device.release(11)
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(b"import os")
        return path

    return attack


def of_another_model(device: Device) -> Path:
    bundle = make_toy_bundle(device.place / "other.ecb", build_libraries())
    bundle.document["name"] = "other"
    device.sign(bundle, name="other")
    return bundle.folder


def same_number(device: Device) -> Path:
    bundle = make_toy_bundle(device.place / "same.ecb", build_libraries())
    device.sign(bundle, number=10)
    return bundle.folder


def taken_back(device: Device) -> Path:
    path = device.release(11)
    device.install(path)
    rollback(device.store)
    return path


def expired(device: Device) -> Path:
    device.signed.policy["expiry"] = "enforce"
    device.signed.write_policy()
    return device.release(11, expires="2026-01-01T00:00:01Z")


def expired_by_what_ran(device: Device) -> Path:
    device.run(device.release(11, created="2999-01-01T00:00:00Z"))
    device.signed.policy["expiry"] = "enforce"
    device.signed.write_policy()
    return device.release(12, created="2900-01-01T00:00:00Z", expires="2998-01-01T00:00:00Z")


#: Where memory runs out, the kernel ends a process that has this adjustment before any other.
AS_IF_MEMORY_RAN_OUT = """
    char text[8] = "";
    if (read(open("/proc/self/oom_score_adj", O_RDONLY), text, 4) == 4 && text[0] == '1') raise(SIGKILL);
"""


def with_probe(code: str) -> Attack:
    """A bundle whose first library does something when it is loaded."""

    def attack(device: Device) -> Path:
        source = device.place / "probe.c"
        source.write_text(
            "#include <fcntl.h>\n#include <signal.h>\n#include <unistd.h>\n"
            f"__attribute__((constructor)) static void run(void) {{ {code} }}\n"
        )
        library = device.place / "probe.so"
        subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
        bundle = make_toy_bundle(device.place / "bad.ecb", build_libraries())
        bundle.files[PROBE] = library.read_bytes()
        device.sign(bundle, number=11)
        return bundle.folder

    return attack


ATTACKS: dict[str, tuple[int, str, Attack]] = {
    "unsigned": (75, "signature-missing", unsigned),
    "signed by another": (76, "signature-trusted", by_another),
    "another model": (76, "signature-trusted", of_another_model),
    "release.json": (76, "statement-files", changed("release.json")),
    "manifest.json": (76, "statement-files", changed("manifest.json")),
    "report": (22, "file-hash", changed("reports/plan.json")),
    "byte code": (22, "file-unlisted", unlisted("__pycache__/__init__.cpython-311.pyc")),
    "sitecustomize": (22, "file-unlisted", unlisted("sitecustomize.py")),
    "git": (22, "file-unlisted", unlisted(".git/x")),
    "below the floor": (77, "store-floor", lambda device: device.release(4)),
    "same number": (77, "store-number", same_number),
    "taken back": (77, "store-refused", taken_back),
    "expired": (78, "release-expired", expired),
    "expired by what ran": (78, "store-expired", expired_by_what_ran),
    "golden vectors differ": (27, "store-proof", lambda device: device.release(11, good=False)),
    "crashes": (27, "store-proof", with_probe("raise(SIGSEGV);")),
    "hangs": (27, "store-proof", with_probe("for (;;) pause();")),
    "eats memory": (27, "store-proof", with_probe(AS_IF_MEMORY_RAN_OUT)),
    "ends": (27, "store-proof", with_probe("_exit(0);")),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_refused_leaves_the_old_version(device: Device, name: str) -> None:
    code, rule, attack = ATTACKS[name]
    path = attack(device)
    before, lying, version = device.store.read(), left(device), serving(device)
    if name == "hangs":
        device.prover = device.prover._replace(seconds=3)
    with pytest.raises(EdgecompileError) as caught:
        device.install(path)
    assert caught.value.exit_code == code
    assert f"[{rule}]" in caught.value.message
    assert device.store.read() == before
    assert serving(device) == version
    assert left(device) == lying


@pytest.mark.parametrize("name", [PROBE, WEIGHTS, "golden/0-hint.npz"])
def test_a_changed_file_is_refused_or_not_read(device: Device, tmp_path: Path, name: str) -> None:
    device.install(changed(name)(device))  # the version before has what the manifest lists
    assert serving(device) == 11
    first = Device(tmp_path / "first")
    with pytest.raises(DamagedBundleError, match=name):
        first.install(changed(name)(first))
    assert left(first) == set()


@pytest.mark.parametrize("name", [PROBE, WEIGHTS])
def test_a_file_exchanged_after_the_signatures_were_checked_is_refused(
    device: Device, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = device.release(11)
    new = bytes((path / name).stat().st_size)
    # Nothing is linked that could stand for it.
    monkeypatch.setattr("edgecompile.runtime.store.install.list_installed", lambda places: {})
    done = after(monkeypatch, BundleFolder, "check_names", lambda: exchange(path / name, new))
    with pytest.raises(DamagedBundleError, match=name):
        device.install(path)
    assert done
    assert serving(device) == 10


def test_a_bundle_exchanged_after_the_signatures_were_checked_is_not_read(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = device.release(11), device.release(12, good=False)

    def act() -> None:
        path.rename(device.place / "moved")
        other.rename(path)

    done = after(monkeypatch, BundleFolder, "check_names", act)
    device.install(path)
    assert done
    assert serving(device) == 11


def test_a_disk_that_is_full_at_each_write(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lying, write = device.release(11), left(device), os.write
    room = free = 0

    def fill(fd: int, data: bytes) -> int:
        nonlocal free
        free -= 1
        if free < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    while True:
        free = room
        with monkeypatch.context() as patched:
            patched.setattr(disk.os, "write", fill)
            try:
                device.install(path)
                break
            except DeviceDiskError:
                room += 1
        assert left(device) == lying
        assert serving(device) == 10
    assert room >= 4  # a report, a signature, the release, the manifest
    assert serving(device) == 11


# --- Several processes
def test_gc_keeps_what_is_open(device: Device) -> None:
    trust = str(device.signed.trust)
    with open_bundle(device.start(), trust=trust) as model:
        device.run(device.release(11))
        device.run(device.release(12))
        opened = collect(device.store)
        assert (opened["open"], opened["removed"]) == (
            [model.info["manifest_sha256"][:16] + "-10"],
            [],
        )
    assert collect(device.store)["removed"] == opened["open"]
    assert left(device) == {device.store.read().current, device.store.read().previous}


def test_gc_removes_what_killed_commands_left(device: Device) -> None:
    place = Path(device.store.versions, ".new-x")
    (place / "code").mkdir(parents=True)
    place.chmod(0o555)
    temporary = Path(device.store.path, ".edgecompile-1-a.tmp")
    temporary.touch()
    collect(device.store)
    assert not place.exists()
    assert not temporary.exists()


def command(device: Device, *arguments: str) -> subprocess.Popen[bytes]:
    start, where = child_command("edgecompile.runtime")
    return subprocess.Popen(
        [*start, *arguments, "--store", str(device.root), "--json"], stdout=subprocess.PIPE, **where
    )


def test_two_installations_at_once(device: Device) -> None:
    paths = [device.release(11), device.release(12)]
    trust = ("--trust", str(device.signed.trust))
    running = [command(device, "install", str(path), *trust) for path in (*paths, *paths)]
    reports = [json.loads(process.communicate()[0]) for process in running]
    assert [process.returncode for process in running] == [0] * 4
    assert {report["version"] for report in reports} == set(device.store.read().versions) - {
        device.store.read().previous
    }
    assert serving(device) in (11, 12)


def test_a_start_does_not_wait_for_an_installation(device: Device) -> None:
    with device.store.locked("installing"):
        process = command(device, "start", MODEL)
        assert json.loads(process.communicate()[0])["starts_left"] is None


def test_the_process_of_the_test_starts_before_the_bundle_is_copied(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, copy, popen = [], installing.copy_bundle, subprocess.Popen

    def start(*arguments: Any, **options: Any) -> Any:
        seen.append("start")
        return popen(*arguments, **options)

    def note(*arguments: Any) -> int:
        seen.append("copy")
        return copy(*arguments)

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(installing, "copy_bundle", note)
    device.install(device.release(11))
    assert seen == ["start", "copy"]


def leaving(mark: Path) -> str:
    """Code that leaves an empty file."""
    return f'close(creat("{mark}", 0644));'


@pytest.mark.parametrize(("said", "code"), [(b"", 1), (b"1", 26)], ids=["nothing", "a byte"])
def test_a_test_without_a_word_of_its_installer_opens_nothing(
    device: Device, tmp_path: Path, said: bytes, code: int
) -> None:
    path = with_probe(leaving(tmp_path / "mark"))(device)
    start, where = child_command("edgecompile.runtime.tester")
    words = [*start, "selftest", str(path), "--json"]
    done = subprocess.run(words, input=said, stdout=subprocess.PIPE, **where)
    assert (done.returncode, bool(done.stdout)) == (code, bool(said))
    assert (tmp_path / "mark").exists() == bool(said)


def test_nothing_is_opened_of_a_copy_that_is_refused(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = with_probe(leaving(tmp_path / "mark"))(device)
    started: list[Any] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> Any:
        started.append(popen(*arguments, **options))
        return started[-1]

    def refuse(*arguments: Any, **options: Any) -> None:
        # As long as the installer is busy, the test could open what is copied.
        started[0].stdin.close()
        started[0].wait()
        raise DamagedBundleError("refused behind the copy")

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(installing, "_verify", refuse)
    with pytest.raises(DamagedBundleError, match="behind the copy"):
        device.install(path)
    assert len(started) == 1 and not (tmp_path / "mark").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_proof_runs_as_the_service_s_user() -> None:
    # Others can't enter the folders of tmp_path, and perhaps not that of the interpreter.
    try:
        subprocess.run([sys.executable, "-c", "import numpy"], user="nobody", check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("nobody can't run this Python")
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        device = Device(Path(place, "device"))
        trace = Path(place, "trace")
        trace.mkdir(mode=0o777)
        trace.chmod(0o777)
        device.prover = Prover("nobody", 600, str(device.signed.trust))
        with pytest.raises(EdgecompileError):
            device.install(with_probe(leaving(trace / "file"))(device))
        assert (trace / "file").stat().st_uid != 0


# --- The store itself
@pytest.mark.parametrize("name", ["", MODEL, MODEL + "/versions"])
def test_a_store_that_others_can_change(device: Device, name: str) -> None:
    (device.root / name).chmod(0o777)
    with pytest.raises(EdgecompileError, match=r"others may change it.*store-folder") as caught:
        device.start()
    assert caught.value.exit_code == 80


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("state_version", 2),
        ("current", "0123456789abcdef"),
        ("current", "../../x"),
        ("starts_left", 4),
        ("starts_left", True),
        ("floor", -1),
        ("refused", ["../x"]),
        ("versions", {"../x": Version("0" * 64, 1, 0, "")._asdict()}),
        ("versions", []),
    ],
)
def test_a_state_that_nobody_wrote(device: Device, key: str, value: Any) -> None:
    path = Path(device.store.path, "state.json")
    document = {**json.loads(path.read_text()), key: value}
    path.write_text(json.dumps(document))
    with pytest.raises(EdgecompileError) as caught:
        device.start()
    assert caught.value.exit_code == 80


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".", "x" * 300, "\n"])
def test_a_model_that_has_no_name(device: Device, name: str) -> None:
    with pytest.raises(EdgecompileError, match=r"isn't the name of a model.*\[store-model\]"):
        Store(str(device.root), name)


def test_every_rule_is_documented() -> None:
    source = "\n".join(path.read_text() for path in Path(store.__file__).parent.glob("*.py"))
    page = Path(__file__).parents[3] / "docs" / "rollout.md"
    rule = "(?:store|archive|image)-[a-z]+"
    documented = set(re.findall(rf"^- `\[({rule})\]`", page.read_text(), re.MULTILINE))
    assert set(re.findall(rf'[\["]({rule})[\]"]', source)) == documented


# --- Commands
def test_commands(device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        code = program.main([*arguments, "--store", str(device.root)])
        return code, capsys.readouterr().out

    path, trust = str(device.release(11)), str(device.signed.trust)
    assert run("install", path, "--trust", trust)[0] == 0
    code, text = run("start", MODEL)
    assert (code, device.number(text.rstrip("\n"))) == (0, 11)
    assert "on trial, 2 of 3 starts left" in run("status", MODEL)[1]
    report = json.loads(run("status", MODEL, "--json")[1])
    assert (report["model"], report["path"]) == (MODEL, text.rstrip("\n"))
    assert run("confirm", MODEL)[0] == 0
    assert run("rollback", MODEL)[0] == 0
    assert serving(device) == 10
    assert report["current"] in run("gc", MODEL)[1]
    assert run("start", "other")[0] == 80
    code, text = run("install", path, "--trust", trust, "--json")
    assert (code, json.loads(text)["error"]["class"]) == (77, "RefusedReleaseError")
    assert run("install", path, "--seconds", "0")[0] == 24
    assert run("install", path, "--trust", trust, "--user", "no such user")[0] in (24, 77)
