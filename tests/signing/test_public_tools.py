"""Tools of others take our signatures, and a device takes theirs."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path

import pytest

import edgecompile
from edgecompile.runtime.format.trust.statement import encode
from tests.needs import need, need_variable
from tests.runtime.bundles import DummyBundle

PROGRAM = Path(__file__).with_name("public_tools.py")
CURVES = {"prime256v1": "sha256", "secp384r1": "sha384", "secp521r1": "sha512"}


def tool(mode: str, bundle: Path, signature: Path, key: Path) -> subprocess.CompletedProcess[str]:
    """Runs ``public_tools.py``."""
    python = need_variable("EDGECOMPILE_SIGNING_PYTHON")
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [python, str(PROGRAM), mode, *map(str, (bundle, signature, key))],
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.fixture(params=sorted(CURVES))
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, Path]:
    """The hash, the private key and the public one, made by openssl."""
    openssl = need("openssl", "openssl")
    private, public = tmp_path / "ci.key", tmp_path / "ci.pem"
    make = [openssl, "ecparam", "-name", request.param, "-genkey", "-noout"]
    key = subprocess.run(make, capture_output=True, check=True).stdout
    for arguments, path in (
        (["pkcs8", "-topk8", "-nocrypt"], private),
        (["pkey", "-pubout"], public),
    ):
        done = subprocess.run([openssl, *arguments], input=key, capture_output=True, check=True)
        path.write_bytes(done.stdout)
        path.chmod(0o600)
    return CURVES[request.param], private, public


def trusting(place: Path, public: Path) -> Path:
    """A trust folder with one key."""
    folder = place / "trust"
    folder.mkdir(mode=0o755)
    (folder / "ci.pem").write_bytes(public.read_bytes())
    (folder / "policy.json").write_text(
        json.dumps({"policy_version": 1, "models": {"*": {"keys": ["ci"], "threshold": 1}}})
    )
    for path in folder.iterdir():
        path.chmod(0o644)
    return folder


def test_others_take_our_signatures(pair: tuple[str, Path, Path], tmp_path: Path) -> None:
    digest, private, public = pair
    bundle = Path(DummyBundle(tmp_path / "tiny.ecb").write())
    edgecompile.sign(bundle, private, release=1, name="first")
    signature = edgecompile.sign(bundle, private).path
    moved = bundle.rename(tmp_path / "renamed.ecb")
    signature = moved / "signatures" / signature.name
    done = tool("check", moved, signature, public)
    assert done.returncode == 0, done.stderr
    envelope = json.loads(signature.read_text())["dsseEnvelope"]
    der, message = tmp_path / "der", tmp_path / "message"
    der.write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    message.write_bytes(encode(base64.b64decode(envelope["payload"])))
    command = ["openssl", "dgst", f"-{digest}", "-verify", public, "-signature", der, message]
    assert b"OK" in subprocess.run(command, capture_output=True, check=True).stdout
    # They do look: another file is no longer signed.
    (moved / "weights.fp32").write_bytes(b"other")
    assert tool("check", moved, signature, public).returncode != 0


def test_a_device_takes_theirs(pair: tuple[str, Path, Path], tmp_path: Path) -> None:
    _, private, public = pair
    bundle = Path(DummyBundle(tmp_path / "tiny.ecb").write())
    signature = bundle / "signatures" / "theirs.sig"
    done = tool("sign", bundle, signature, private)
    assert done.returncode == 0, done.stderr
    trust = trusting(tmp_path, public)
    assert edgecompile.verify_signature(bundle, trust)["keys"] == ["ci"]
    # Each covers the other's: a second signature changes nothing of the first.
    edgecompile.sign(bundle, private, name="ours")
    edgecompile.verify_signature(bundle, trust)
    done = tool("check", bundle, signature, public)
    assert done.returncode == 0, done.stderr
