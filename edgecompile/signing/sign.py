"""Writes signatures into a bundle, in the form of OpenSSF Model Signing 1.0, and checks them as a device does."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from edgecompile import checks
from edgecompile.errors import BundleWriteError, ToolchainError, UsageError
from edgecompile.files import plain_fields, replacing
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.manifest.schema import MANIFEST_NAME, Manifest
from edgecompile.runtime.format.trust import statement as form
from edgecompile.runtime.format.trust.keys import PublicKey, parse_public_key
from edgecompile.runtime.format.trust.libcrypto import find_verifier
from edgecompile.runtime.format.trust.policy import OFF, TRUST_VARIABLE, find_policy
from edgecompile.runtime.format.trust.release import (
    RELEASE_NAME,
    RELEASE_VERSION,
    Release,
    parse_release,
)
from edgecompile.signing.keys import PathLike, public_pem, read_private_key, read_public_key

_Sign = Callable[[bytes], bytes]
#: Times of releases, as ``strptime`` has it.
_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class Signature:
    """A signature that was written into a bundle.

    Attributes:
        path: the signature file.
        key: hex SHA-256 of the public key's PEM text, by which the file names it.
        subject_sha256: digest over all files, the subject of the statement.
        manifest_sha256: identity of the bundle.
        release: number of the release; None: the bundle has no ``release.json``.
    """

    path: Path
    key: str
    subject_sha256: str
    manifest_sha256: str
    release: int | None

    def to_json(self) -> dict[str, Any]:
        """The document that ``edgecompile sign --json`` prints."""
        return {**plain_fields(self), "path": str(self.path)}


def sign(
    bundle: PathLike,
    key: PathLike | None = None,
    *,
    signer: Sequence[str] | None = None,
    public_key: PathLike | None = None,
    name: str | None = None,
    release: int | None = None,
    floor: int | None = None,
    expires: str | None = None,
    note: str = "",
    force: bool = False,
) -> Signature:
    """Signs a bundle; further keys add signatures beside it.

    Every file is hashed first. The signature covers all files, the manifest and the release.

    Args:
        bundle: Path of the bundle.
        key: PEM file with the private key, of P-256, P-384 or P-521.
        signer: Command in place of a key, as a list of arguments: it reads the bytes to sign on its standard input
            and writes the ECDSA signature in DER.
        public_key: PEM file with the signer's public key.
        name: Name of the signature file without its ending; None: that of the key's file.
        release: Number of the release, for a new ``release.json``; None: it stays as it is.
        floor: Least release that a device's store takes once this one is confirmed there; None: 0.
        expires: Time from which the release counts as expired, such as 2027-01-31T00:00:00Z.
        note: Text for people, in the release.
        force: Whether another release may replace one that is signed, and the signatures over it.

    Raises:
        UsageError: the arguments don't fit each other, a key can't be used, or another key's signature has the name.
        BundleError, DamagedBundleError: the bundle is malformed or damaged.
        UntrustedBundleError: this machine's trust folder is locked, and wants signatures.
        ToolchainError: the signer fails, or its signature isn't by the public key.
        MissingDependencyError: the package cryptography isn't installed.
        BundleWriteError: a file can't be written.
    """
    path = checks.given_path("bundle", bundle, "the path of a bundle")
    public, make, stem = _find_signer(key, signer, public_key)
    name = stem if name is None else name
    if not form.is_signature_name(f"{name}.sig"):
        raise UsageError(
            f"`name` is {name!r}",
            hint="give 1 to 100 letters, digits, dots, hyphens and underscores",
        )
    with closing(BundleFolder(str(path), trust=False)) as folder:
        folder.check_hashes()
        manifest, sha256 = folder.manifest, folder.manifest_sha256
    _check_names(manifest)
    data, dropped = _settle_release(path, manifest, release, floor, expires, note, force)
    target = path / form.SIGNATURES_NAME / f"{name}.sig"
    if target not in dropped:
        _check_replaced(target, public)
    digests = {file: entry.sha256 for file, entry in manifest.files.items()}
    digests[MANIFEST_NAME] = sha256
    if data is not None:
        digests[RELEASE_NAME] = hashlib.sha256(data).hexdigest()
    payload, subject = make_statement(path.resolve().name, digests)
    message = form.encode(payload)
    signature = make(message)
    if not find_verifier()(public.der, public.digest, message, signature):
        raise ToolchainError("the signature that was made isn't by the public key that was given")
    number = None if data is None else parse_release(data, RELEASE_NAME).number
    text = _envelope(public, payload, signature)
    _check_room(target, text, dropped)
    # Nothing was touched so far: a signer may fail.
    if data is not None and _read_release(path) != data:
        _write(path / RELEASE_NAME, data)
    _write(target, text)
    for other in dropped - {target}:
        with _writing(other):
            other.unlink()
    return Signature(target, public.hint, subject, sha256, number)


def verify_signature(bundle: PathLike, trust: PathLike | None = None) -> dict[str, Any]:
    """Checks a bundle's signatures as a device does, and the hash of every file.

    Args:
        bundle: Path of the bundle.
        trust: Trust folder; None: the one of this machine.

    Returns:
        "bundle", "trust", "manifest_sha256", "keys" (the names of those whose signatures count) and "release"
        (the fields of ``release.json``, or None).

    Raises:
        UsageError: no trust folder is given, and this machine has none or checks nothing.
        UntrustedBundleError and its subclasses: a device wouldn't open it.
        BundleError, DamagedBundleError: it is malformed or damaged.
    """
    path = checks.given_path("bundle", bundle, "the path of a bundle")
    policy = find_policy(trust)
    if policy is None:
        is_off = os.environ.get(TRUST_VARIABLE) == OFF
        why = f"{TRUST_VARIABLE} is {OFF}" if is_off else "there is no trust folder on this machine"
        raise UsageError(f"{why}: nothing would be checked", hint="give `trust`")
    with closing(BundleFolder(str(path), trust=policy.path)) as folder:
        folder.check_hashes()
        assert folder.verified is not None
        keys, release, _ = folder.verified
        return {
            "bundle": str(path),
            "trust": policy.path,
            "manifest_sha256": folder.manifest_sha256,
            "keys": list(keys),
            "release": None if release is None else release._asdict(),
        }


def make_statement(name: str, digests: dict[str, str]) -> tuple[bytes, str]:
    """The bytes of an in-toto statement over files, and the digest of its subject.

    Args:
        name: Name of the folder.
        digests: SHA-256 in hex by path.
    """
    names = sorted(digests)
    subject = hashlib.sha256(b"".join(bytes.fromhex(digests[file]) for file in names)).hexdigest()
    document = {
        "_type": form.STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": subject}}],
        "predicateType": form.PREDICATE_TYPE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": [form.SIGNATURES_NAME, *form.GIT_NAMES],
            },
            "resources": [
                {"name": file, "algorithm": "sha256", "digest": digests[file]} for file in names
            ],
        },
    }
    return json.dumps(document, separators=(",", ":")).encode(), subject


def _envelope(key: PublicKey, payload: bytes, signature: bytes) -> bytes:
    signed = {"sig": base64.b64encode(signature).decode(), "keyid": ""}
    document = {
        "mediaType": form.MEDIA_TYPE,
        "verificationMaterial": {"publicKey": {"hint": key.hint}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": form.PAYLOAD_TYPE,
            "signatures": [signed],
        },
    }
    return (json.dumps(document) + "\n").encode()


def _find_signer(
    key: PathLike | None, signer: Sequence[str] | None, public_key: PathLike | None
) -> tuple[PublicKey, _Sign, str]:
    """The public key, the function that signs, and the name of the key's file without its ending."""
    if (key is None) == (signer is None) or (signer is None) != (public_key is None):
        raise UsageError(
            "a signature is made by a key or by a command",
            hint="give `key`, or `signer` with `public_key`",
        )
    if key is not None:
        path = checks.given_path("key", key, "the PEM file of a private key")
        private = read_private_key(path)
        public = parse_public_key(public_pem(private))
        assert public is not None

        def sign_here(message: bytes) -> bytes:
            from cryptography.hazmat.primitives import hashes
            from cryptography.hazmat.primitives.asymmetric import ec

            kind = getattr(hashes, public.digest.upper())
            return private.sign(message, ec.ECDSA(kind()))

        return public, sign_here, path.stem
    if isinstance(signer, str) or not all(isinstance(item, str) for item in signer or ()):
        raise UsageError(f"`signer` is {signer!r}", hint="give a list of arguments")
    command = [*(signer or ())]
    if not command:
        raise UsageError("`signer` is empty", hint="give a program and its arguments")
    path = checks.given_path("public_key", public_key, "the PEM file of a public key")

    def sign_there(message: bytes) -> bytes:
        try:
            done = subprocess.run(command, input=message, stdout=subprocess.PIPE, check=False)
        except OSError as error:
            text = f"{command[0]}: the signer can't be started: {error.strerror}"
            raise ToolchainError(text) from None
        if done.returncode:
            raise ToolchainError(f"{command[0]}: the signer failed with {done.returncode}")
        return done.stdout

    return read_public_key(path), sign_there, path.stem


