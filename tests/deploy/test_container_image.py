"""One real image: built with buildah from a Debian root that debootstrap makes, and run.

There is no engine that could run it here: what an engine does with an image (its files as a
read-only root, its user, environment, entrypoint and command, a process 1) is done by hand, with
namespaces. Needs root, the distribution's mirror, and about half a GB.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.needs import lack, need, provide

REPOSITORY = Path(__file__).resolve().parents[2]
TAG = "edgecompile-test"
pytestmark = pytest.mark.slow

#: Becomes the container: no mount of it outlives it, and nothing of it can be written.
RUN = """set -e
mount --bind "$0" "$0"
mount -t proc proc "$0/proc"
mount -o remount,ro,bind "$0"
exec chroot --userspec="$1:$1" --groups= "$0" /usr/bin/env -i "${@:2}"
"""


class Image(NamedTuple):
    root: Path
    config: dict[str, Any]
    history: list[str]

    def start(self, *command: str, **more: Any) -> subprocess.Popen[str]:
        """Runs a command, or the image's own, as its user, with its environment, as process 1."""
        words = command or (*self.config["Entrypoint"], *self.config["Cmd"])
        inside = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", RUN]
        return subprocess.Popen(
            [*inside, str(self.root), self.config["User"], *self.config["Env"], *words],
            cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more,
        )  # fmt: skip

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*command)
        out, err = process.communicate()
        return subprocess.CompletedProcess(command, process.returncode, out, err)


def need_network() -> None:
    """That the mirror of this machine's apt answers."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    if not listed:
        lack("apt knows no package source (apt-get update)")
    site = urlsplit(listed[0])
    try:
        port = site.port or (443 if site.scheme == "https" else 80)
        socket.create_connection((site.hostname or "", port), timeout=20).close()
    except OSError as error:
        lack(f"the mirror of this machine's apt can't be reached ({error})")


def buildah(*arguments: str, variables: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["buildah", *arguments], env=dict(variables), capture_output=True, text=True
    )
    assert done.returncode == 0, f"buildah {arguments}: {done.stderr}"
    return done.stdout.strip()


def choose_storage(folder: Path) -> dict[str, str]:
    """Variables that keep buildah's images in a folder, layered where this system can do that."""
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n'
    )
    variables = {**os.environ, "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf")}
    if subprocess.run(["buildah", "info"], env=variables, capture_output=True).returncode != 0:
        variables["STORAGE_DRIVER"] = "vfs"
    return variables


@pytest.fixture(scope="module")
def image(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Image]:
    need("buildah", "buildah")
    need("debootstrap", "debootstrap")
    if not Path("/usr/share/keyrings/debian-archive-keyring.gpg").is_file():
        provide("packages", "debian-archive-keyring")
    if os.geteuid() != 0:
        lack("making a Debian root needs root's rights")
    need_network()
    given = os.environ.get("EDGECOMPILE_TEST_BUNDLE")
    bundle = Path(given) if given else request.getfixturevalue("tiny_bundle")
    folder = tmp_path_factory.mktemp("image")
    variables = choose_storage(folder)
    script = [str(REPOSITORY / "scripts" / "container"), str(bundle), "--engine", "buildah"]
    try:
        built = subprocess.run(
            [*script, "--base-root", str(folder / "root"), "--tag", TAG],
            env=variables, capture_output=True, text=True,
        )  # fmt: skip
        assert built.returncode == 0, built.stderr[-4000:]
        assert built.stdout == f"{TAG}\n"
        container = buildah("from", "--pull-never", TAG, variables=variables)
        told = json.loads(buildah("inspect", "--type", "image", TAG, variables=variables))["OCIv1"]
        yield Image(
            Path(buildah("mount", container, variables=variables)),
            told["config"],
            [item.get("created_by", "") for item in told["history"]],
        )
    finally:
        subprocess.run(["buildah", "umount", "--all"], env=variables, capture_output=True)
        # Layers are a few hundred MB, and pytest keeps the folders of three runs.
        shutil.rmtree(folder, ignore_errors=True)


