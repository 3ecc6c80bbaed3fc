"""Signed bundles for tests, and what an attacker makes of them."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.base.errors import BundleError
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.trust import statement as form
from edgecompile.runtime.format.trust.keys import format_pem, parse_public_key
from edgecompile.runtime.format.trust.release import RELEASE_NAME
from tests.runtime.bundles import DELETE, DummyBundle, put

Change = Callable[[Any], None]

RELEASE: dict[str, Any] = {
    "release_version": 1,
    "name": "tiny",
    "number": 42,
    "floor": 40,
    "created": "2026-01-01T00:00:00Z",
    "expires": "2026-02-01T00:00:00Z",
    "note": "",
}
POLICY: dict[str, Any] = {
    "policy_version": 1,
    "models": {"tiny*": {"keys": ["ci", "release"], "threshold": 1}},
}
ORDER_OF_P256 = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def make_key(curve: str = "SECP256R1") -> Any:
    """A private key of the package cryptography."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(getattr(ec, curve)())


def public_pem(key: Any) -> bytes:
    """The PEM text of its public half."""
    from cryptography.hazmat.primitives import serialization as s

    return key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)


def sign_bytes(key: Any, message: bytes) -> bytes:
    """An ECDSA signature in DER."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    kind = {384: "SHA384", 521: "SHA512"}.get(key.curve.key_size, "SHA256")
    return key.sign(message, ec.ECDSA(getattr(hashes, kind)()))


class SignedBundle:
    """A bundle of dummies, a trust folder beside it, and the private keys of "ci" and "release".

    The methods write what they are asked for at once; nothing is signed before ``sign``.
    """

    def __init__(self, place: Path, curve: str = "SECP256R1") -> None:
        pytest.importorskip("cryptography")
        self.path = place / "tiny.ecb"
        DummyBundle(self.path).write()
        self.trust = place / "trust"
        self.trust.mkdir(mode=0o755)
        self.keys = {name: make_key(curve) for name in ("ci", "release")}
        for name, key in self.keys.items():
            self.write_key(name, public_pem(key))
        self.policy = copy.deepcopy(POLICY)
        self.write_policy()
        self.write_release(RELEASE)

    def write_key(self, name: str, pem: bytes) -> None:
        """Replaces a public key."""
        self._write(self.trust / f"{name}.pem", pem)

    def write_policy(self, data: bytes | None = None) -> None:
        """Replaces the policy, by ``policy`` or by other bytes."""
        data = json.dumps(self.policy).encode() if data is None else data
        self._write(self.trust / "policy.json", data)

    def write_release(self, release: dict[str, Any]) -> None:
        """Replaces the release."""
        (self.path / RELEASE_NAME).write_text(json.dumps(release), encoding="utf-8")

    def _write(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)
        path.chmod(0o644)

    def statement(self) -> dict[str, Any]:
        """The statement over all files, without the digest of its subject."""
        manifest = (self.path / "manifest.json").read_bytes()
        digests = {name: entry["sha256"] for name, entry in json.loads(manifest)["files"].items()}
        digests["manifest.json"] = hashlib.sha256(manifest).hexdigest()
        if (self.path / RELEASE_NAME).exists():
            release = (self.path / RELEASE_NAME).read_bytes()
            digests[RELEASE_NAME] = hashlib.sha256(release).hexdigest()
        resources = [
            {"name": name, "algorithm": "sha256", "digest": digests[name]}
            for name in sorted(digests)
        ]
        return {
            "_type": form.STATEMENT_TYPE,
            "subject": [{"name": "tiny.ecb", "digest": {}}],
            "predicateType": form.PREDICATE_TYPE,
            "predicate": {
                "serialization": {
                    "method": "files",
                    "hash_type": "sha256",
                    "allow_symlinks": False,
                    "ignore_paths": ["signatures", ".git"],
                },
                "resources": resources,
            },
        }

    def sign(
        self,
        name: str = "ci",
        file: str | None = None,
        *,
        key: Any = None,
        statement: Change = lambda document: None,
        payload: Callable[[bytes], bytes] = lambda data: data,
        encode: Callable[[bytes], bytes] = form.encode,
        signature: Callable[[bytes], bytes] = lambda data: data,
        envelope: Change = lambda document: None,
        text: Callable[[bytes], bytes] = lambda data: data,
    ) -> Path:
        """Writes a signature; the functions change what it is made of, in this order."""
        document = self.statement()
        statement(document)
        digest = hashlib.sha256()
        for item in document["predicate"].get("resources", []):
            digest.update(bytes.fromhex(item["digest"]) if len(item["digest"]) == 64 else b"")
        document["subject"][0]["digest"].setdefault("sha256", digest.hexdigest())
        data = payload(json.dumps(document).encode())
        signer = self.keys[name] if key is None else key
        der = signature(sign_bytes(signer, encode(data)))
        public = parse_public_key(public_pem(signer))
        hint = hashlib.sha256(public_pem(signer)).hexdigest() if public is None else public.hint
        bundle = {
            "mediaType": form.MEDIA_TYPE,
            "verificationMaterial": {"publicKey": {"hint": hint}},
            "dsseEnvelope": {
                "payload": base64.b64encode(data).decode(),
                "payloadType": form.PAYLOAD_TYPE,
                "signatures": [{"sig": base64.b64encode(der).decode(), "keyid": ""}],
            },
        }
        envelope(bundle)
        place = self.path / "signatures" / f"{file or name}.sig"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(text(json.dumps(bundle).encode()))
        return place

    def open(self) -> BundleFolder:
        """Opens the folder as a device does; closed again."""
        folder = BundleFolder(str(self.path), trust=str(self.trust))
        folder.close()
        return folder

    def refused(self) -> BundleError:
        """The error that opening it raises."""
        with pytest.raises(BundleError) as caught:
            self.open()
        return caught.value


# --- What signatures are made of
def setting(path: str, value: Any) -> Change:
    """Changes a value of a document; see ``put``."""
    return lambda document: put(document, path, value)


def by(**changes: Any) -> Callable[[SignedBundle], None]:
    """A bundle whose only signature was changed."""
    return lambda bundle: bundle.sign(**changes) and None


def after(change: Callable[[SignedBundle], Any]) -> Callable[[SignedBundle], None]:
    """A bundle that was signed and then changed."""

    def attack(bundle: SignedBundle) -> None:
        bundle.sign()
        change(bundle)

    return attack


def policy(path: str, value: Any) -> Callable[[SignedBundle], None]:
    """A signed bundle, and a device whose policy was changed."""

    def change(bundle: SignedBundle) -> None:
        put(bundle.policy, path, value)
        bundle.write_policy()

    return after(change)


def released(**changes: Any) -> Callable[[SignedBundle], None]:
    """A signed bundle with another release."""

    def attack(bundle: SignedBundle) -> None:
        release = {**RELEASE, **changes}
        bundle.write_release({k: v for k, v in release.items() if v is not DELETE})
        bundle.sign()

    return attack


def flip(name: str) -> Callable[[SignedBundle], None]:
    """A signed bundle of which one byte of a file was changed since."""

    def change(bundle: SignedBundle) -> None:
        data = bytearray((bundle.path / name).read_bytes())
        data[len(data) // 2] ^= 1
        (bundle.path / name).write_bytes(data)

    return after(change)


def _replace(make: Callable[[Path], None], name: str) -> Callable[[SignedBundle], None]:
    def change(bundle: SignedBundle) -> None:
        path = bundle.path / name
        path.rename(bundle.path.parent / "taken")
        make(path)

    return after(change)


def _many(bundle: SignedBundle) -> None:
    for number in range(10_000):
        (bundle.path / "signatures" / f"{number}.sig").touch()


def _large(bundle: SignedBundle) -> None:
    with (bundle.path / "signatures" / "huge.sig").open("wb") as file:
        file.truncate(1 << 30)


def _large_together(bundle: SignedBundle) -> None:
    for name in ("a", "b"):
        (bundle.path / "signatures" / f"{name}.sig").write_bytes(b" " * (5 << 20))


def _earlier(bundle: SignedBundle) -> None:
    bundle.sign()
    path = bundle.path / "manifest.json"
    path.write_bytes(path.read_bytes() + b" ")


def _swapped_list(bundle: SignedBundle) -> None:
    """The statement is over a manifest that lists other files than it states."""
    path = bundle.path / "manifest.json"
    document = json.loads(path.read_text())
    document["files"]["weights.fp32"]["sha256"] = "0" * 64
    statement = bundle.statement()["predicate"]["resources"]
    path.write_text(json.dumps(document))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()

    def state(new: dict[str, Any]) -> None:
        new["predicate"]["resources"] = [
            {**item, "digest": digest} if item["name"] == "manifest.json" else item
            for item in statement
        ]

    bundle.sign(statement=state)


def _two_names_of_one_key(bundle: SignedBundle) -> None:
    bundle.sign("ci")
    bundle.sign("ci", "release")
    bundle.policy["models"]["tiny*"]["threshold"] = 2
    bundle.write_policy()


def _one_key_by_two_names(bundle: SignedBundle) -> None:
    bundle.write_key("release", public_pem(bundle.keys["ci"]))
    _two_names_of_one_key(bundle)


def _refused_by_its_other_name(bundle: SignedBundle) -> None:
    bundle.write_key("release", public_pem(bundle.keys["ci"]))
    policy("refused", ["release"])(bundle)


def _other_model_s_key(bundle: SignedBundle) -> None:
    bundle.sign("ci")
    bundle.policy["models"] = {
        "tiny": {"keys": ["release"], "threshold": 1},
        "*": {"keys": ["ci"], "threshold": 1},
    }
    bundle.write_policy()


def _foreign_key(kind: str) -> Callable[[SignedBundle], None]:
    def change(bundle: SignedBundle) -> None:
        from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

        key: Any
        if kind == "rsa":
            key = rsa.generate_private_key(65537, 2048)
        elif kind == "ed25519":
            key = ed25519.Ed25519PrivateKey.generate()
        else:
            key = make_key(kind)
        bundle.write_key("ci", public_pem(key))

    return after(change)


def _off_the_curve(bundle: SignedBundle) -> None:
    """A key whose point isn't on the curve names itself in a signature; libcrypto gets to see it."""
    key = parse_public_key(public_pem(bundle.keys["ci"]))
    assert key is not None
    pem = format_pem(key.der[:-1] + bytes([key.der[-1] ^ 1]))
    bundle.write_key("ci", pem)
    hint = hashlib.sha256(pem).hexdigest()
    bundle.sign(envelope=setting("verificationMaterial.publicKey.hint", hint))


