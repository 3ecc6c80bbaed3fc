"""Mender's update module, by Mender's own client without a server: install, commit, rollback, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgecompile.signing.keys import public_pem
from tests.needs import lack, need
from tests.runtime.signed import make_key
from tests.runtime.store.device import Device, pack

MODULE = Path(__file__).resolve().parents[2] / "docker" / "mender" / "edgecompile-bundle"
REPOSITORY = MODULE.parents[2]
HEALTHY = """#!{python}
import subprocess, sys
start = [sys.executable, "-m", "edgecompile.runtime", "start", "tiny", "--store", {store!r}]
sys.exit(subprocess.call(start, stdout=subprocess.DEVNULL) or open({answer!r}).read() != "well")
"""


def write_key(path: Path) -> Path:
    """A private key in the older form that mender-artifact reads, and the public one beside it."""
    from cryptography.hazmat.primitives import serialization as s

    key = make_key()
    form = s.PrivateFormat.TraditionalOpenSSL
    path.write_bytes(key.private_bytes(s.Encoding.PEM, form, s.NoEncryption()))
    path.with_suffix(".pem").write_bytes(public_pem(key))
    return path


def write_module(place: Path, **settings: object) -> Path:
    """The module with settings of its own."""
    path = place / "mender.json"
    path.write_text(json.dumps(settings))
    text = MODULE.read_text().replace("/etc/edgecompile/mender.json", str(path))
    head, _, rest = text.partition("\n")
    assert head == "#!/opt/edgecompile/bin/python -I"
    module = place / MODULE.name
    module.write_text(f"#!{sys.executable}\n{rest}")
    module.chmod(0o755)
    return module


def write_script(path: Path, text: str) -> list[str]:
    """A command of Mender's settings."""
    path.write_text(text)
    path.chmod(0o755)
    return [str(path)]


def environment_of(device: Device) -> dict[str, str]:
    trust = str(device.signed.trust)
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "EDGECOMPILE_TRUST": trust}


class Mender:
    """A device with Mender's client, a store, and a service that answers well unless a test says otherwise."""

    def __init__(self, place: Path) -> None:
        if os.geteuid() != 0:
            lack("Mender's modules are replaced in a namespace, which needs root's rights")
        self.client = need("mender", "mender-client")
        self.writer = need("mender-artifact", "mender-artifact")
        self.device = Device(place / "device")
        self.place = place
        self.key = write_key(place / "fleet.key")
        self.modules = place / "modules"
        self.modules.mkdir()
        self.answer = place / "answer"
        self.answer.write_text("well")
        store = str(self.device.root)
        text = HEALTHY.format(python=sys.executable, store=store, answer=str(self.answer))
        write_module(self.modules, store=store, healthy=write_script(place / "healthy", text))
        self.data = place / "data"
        self.data.mkdir()
        (self.data / "device_type").write_text("device_type=board\n")
        self.settings = place / "etc"
        self.settings.mkdir()
        (self.settings / "artifact_info").write_text("artifact_name=release-0\n")
        (self.settings / "mender.conf").write_text(
            json.dumps({"ArtifactVerifyKey": str(self.key.with_suffix(".pem"))})
        )

    def run(self, *words: str) -> int:
        environment = environment_of(self.device)
        # The client looks nowhere else for modules, and for what the device had first.
        mount = f"mount --bind {self.modules} /usr/share/mender/modules/v3 && mount --bind {self.settings} /etc/mender"
        command = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]
        command += [self.client, "--no-syslog", "--data", str(self.data)]
        done = subprocess.run([*command, *words], env=environment, capture_output=True, text=True)
        self.answered, self.told = done.stdout, done.stdout + done.stderr
        return done.returncode

    def artifact(self, number: int, key: Path | None = None, good: bool = True) -> str:
        bundle = self.device.release(number, good=good)
        return self.write(bundle, number, key)

    def write(self, bundle: Path, number: int, key: Path | None = None) -> str:
        archive = pack(bundle, self.place / "bundle.tar", top="bundle")
        target = self.place / f"{number}.mender"
        command = [
            self.writer,
            "write",
            "module-image",
            "-T",
            MODULE.name,
            "-n",
            f"release-{number}",
        ]
        command += [
            "-t",
            "board",
            "-f",
            str(archive),
            "-o",
            str(target),
            "-k",
            str(key or self.key),
        ]
        subprocess.run(command, check=True, capture_output=True)
        return str(target)

    def serving(self) -> int:
        return self.device.number(Path(self.device.store.path, "current"))

    def shown(self) -> str:
        assert self.run("show-artifact") == 0
        return self.answered.strip()


@pytest.fixture(scope="module")
def mender(tmp_path_factory: pytest.TempPathFactory) -> Mender:
    """A device that runs release 1, brought by Mender."""
    pytest.importorskip("cryptography")
    mender = Mender(tmp_path_factory.mktemp("mender"))
    assert mender.run("install", mender.artifact(1)) == 0, mender.told
    assert mender.run("commit") == 0, mender.told
    assert (mender.serving(), mender.shown()) == (1, "release-1")
    return mender