def test_the_self_test_passes_on_a_read_only_root(image: Image) -> None:
    assert image.config["Entrypoint"][0] == "python3"
    done = image.run()
    assert done.returncode == 0, done.stderr
    assert "PASSED" in done.stdout


def test_its_user_is_nobody_and_nothing_can_be_written(image: Image) -> None:
    program = """
import os
print(os.getuid(), os.getgid(), os.getgroups())
try:
    open("/tmp/x", "ab")
except OSError as error:
    print(error.strerror)
"""
    done = image.run("python3", "-c", program)
    assert done.stdout.splitlines() == ["10001 10001 []", "Read-only file system"], done.stderr
    # The bundle not by the mount alone: it belongs to root, and nothing of it is open to others.
    for path in [image.root / "opt" / "model.ecb", *(image.root / "opt").rglob("*")]:
        found = path.lstat()
        assert found.st_uid == 0 and not found.st_mode & stat.S_IWOTH, path


def test_neither_torch_nor_a_compiler_is_in_it(image: Image) -> None:
    names = {name for _, _, files in os.walk(image.root, followlinks=False) for name in files}
    assert {"manifest.json", "apt-get", "python3.11"} <= names
    assert [name for name in names if name.startswith("_multiarray_umath.")]
    tools = {"cc", "gcc", "g++", "c++", "clang", "tcc", "cc1", "cc1plus", "ld", "as", "nvcc"}
    assert not names & tools
    assert not [name for name in names if name.startswith(("libtorch", "x86_64-linux-gnu-gcc"))]
    asked = image.run("python3", "-c", "import numpy, torch")
    assert asked.returncode == 1 and "No module named 'torch'" in asked.stderr
    packages = (image.root / "var/lib/dpkg/status").read_text()
    installed = {line[9:] for line in packages.splitlines() if line.startswith("Package: ")}
    assert "python3-numpy" in installed
    assert not installed & {"gcc", "g++", "binutils", "python3-torch", "python3-dev", "python3-pip"}


def test_nothing_of_the_building_machine_is_in_it(image: Image) -> None:
    told = json.dumps([image.config, image.history])
    assert str(REPOSITORY) not in told and "/image" not in told
    assert (image.root / "etc" / "machine-id").read_text() == ""
    for name in ("etc/resolv.conf", "etc/hostname", "etc/hosts"):
        path = image.root / name
        assert not path.exists() or path.read_text() == "", name
    # The day of the build, that is; --timestamp 0 sets what an engine sees.
    logs = [path for path in (image.root / "var/log").rglob("*") if path.is_file()]
    assert [path for path in logs if path.stat().st_size] == []


def test_byte_code_does_not_hang_on_times(image: Image) -> None:
    """With all times at 0, byte code that is checked by time would be compiled at each start."""
    library, packages, own = (
        list((image.root / folder).rglob("*.pyc"))
        for folder in ("usr/lib/python3.11", "usr/lib/python3", "opt/runtime")
    )
    assert min(len(library), len(packages)) > 200 and len(own) > 20
    # PEP 552: bit 0 of the second word says that a hash stands in the place of time and size.
    found = [*library, *packages, *own]
    assert [path for path in found if not path.read_bytes()[4] & 1] == []


def test_it_serves_and_stops_when_it_is_told_to(image: Image) -> None:
    program = (REPOSITORY / "examples" / "serve.py").open()
    process = image.start("python3", "-", "/opt/model.ecb", "--port", "0", stdin=program)
    try:
        assert process.stderr is not None
        line = ""
        while " on port " not in line:
            line = process.stderr.readline()
            assert line, "it ended"
        port = line.split()[-1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
            assert json.load(answer).keys() == {"bundle"}
        # As `docker stop`: to process 1 of the container, which has no default for signals.
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)
        process.communicate()
        assert process.returncode == 0
    finally:
        process.kill()
        program.close()