def _check_names(manifest: Manifest) -> None:
    """Other tools pass over some names, so a signature mustn't have to cover them."""
    for file in manifest.files:
        top = file.partition("/")[0]
        if top in form.GIT_NAMES or top in (form.SIGNATURES_NAME, RELEASE_NAME):
            raise UsageError(f"the bundle lists {file}, which no signature may cover")


def _settle_release(
    path: Path,
    manifest: Manifest,
    number: int | None,
    floor: int | None,
    expires: str | None,
    note: str,
    force: bool,
) -> tuple[bytes | None, set[Path]]:
    """The bytes that the bundle's release is to have, and the signatures over another one."""
    target = path / RELEASE_NAME
    old = _read_release(path)
    if number is None:
        if floor is not None or expires is not None or note:
            raise UsageError("`floor`, `expires` and `note` go with `release`")
        if old is not None:
            _check_release(parse_release(old, str(target)), manifest)
        return old, set()
    checks.whole("release", number, 0)
    checks.whole("floor", floor, 0, number)
    checks.text("note", note)
    now = datetime.now(timezone.utc).strftime(_TIME)
    wanted = Release(manifest.name, number, floor or 0, now, expires, note)
    if expires is not None and not _is_time(expires):
        raise UsageError(
            f"`expires` is {expires!r}", hint="give a time such as 2027-01-31T00:00:00Z"
        )
    if old is not None:
        known = parse_release(old, str(target))
        if known == wanted._replace(created=known.created):
            return old, set()  # the same arguments, with another key
    data = (json.dumps({"release_version": RELEASE_VERSION, **wanted._asdict()}) + "\n").encode()
    parse_release(data, str(target))
    folder = path / form.SIGNATURES_NAME
    signatures = sorted(folder.glob("*.sig")) if folder.is_dir() else []
    if signatures and not force:
        raise UsageError(
            f"{path}: {len(signatures)} signatures are over another release",
            hint="sign without `release` to add one, or give `force` to drop them",
        )
    return data, set(signatures)