def test_an_update_is_committed(mender: Mender) -> None:
    assert mender.run("install", mender.artifact(2)) == 0, mender.told
    assert mender.device.store.read().starts_left == 2
    assert mender.run("commit") == 0, mender.told
    assert (mender.serving(), mender.shown()) == (2, "release-2")
    assert mender.device.store.read().starts_left is None


def test_an_update_is_taken_back(mender: Mender) -> None:
    before, shown = mender.serving(), mender.shown()
    assert mender.run("install", mender.artifact(3)) == 0, mender.told
    assert mender.serving() == 3
    assert mender.run("rollback") == 0, mender.told
    assert (mender.serving(), mender.shown()) == (before, shown)
    assert mender.device.store.read().refused[-1].endswith("-3")


def test_a_service_that_does_not_answer_gets_the_old_version_back(mender: Mender) -> None:
    before, shown = mender.serving(), mender.shown()
    mender.answer.write_text("badly")
    assert mender.run("install", mender.artifact(4)) != 0
    mender.answer.write_text("well")
    assert "healthy failed" in mender.told
    assert (mender.serving(), mender.shown()) == (before, shown)


def test_a_version_that_the_store_took_back_is_not_committed(mender: Mender) -> None:
    before, shown = mender.serving(), mender.shown()
    assert mender.run("install", mender.artifact(5)) == 0, mender.told
    for _ in range(4):
        mender.device.start()
    assert mender.run("commit") != 0
    assert "was taken back" in mender.told
    assert (mender.serving(), mender.shown()) == (before, shown)


def forged(mender: Mender) -> str:
    return mender.artifact(6, key=write_key(mender.place / "other.key"))


def by_another(mender: Mender) -> str:
    bundle = mender.device.release(7)
    mender.device.signed.path = bundle
    mender.device.signed.sign(key=make_key())
    return mender.write(bundle, 7)


REFUSED = {
    "the artifact isn't signed by the fleet": (forged, "invalid signature"),
    "the bundle isn't signed by a trusted key": (by_another, "[signature-trusted]"),
    "golden vectors differ": (lambda mender: mender.artifact(8, good=False), "[store-proof]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_leaves_the_old_version(mender: Mender, name: str) -> None:
    make, message = REFUSED[name]
    before, shown = mender.serving(), mender.shown()
    assert mender.run("install", make(mender)) != 0
    assert message in mender.told
    assert (mender.serving(), mender.shown()) == (before, shown)


# --- The module alone, without Mender's client
class Module:
    """The module on a device that runs release 1, with release 2 as an archive."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.device = Device(place / "device")
        self.device.run(self.device.release(1))
        self.serve(2)

    def serve(self, number: int) -> None:
        """A new update of a release."""
        self.update = self.place / f"update-{number}"
        (self.update / "files").mkdir(parents=True)
        (self.update / "tmp").mkdir()
        pack(self.device.release(number), self.update / "files" / "x.tar")

    def call(self, state: str, **settings: object) -> int:
        module = write_module(self.place, store=str(self.device.root), **settings)
        command = [sys.executable, str(module), state, str(self.update)]
        done = subprocess.run(
            command, env=environment_of(self.device), capture_output=True, text=True
        )
        self.told = done.stderr
        return done.returncode

    def served(self) -> int:
        return self.device.number(Path(self.device.store.path, "current"))


@pytest.fixture
def module(tmp_path: Path) -> Module:
    pytest.importorskip("cryptography")
    return Module(tmp_path)


@pytest.mark.parametrize(
    "settings", [{}, {"healthy": "true"}, {"restart": []}, {"healthy": ["/none/x"]}]
)
def test_settings_that_nothing_would_start_are_refused(
    module: Module, settings: dict[str, object]
) -> None:
    assert module.call("ArtifactInstall", **settings) == 1
    assert "mender.json" in module.told
    assert module.call("ArtifactRollback", **settings) == 0
    assert (module.served(), module.device.store.read().refused) == (1, ())


def test_a_release_that_ran_before_its_update_stays(module: Module) -> None:
    module.device.run(module.device.place / "2.ecb")
    assert module.call("ArtifactInstall", healthy=["false"]) == 1
    assert module.call("ArtifactRollback") == 0
    state = module.device.store.read()
    assert (module.served(), state.refused, state.starts_left) == (2, (), None)


def test_nothing_changes_before_it_is_written_down(module: Module) -> None:
    (module.update / "tmp").rmdir()
    assert module.call("ArtifactInstall", healthy=["true"]) == 1
    assert module.served() == 1
    (module.update / "tmp").mkdir()
    kill = write_script(module.place / "restart", "#!/bin/sh\nkill -9 $PPID\n")
    assert module.call("ArtifactInstall", restart=kill) < 0
    assert module.served() == 2
    assert module.call("ArtifactRollback") == 0
    assert module.served() == 1