def _as_bytes(r: int, s: int) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    return encode_dss_signature(r, s)


def high_s(signature: bytes) -> bytes:
    """The other signature that is as valid: ECDSA has two for each."""
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    r, s = decode_dss_signature(signature)
    return _as_bytes(r, ORDER_OF_P256 - s)


def _blank_in_base64(document: Any) -> None:
    envelope = document["dsseEnvelope"]
    envelope["payload"] = envelope["payload"][:8] + "\n" + envelope["payload"][8:]


def _stray_bits(document: Any) -> None:
    """Base64 that decodes to the same bytes, but isn't what an encoder writes."""
    signature = document["dsseEnvelope"]["signatures"][0]
    data = base64.b64decode(signature["sig"])
    text = base64.b64encode(data + b"\0" * (-len(data) % 3 or 3)).decode()
    document["dsseEnvelope"]["signatures"][0]["sig"] = text.rstrip("A") + "B=="


def _legacy(data: bytes) -> bytes:
    """The encoding of a broken release of the public tool, which that tool still takes."""
    head = f"DSSEV1 {len(form.PAYLOAD_TYPE)} {form.PAYLOAD_TYPE} {len(data)} {data!r}"
    return head.encode()


_RESOURCES = "predicate.resources"
_SERIALIZATION = "predicate.serialization"
_FIRST = f"{_RESOURCES}.0"
_ENVELOPE = "dsseEnvelope"