def _read_release(path: Path) -> bytes | None:
    target = path / RELEASE_NAME
    return target.read_bytes() if target.is_file() and not target.is_symlink() else None


def _is_time(text: str) -> bool:
    """Whether it has the form of times, and there is such a day."""
    try:
        time = datetime.strptime(text, _TIME)
    except ValueError:
        return False
    return time.strftime(_TIME) == text


def _check_replaced(target: Path, key: PublicKey) -> None:
    """Refuses to overwrite what isn't an earlier signature by this key."""
    if not os.path.lexists(target):
        return
    try:
        if form.parse_envelope(target.read_bytes()).hint == key.hint:
            return
    except (OSError, form.Fault):
        pass
    raise UsageError(f"{target} isn't by this key", hint="give another `name`, or remove it")


def _check_room(target: Path, data: bytes, dropped: set[Path]) -> None:
    """Refuses a signature with which devices would refuse the bundle."""
    present = set(target.parent.iterdir()) if target.parent.is_dir() else set()
    kept = present - dropped - {target}
    size = len(data) + sum(path.stat().st_size for path in kept)
    if len(kept) >= form.MAX_SIGNATURES or size > form.MAX_SIGNATURE_BYTES:
        raise UsageError(
            f"{target.parent} would hold {len(kept) + 1} files, {size} bytes",
            hint=f"devices take {form.MAX_SIGNATURES} files of {form.MAX_SIGNATURE_BYTES} bytes: remove old ones",
        )


def _write(target: Path, data: bytes) -> None:
    """Writes a file that every user of the bundle may read, whatever the umask."""
    with _writing(target):
        if not target.parent.is_dir():
            target.parent.mkdir()
            target.parent.chmod(0o755)
        with replacing(target, sync=True) as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o644)


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BundleWriteError(f"{target} can't be written: {error.strerror}") from None


def _check_release(release: Release, manifest: Manifest) -> None:
    if release.name != manifest.name:
        raise UsageError(
            f"{RELEASE_NAME} is of {release.name}, the bundle of {manifest.name}",
            hint="give `release`, for a new one",
        )
