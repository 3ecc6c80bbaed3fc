"""What scripts/container leaves when it is ended in the midst of a Debian root: with a fake debootstrap."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.deploy import test_containers as containers
from tests.needs import lack

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: Writes into its folder, says which process it is, and stays.
DEBOOTSTRAP = """#!/bin/sh
for folder; do case $folder in */root) break ;; esac; done
echo x >"$folder/file"
echo $$ >"$LOG.pid"
exec sleep 1000
"""
#: Has no rights: what was begun isn't ended with it.
UNSHARE = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    if not KEYRING.exists():
        lack(f"{KEYRING} isn't there (Debian's package debian-archive-keyring)")
    engines = tmp_path / "engines"
    engines.mkdir()
    programs = {"docker": containers.FAKE_ENGINE, "debootstrap": DEBOOTSTRAP, "unshare": UNSHARE}
    programs["id"] = "#!/bin/sh\necho 0\n"
    for name, text in programs.items():
        (engines / name).write_text(text)
        (engines / name).chmod(0o755)
    return containers.TestScript().make_bundle(tmp_path)


def start(bundle: Path, *arguments: str) -> subprocess.Popen[str]:
    """The script, once it makes a root."""
    folder = bundle.parent
    (folder / "log.pid").unlink(missing_ok=True)
    environment = {
        "PATH": f"{folder / 'engines'}:/usr/bin:/bin",
        "LOG": str(folder / "log"),
        "FAILS": "|docker image||docker pull|",
        "EDGECOMPILE_PYTHON": sys.executable,
        "TMPDIR": str(folder),
    }
    process = subprocess.Popen(
        [str(containers.SCRIPT), str(bundle), *arguments], env=environment, cwd=folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not (folder / "log.pid").exists() or not (folder / "log.pid").read_text():
        if process.poll() is not None:
            raise RuntimeError(process.communicate()[1])
        time.sleep(0.01)
    return process


def maker(bundle: Path) -> int:
    """The process that makes the root."""
    return int((bundle.parent / "log.pid").read_text())


def ends(number: int) -> None:
    """Waits until a process is gone."""
    while True:
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)


def temporary(bundle: Path) -> set[str]:
    kept = {"engines", bundle.name, "log", "log.pid"}
    return {path.name for path in bundle.parent.iterdir()} - kept


@pytest.mark.parametrize("arguments", [(), ("--base-root", "debian")], ids=["own", "kept"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_leaves_nothing(
    bundle: Path, number: signal.Signals, arguments: tuple[str, ...]
) -> None:
    process = start(bundle, *arguments)
    assert len(temporary(bundle)) == 1
    process.send_signal(number)
    process.communicate()
    assert process.returncode != 0
    ends(maker(bundle))
    assert not temporary(bundle)


@pytest.mark.parametrize("arguments", [(), ("--base-root", "debian")], ids=["own", "kept"])
def test_the_next_run_removes_what_a_killed_one_left(
    bundle: Path, arguments: tuple[str, ...]
) -> None:
    """Once nothing of it runs."""
    killed = start(bundle, *arguments)
    killed.kill()
    killed.wait()
    (left,) = temporary(bundle)
    still = maker(bundle)
    other = start(bundle, *arguments)
    assert left in temporary(bundle), "something still writes there"
    other.terminate()
    other.communicate()
    assert temporary(bundle) == {left}
    os.kill(still, signal.SIGKILL)
    ends(still)
    other = start(bundle, *arguments)
    assert left not in temporary(bundle) and len(temporary(bundle)) == 1
    other.terminate()
    other.communicate()
    assert not temporary(bundle)


def test_what_others_left_is_left_alone(bundle: Path, tmp_path: Path) -> None:
    """Temporary folders are where anybody may write: a link is never followed, a folder without our lock never removed."""
    victim = tmp_path / "engines" / "victim"
    victim.mkdir()
    (victim / "file").write_text("x")
    theirs, linked = (
        tmp_path / "edgecompile-container.abcdef",
        tmp_path / "edgecompile-container.ghijkl",
    )
    theirs.mkdir()
    for lock in ("lock", ".edgecompile-lock"):
        (theirs / lock).touch()
        (victim / lock).touch()
    for name in ("x", "root"):
        (theirs / name).symlink_to(victim)
    linked.symlink_to(victim)
    (tmp_path / "edgecompile-container.backup").mkdir()
    (tmp_path / "edgecompile-container.backup" / "lock").touch()
    process = start(bundle)
    process.terminate()
    process.communicate()
    assert (victim / "file").exists() and linked.is_symlink()
    assert temporary(bundle) == {linked.name, "edgecompile-container.backup"}