#: (rule, exit code, what the attacker does)
ATTACKS: list[tuple[str, int, Callable[[SignedBundle], None]]] = [
    # No signature, and what isn't one
    ("signature-missing", 75, lambda bundle: None),
    ("signature-missing", 75, lambda bundle: (bundle.path / "signatures").mkdir()),
    ("signature-missing", 75, after(lambda b: (b.path / "signatures/ci.sig").unlink())),
    ("signature-missing", 75, after(lambda b: (b.path / "signatures/ci.sig").rename(b.path / "ci.sig"))),
    ("signature-folder", 20, _replace(lambda path: path.symlink_to("../taken"), "signatures")),
    ("signature-folder", 20, _replace(os.mkfifo, "signatures")),
    ("signature-folder", 20, _replace(Path.touch, "signatures")),
    ("signature-count", 20, after(_many)),
    ("signature-file", 20, after(_large)),
    ("signature-file", 20, after(_large_together)),
    ("signature-file", 20, _replace(lambda path: path.symlink_to("../../taken"), "signatures/ci.sig")),
    ("signature-file", 20, _replace(os.mkfifo, "signatures/ci.sig")),
    ("signature-file", 20, _replace(Path.mkdir, "signatures/ci.sig")),
    ("release-file", 20, _replace(lambda path: path.symlink_to("../taken"), RELEASE_NAME)),
    ("release-file", 20, after(lambda b: (b.path / RELEASE_NAME).write_bytes(bytes(1 << 17)))),
    # Changed since
    ("signature-trusted", 76, flip("manifest.json")),
    ("statement-files", 76, flip(RELEASE_NAME)),
    ("statement-files", 76, after(lambda b: (b.path / RELEASE_NAME).unlink())),
    ("statement-files", 76, _earlier),
    ("statement-files", 76, _swapped_list),
    # Keys
    ("signature-key", 76, lambda b: b.sign(key=make_key()) and None),
    ("signature-key", 76, lambda b: b.sign(key=make_key("SECP256K1")) and None),
    ("signature-value", 76, lambda b: b.sign(key=make_key(), envelope=setting(
        "verificationMaterial.publicKey.hint",
        parse_public_key(public_pem(b.keys["ci"])).hint,  # type: ignore[union-attr]
    )) and None),
    ("signature-key", 76, by(envelope=setting("verificationMaterial.publicKey.hint", "0" * 64))),
    ("signature-value", 76, _off_the_curve),
    ("signature-trusted", 76, _other_model_s_key),
    ("signature-trusted", 76, _two_names_of_one_key),
    ("trust-policy", 76, _one_key_by_two_names),
    ("signature-key", 76, policy("refused", ["ci"])),
    ("signature-trusted", 76, _refused_by_its_other_name),
    ("signature-trusted", 76, policy("models", {"other": {"keys": ["ci"], "threshold": 1}})),
    # The signature's own bytes
    ("signature-value", 76, by(signature=lambda data: b"garbage")),
    ("signature-value", 76, by(signature=lambda data: data[:-1])),
    ("signature-value", 76, by(signature=lambda data: data + b"\0")),
    ("signature-value", 76, by(signature=lambda data: _as_bytes(0, 1))),
    ("signature-value", 76, by(signature=lambda data: _as_bytes(1, 0))),
    ("signature-value", 76, by(signature=lambda data: _as_bytes(ORDER_OF_P256, ORDER_OF_P256))),
    ("signature-value", 76, by(encode=_legacy)),
    ("signature-value", 76, by(encode=lambda data: data)),
    # The envelope
    ("signature-envelope", 76, by(signature=lambda data: b"")),
    ("signature-envelope", 76, by(envelope=setting("mediaType", "application/json"))),
    ("signature-envelope", 76, by(envelope=setting("verificationMaterial", {"certificate": {}}))),
    ("signature-envelope", 76, by(envelope=setting("verificationMaterial.publicKey.hint", ""))),
    ("signature-envelope", 76, by(envelope=setting(f"{_ENVELOPE}.payloadType", "text/plain"))),
    ("signature-envelope", 76, by(envelope=setting(f"{_ENVELOPE}.signatures", []))),
    ("signature-envelope", 76, by(envelope=setting(f"{_ENVELOPE}.signatures.1", {"sig": "AAAA"}))),
    ("signature-envelope", 76, by(envelope=setting(f"{_ENVELOPE}.payload", 7))),
    ("signature-envelope", 76, by(envelope=_blank_in_base64)),
    ("signature-envelope", 76, by(envelope=_stray_bits)),
    ("signature-envelope", 76, by(text=lambda data: b"")),
    ("signature-envelope", 76, by(text=lambda data: b"[" * 1_000_000)),
    ("signature-envelope", 76, by(text=lambda data: data[:-1] + b', "mediaType": ""}')),
    ("signature-envelope", 76, by(text=lambda data: data[:-1] + b', "n": NaN}')),
    ("signature-envelope", 76, by(text=lambda data: data[:-1] + b', "n": ' + b"9" * 5_000_000 + b"}")),
    # The statement
    ("statement-form", 76, by(payload=lambda data: b"{}")),
    ("statement-form", 76, by(payload=lambda data: data[:-1] + b', "_type": "x"}')),
    ("statement-form", 76, by(payload=lambda data: data[:-1] + b', "n": NaN}')),
    ("statement-form", 76, by(statement=setting("_type", "https://in-toto.io/Statement/v0.1"))),
    ("statement-form", 76, by(statement=setting("predicateType", "https://slsa.dev/provenance/v1"))),
    ("statement-form", 76, by(statement=setting("another", 1))),
    ("statement-form", 76, by(statement=setting("subject.1", {"name": "b", "digest": {}}))),
    ("statement-form", 76, by(statement=setting(f"{_SERIALIZATION}.method", "shards"))),
    ("statement-form", 76, by(statement=setting(f"{_SERIALIZATION}.shard_size", 1 << 20))),
    ("statement-form", 76, by(statement=setting(f"{_SERIALIZATION}.hash_type", "blake3"))),
    ("statement-form", 76, by(statement=setting(f"{_SERIALIZATION}.allow_symlinks", True))),
    ("statement-form", 76, by(statement=setting(f"{_SERIALIZATION}.allow_symlinks", 0))),
    ("statement-form", 76, by(statement=setting(f"{_SERIALIZATION}.ignore_paths", ["code"]))),
    ("statement-form", 76, by(statement=setting(f"{_FIRST}.algorithm", "blake3"))),
    ("statement-form", 76, by(statement=setting(f"{_FIRST}.digest", "0" * 63))),
    ("statement-form", 76, by(statement=setting(f"{_FIRST}.name", "../weights.fp32"))),
    ("statement-form", 76, by(statement=setting(f"{_FIRST}.name", "/weights.fp32"))),
    ("statement-form", 76, by(statement=setting(f"{_FIRST}.name", "weights.fp32"))),
    ("statement-digest", 76, by(statement=setting("subject.0.digest.sha256", "0" * 64))),
    ("statement-files", 76, by(statement=setting(_FIRST, DELETE))),
    ("statement-files", 76, by(statement=setting(f"{_FIRST}.digest", "0" * 64))),
    ("statement-files", 76, by(statement=setting(f"{_FIRST}.name", "another"))),
    ("statement-files", 76, by(statement=setting(_RESOURCES, []))),
    # Files that nobody listed
    ("file-unlisted", 22, after(lambda b: (b.path / "sitecustomize.py").touch())),
    ("file-unlisted", 22, after(lambda b: (b.path / "code/x86-64/another.so").touch())),
    ("file-unlisted", 22, after(lambda b: (b.path / ".git").mkdir())),
    ("file-unlisted", 22, after(lambda b: (b.path / "code/__pycache__").mkdir())),
    ("file-unlisted", 22, after(lambda b: (b.path / "signatures/code.so").touch())),
    # Releases
    ("release-version", 20, released(release_version=2)),
    ("release-number", 20, released(floor=43)),
    ("release-number", 20, released(number=-1)),
    ("release-time", 20, released(created="yesterday")),
    ("release-time", 20, released(expires="2026-02-01")),
    ("release-name", 20, released(name="small")),
    ("release-floor", 77, policy("models.tiny*.floor", 43)),
    # The device
    ("trust-folder", 76, after(lambda b: b.trust.chmod(0o775))),
    ("trust-folder", 76, after(lambda b: (b.trust / "ci.pem").chmod(0o666))),
    ("trust-folder", 76, after(lambda b: b.trust.rename(b.trust.with_name("elsewhere")))),
    ("trust-policy", 76, after(lambda b: (b.trust / "policy.json").unlink())),
    ("json-syntax", 76, after(lambda b: b.write_policy(b"{"))),
    ("trust-policy", 76, policy("policy_version", 2)),
    ("trust-policy", 76, policy("allow_unsigned", True)),
    ("trust-policy", 76, policy("expiry", "sometimes")),
    *(("trust-policy", 76, policy("refused", [item]))
      for item in ("Ci", "ci.pem", "A" * 64, "a" * 63, "sha256:" + "a" * 64)),
    ("trust-policy", 76, policy("models.tiny*.threshold", 0)),
    ("trust-policy", 76, policy("models.tiny*.threshold", 3)),
    ("trust-policy", 76, policy("models.tiny*.keys", ["../ci"])),
    ("trust-policy", 76, policy("models.*tiny", {"keys": ["ci"], "threshold": 1})),
    ("list-size", 76, policy("models", {})),
    ("list-size", 76, policy("models.tiny*.keys", [])),
    ("trust-key", 76, after(lambda b: (b.trust / "release.pem").unlink())),
    ("trust-key", 76, after(lambda b: (b.trust / "ci.pem").unlink() or (b.trust / "ci.pem").mkdir())),
    ("trust-key", 76, after(lambda b: b.write_key("ci", b""))),
    ("trust-key", 76, after(lambda b: b.write_key("ci", public_pem(b.keys["ci"]) * 2))),
    ("trust-key", 76, _foreign_key("rsa")),
    ("trust-key", 76, _foreign_key("ed25519")),
    ("trust-key", 76, _foreign_key("SECP256K1")),
]  # fmt: skip
#: Rules whose tests need more than a bundle and a policy; see test_trust.py.
APART = ("bundle-refused", "release-expired", "crypto-missing")
