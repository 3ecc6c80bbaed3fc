"""Mender's update module, by Mender's own client without a server: install, commit, rollback, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from edgecompile.signing.keys import public_pem
from tests.needs import lack, need
from tests.runtime.signed import make_key
from tests.runtime.store.device import Device

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
        healthy = place / "healthy"
        healthy.write_text(
            HEALTHY.format(
                python=sys.executable, store=str(self.device.root), answer=str(self.answer)
            )
        )
        healthy.chmod(0o755)
        settings = place / "mender.json"
        settings.write_text(json.dumps({"store": str(self.device.root), "healthy": [str(healthy)]}))
        text = MODULE.read_text().replace("/etc/edgecompile/mender.json", str(settings))
        head, _, rest = text.partition("\n")
        assert head == "#!/opt/edgecompile/bin/python -I"
        module = self.modules / MODULE.name
        module.write_text(f"#!{sys.executable}\n{rest}")
        module.chmod(0o755)
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
        environment = {
            **os.environ, "PYTHONPATH": str(REPOSITORY),
            "EDGECOMPILE_TRUST": str(self.device.signed.trust),
        }  # fmt: skip
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
        archive = self.place / "bundle.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(bundle, "bundle")
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
