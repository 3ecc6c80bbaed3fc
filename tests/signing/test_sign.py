"""The commands keygen, sign and verify-signature, and their functions in Python."""

from __future__ import annotations

import inspect
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

import edgecompile
from edgecompile.cli.signing.sign import command as sign_command
from edgecompile.cli.signing.verify_signature import command as verify_command
from edgecompile.errors import DamagedBundleError, EdgecompileError, ToolchainError, UsageError
from edgecompile.runtime.base.errors import UnsignedBundleError, UntrustedBundleError
from tests.cli.command import run
from tests.needs import need
from tests.runtime.bundles import DummyBundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return Path(DummyBundle(tmp_path / "tiny.ecb").write())


@pytest.fixture
def key(tmp_path: Path) -> Path:
    pytest.importorskip("cryptography")
    return edgecompile.generate_key(tmp_path / "ci")[0]


@pytest.fixture
def trust(key: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "trust"
    folder.mkdir(mode=0o755)
    (folder / "ci.pem").write_bytes(key.with_suffix(".pem").read_bytes())
    document = {"policy_version": 1, "models": {"*": {"keys": ["ci"], "threshold": 1}}}
    (folder / "policy.json").write_text(json.dumps(document))
    for path in folder.iterdir():
        path.chmod(0o644)
    return folder


def json_of(*arguments: Any, code: int = 0) -> Any:
    result = run(*map(str, arguments), "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_from_the_key_to_the_check(bundle: Path, tmp_path: Path, trust: Path) -> None:
    pair = json_of("keygen", tmp_path / "release")
    assert stat.S_IMODE(Path(pair["private"]).stat().st_mode) == 0o600
    made = json_of("sign", bundle, "--key", tmp_path / "ci.key", "--release", 42, "--floor", 40)
    assert (made["release"], Path(made["path"]).name) == (42, "ci.sig")
    # Another key adds its signature to the same release.
    json_of("sign", bundle, "--key", pair["private"], "--release", 42, "--floor", 40)
    json_of("sign", bundle, "--key", pair["private"])
    found = json_of("verify-signature", bundle, "--trust", trust)
    assert found["keys"] == ["ci"]
    assert found["manifest_sha256"] == made["manifest_sha256"]
    assert (found["release"]["number"], found["release"]["floor"]) == (42, 40)
    assert sorted(path.name for path in bundle.glob("signatures/*")) == ["ci.sig", "release.sig"]
    lines = run("verify-signature", str(bundle), "--trust", str(trust)).stdout
    assert "signed by  ci" in lines


def test_another_release_needs_force(bundle: Path, key: Path, trust: Path) -> None:
    edgecompile.sign(bundle, key, release=1, name="first")
    edgecompile.sign(bundle, key, name="second")
    with pytest.raises(UsageError, match="2 signatures are over another release"):
        edgecompile.sign(bundle, key, release=2)
    assert edgecompile.verify_signature(bundle, trust)["release"]["number"] == 1
    edgecompile.sign(bundle, key, release=2, force=True)
    assert edgecompile.verify_signature(bundle, trust)["release"]["number"] == 2
    assert [path.name for path in bundle.glob("signatures/*")] == ["ci.sig"]


def test_a_failing_signer_changes_nothing(bundle: Path, key: Path, trust: Path) -> None:
    edgecompile.sign(bundle, key, release=1)
    before = {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()}
    public = key.with_suffix(".pem")
    for release in (None, 2):
        with pytest.raises(ToolchainError):
            edgecompile.sign(
                bundle, signer=["false"], public_key=public, release=release, force=True
            )
    assert {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()} == before
    assert edgecompile.verify_signature(bundle, trust)["release"]["number"] == 1


def test_another_key_s_signature_stays(bundle: Path, key: Path, trust: Path) -> None:
    (key.parent / "k2").mkdir()
    other = edgecompile.generate_key(key.parent / "k2" / "ci")[0]
    edgecompile.sign(bundle, key)
    edgecompile.sign(bundle, key)  # its own is replaced
    with pytest.raises(UsageError, match=r"ci\.sig isn't by this key"):
        edgecompile.sign(bundle, other)
    edgecompile.verify_signature(bundle, trust)
    edgecompile.sign(bundle, other, name="other")
    foreign = bundle / "signatures" / "foreign.sig"
    foreign.write_bytes(b"{}")
    with pytest.raises(UsageError, match="isn't by this key"):
        edgecompile.sign(bundle, key, name="foreign")
    assert foreign.read_bytes() == b"{}"


def test_no_more_signatures_than_devices_take(bundle: Path, key: Path, trust: Path) -> None:
    for number in range(16):
        edgecompile.sign(bundle, key, name=str(number))
    with pytest.raises(UsageError, match="would hold 17 files"):
        edgecompile.sign(bundle, key)
    edgecompile.sign(bundle, key, name="0")
    edgecompile.verify_signature(bundle, trust)
    for number in range(1, 16):
        (bundle / "signatures" / f"{number}.sig").unlink()
    (bundle / "signatures" / "large.sig").write_bytes(b" " * (8 << 20))
    with pytest.raises(UsageError, match="would hold 3 files"):
        edgecompile.sign(bundle, key)
    edgecompile.sign(bundle, key, release=1, force=True)
    edgecompile.verify_signature(bundle, trust)


def test_every_user_may_read_what_was_signed(bundle: Path, key: Path) -> None:
    before = os.umask(0o077)
    try:
        edgecompile.sign(bundle, key, release=1)
    finally:
        os.umask(before)
    paths = [bundle / name for name in ("signatures", "signatures/ci.sig", "release.json")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o755, 0o644, 0o644]


def test_nothing_is_verified_where_checks_are_off(
    bundle: Path, key: Path, trust: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edgecompile.sign(bundle, key)
    monkeypatch.setenv("EDGECOMPILE_TRUST", "off")
    with pytest.raises(UsageError, match="EDGECOMPILE_TRUST is off: nothing would be checked"):
        edgecompile.verify_signature(bundle)
    edgecompile.verify_signature(bundle, trust)


def test_a_command_signs_without_a_shell(bundle: Path, key: Path, trust: Path) -> None:
    openssl = need("openssl", "openssl")
    public = key.with_suffix(".pem")
    signer = [openssl, "dgst", "-sha256", "-sign", str(key)]
    edgecompile.sign(bundle, signer=signer, public_key=public)
    edgecompile.verify_signature(bundle, trust)
    command = f"{openssl} dgst -sha256 -sign '{key}'"
    json_of("sign", bundle, "--signer", command, "--public-key", public, "--name", "again")
    edgecompile.verify_signature(bundle, trust)
    marker = key.parent / "marker"
    for words in (["echo", ";", "touch", str(marker)], ["false"], [str(key.parent / "no-program")]):
        with pytest.raises(ToolchainError):
            edgecompile.sign(bundle, signer=words, public_key=public, name="bad")
    assert not marker.exists()
    assert not (bundle / "signatures" / "bad.sig").exists()
    # Of another key than the public one that was given.
    other = edgecompile.generate_key(key.parent / "other")[1]
    with pytest.raises(ToolchainError, match="isn't by the public key"):
        edgecompile.sign(bundle, signer=signer, public_key=other, name="bad")


def test_a_damaged_bundle_is_not_signed(bundle: Path, key: Path) -> None:
    (bundle / "weights.fp32").write_bytes(b"other")
    with pytest.raises(DamagedBundleError):
        edgecompile.sign(bundle, key)
    assert not (bundle / "signatures").exists()


def test_verification_hashes_every_file(bundle: Path, key: Path, trust: Path) -> None:
    with pytest.raises(UnsignedBundleError):
        edgecompile.verify_signature(bundle, trust)
    edgecompile.sign(bundle, key)
    path = bundle / "golden" / "0-hint.npz"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    with pytest.raises(DamagedBundleError):
        edgecompile.verify_signature(bundle, trust)
    (trust / "ci.pem").chmod(0o666)
    with pytest.raises(UntrustedBundleError):
        edgecompile.verify_signature(bundle, trust)
    assert json_of("verify-signature", bundle, "--trust", trust, code=76)["error"]["code"] == 76


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "by a key or by a command"),
        ({"key": "ci.key", "signer": ["true"], "public_key": "ci.pem"}, "by a key or by a command"),
        ({"signer": ["true"]}, "by a key or by a command"),
        ({"signer": "true", "public_key": "ci.pem"}, "`signer` is 'true'"),
        ({"signer": [], "public_key": "ci.pem"}, "`signer` is empty"),
        ({"key": "none.key"}, "can't be read"),
        ({"key": "ci.pem"}, "isn't a private key"),
        ({"key": "open.key"}, "other users may read this key"),
        ({"key": "locked.key"}, "has a password"),
        ({"signer": ["true"], "public_key": "ci.key"}, "isn't a public key"),
        ({"key": "ci.key", "name": "../ci"}, "`name` is '../ci'"),
        ({"key": "ci.key", "floor": 1}, "go with `release`"),
        ({"key": "ci.key", "release": -1}, "`release`"),
        ({"key": "ci.key", "release": 1, "floor": 2}, "`floor`"),
        ({"key": "ci.key", "release": 1, "expires": "2027-01-01"}, "`expires` is '2027-01-01'"),
        ({"key": "ci.key", "release": 1, "expires": "2027-02-31T00:00:00Z"}, "`expires` is"),
        ({"key": "ci.key", "release": 1, "expires": "2027-1-01T00:00:00Z"}, "`expires` is"),
        ({"key": "ci.key", "release": 1, "note": "a\nb"}, "`note`"),
    ],
)
def test_wrong_arguments(bundle: Path, key: Path, arguments: dict[str, Any], text: str) -> None:
    from cryptography.hazmat.primitives import serialization as s

    place = key.parent
    (place / "open.key").write_bytes(key.read_bytes())
    (place / "open.key").chmod(0o644)
    private = s.load_pem_private_key(key.read_bytes(), None)
    locked = private.private_bytes(
        s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"secret")
    )
    (place / "locked.key").write_bytes(locked)
    (place / "locked.key").chmod(0o600)
    given = {
        name: place / value if name in ("key", "public_key") else value
        for name, value in arguments.items()
    }
    with pytest.raises(EdgecompileError, match=text):
        edgecompile.sign(bundle, **given)
    assert not (bundle / "signatures").exists()
    assert not (bundle / "release.json").exists()


def test_a_key_is_never_overwritten(key: Path) -> None:
    with pytest.raises(UsageError, match="is already there"):
        edgecompile.generate_key(key.with_suffix(""))
    key.unlink()
    with pytest.raises(UsageError, match="is already there"):
        edgecompile.generate_key(key.with_suffix(""))
    for name in (".", "..", "/"):
        with pytest.raises(UsageError, match="`name` is"):
            edgecompile.generate_key(name)


@pytest.mark.parametrize(
    ("function", "command"),
    [(edgecompile.sign, sign_command), (edgecompile.verify_signature, verify_command)],
)
def test_every_option_is_an_argument(function: Any, command: Any) -> None:
    options = {option.name for option in command.params} - {"as_json", "json", "quiet", "debug"}
    assert options == set(inspect.signature(function).parameters)
