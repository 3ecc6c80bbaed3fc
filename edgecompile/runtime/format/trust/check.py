"""Checks a bundle's signatures: first over the manifest's bytes, then over what the manifest lists."""

import hashlib
import os
import stat
import time
from typing import Dict, List, NamedTuple, Optional, Tuple

from ...base.errors import (
    BundleError,
    ExpiredReleaseError,
    RefusedReleaseError,
    UnsignedBundleError,
    UntrustedBundleError,
)
from ...base.limits import raise_limit
from ..document import shorten
from ..manifest.schema import MANIFEST_NAME, Manifest
from .libcrypto import find_verifier
from .policy import TRUST_VARIABLE, Policy
from .release import MAX_RELEASE_BYTES, RELEASE_NAME, Release, parse_release
from .statement import (
    MAX_SIGNATURE_BYTES,
    MAX_SIGNATURES,
    SIGNATURES_NAME,
    Fault,
    encode,
    is_signature_name,
    parse_envelope,
    parse_statement,
)

# O_NONBLOCK: opening a FIFO that lies where a file should be must not hang.
_FILE_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FOLDER_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY
_UNSIGNED_HINT = (
    "sign it where it is built (edgecompile sign); a build host opens its own bundles with "
    + TRUST_VARIABLE
    + "=off, unless its trust folder is locked"
)


class Signed(NamedTuple):
    """A manifest that a trusted key signed, which nobody has parsed yet.

    Attributes:
        path: the bundle, for messages.
        policy: the device's policy.
        statements: what the signatures state, by the name of the key: of each, digest by path.
        faults: the reason why each other signature doesn't count.
        release: bytes of ``release.json``; None: there is none.
        sha256: hex SHA-256 of the manifest.
    """

    path: str
    policy: Policy
    statements: Dict[str, List[Dict[str, str]]]
    faults: Tuple[str, ...]
    release: Optional[bytes]
    sha256: str

    def judge(self, manifest: Manifest) -> "Verified":
        """Compares the parsed manifest with the statements and the policy.

        Raises:
            UntrustedBundleError: too few of the model's keys signed exactly these files.
            RefusedReleaseError, ExpiredReleaseError: the device doesn't take this release.
            BundleError: the release is malformed, or another model's.
        """
        rule = self.policy.find_rule(manifest.name)
        if rule is None:
            text = "{}: {} has no rule for the model {} [signature-trusted]"
            raise UntrustedBundleError(text.format(self.path, self.policy.path, manifest.name))
        wanted = {name: entry.sha256 for name, entry in manifest.files.items()}
        wanted[MANIFEST_NAME] = self.sha256
        if self.release is not None:
            wanted[RELEASE_NAME] = hashlib.sha256(self.release).hexdigest()
        faults = list(self.faults)
        signers: Dict[bytes, str] = {}
        for name, statements in self.statements.items():
            if name not in rule.keys:
                faults.append("{}: isn't a key of this model".format(name))
            elif wanted in statements:
                # A key of two names counts once.
                signers.setdefault(self.policy.keys[name].der, name)
            else:
                differences = [_difference(statement, wanted) for statement in statements]
                faults += ["{}: {}".format(name, text) for text in differences]
        if len(signers) < rule.threshold:
            raise untrusted(self.path, len(signers), rule.threshold, faults)
        release = self._judge_release(manifest, rule.floor)
        return Verified(tuple(sorted(signers.values())), release, self.policy)

    def _judge_release(self, manifest: Manifest, floor: int) -> Optional[Release]:
        if self.sha256 in self.policy.refused:
            text = "{}: {} refuses this bundle [bundle-refused]"
            raise RefusedReleaseError(text.format(self.path, self.policy.path))
        release = None
        if self.release is not None:
            release = parse_release(self.release, os.path.join(self.path, RELEASE_NAME))
            if release.name != manifest.name:
                text = "{}: {} is of the model {}, the manifest of {} [release-name]"
                raise BundleError(text.format(self.path, RELEASE_NAME, release.name, manifest.name))
        number = -1 if release is None else release.number
        if floor and number < floor:
            text = "{}: is {}, must be {} or later [release-floor]"
            which = "no release" if release is None else "release {}".format(number)
            raise RefusedReleaseError(text.format(self.path, which, floor))
        if release is not None and release.expires is not None and self.policy.expires:
            # A device without a clock is in 1970: the release wasn't made before it was.
            now = max(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), release.created)
            if now >= release.expires:
                text = "{}: release {} expired at {}, it is {} [release-expired]"
                raise ExpiredReleaseError(text.format(self.path, number, release.expires, now))
        return release


class Verified(NamedTuple):
    """A bundle whose signatures were checked: the names of the keys that count, its release, and the policy."""

    keys: Tuple[str, ...]
    release: Optional[Release]
    policy: Policy


def check_signatures(fd: int, path: str, manifest: bytes, policy: Policy) -> Signed:
    """Checks that a trusted key signed the bytes of a manifest.

    Args:
        fd: descriptor of the bundle's folder.
        path: the folder, for messages.
        manifest: bytes of its manifest.
        policy: the device's policy.

    Raises:
        BundleError: there are signatures that can't be files of a bundle.
        UnsignedBundleError: there is no signature.
        UntrustedBundleError: none is by a key of the policy over this manifest.
        CryptoMissingError: there is nothing that could check them.
        HostLimitError: the system doesn't let them be opened.
    """
    files = _read_signatures(fd, path)
    if not files:
        text = "{}: isn't signed, and {} wants signatures [signature-missing]"
        raise UnsignedBundleError(text.format(path, policy.path), _UNSIGNED_HINT)
    verify = find_verifier()
    sha256 = hashlib.sha256(manifest).hexdigest()
    by_hint = {key.hint: name for name, key in policy.keys.items()}
    statements: Dict[str, List[Dict[str, str]]] = {}
    parsed: Dict[bytes, Dict[str, str]] = {}
    faults = []
    for name, data in files:
        try:
            envelope = parse_envelope(data)
            signer = by_hint.get(envelope.hint)
            if signer is None and envelope.hint in policy.refused_hints:
                text = "is by the key {}, which {} refuses"
                text = text.format(policy.refused_hints[envelope.hint], policy.path)
                raise Fault("signature-key", text)
            if signer is None:
                raise Fault("signature-key", "is by a key that {} doesn't hold".format(policy.path))
            key = policy.keys[signer]
            if not verify(key.der, key.digest, encode(envelope.payload), envelope.signature):
                raise Fault("signature-value", "isn't what the key {} signed".format(signer))
            if envelope.payload not in parsed:  # each signer states the same, as a rule
                parsed[envelope.payload] = parse_statement(envelope.payload)
            if parsed[envelope.payload].get(MANIFEST_NAME) != sha256:
                raise Fault("statement-files", "states another {}".format(MANIFEST_NAME))
        except Fault as fault:
            faults.append("{}/{}: {}".format(SIGNATURES_NAME, name, fault))
        else:
            for other, same in policy.keys.items():  # the model's rule may know it by another name
                if same.der == key.der:
                    statements.setdefault(other, []).append(parsed[envelope.payload])
    if not statements:
        raise untrusted(path, 0, 1, faults)
    release = _read(fd, path, RELEASE_NAME, MAX_RELEASE_BYTES, "release-file", optional=True)
    return Signed(path, policy, statements, tuple(faults), release, sha256)


def untrusted(path: str, count: int, wanted: int, faults: List[str]) -> UntrustedBundleError:
    """The error of a bundle that too few keys signed."""
    text = "{}: {} of its signatures count, {} must [signature-trusted]".format(path, count, wanted)
    return UntrustedBundleError("\n  ".join([text, *faults]))


def _difference(stated: Dict[str, str], wanted: Dict[str, str]) -> str:
    """The first file that is stated otherwise than it is."""
    names = sorted(name for name in {*stated, *wanted} if stated.get(name) != wanted.get(name))
    what = "another content of" if names[0] in stated and names[0] in wanted else "nothing of"
    if names[0] not in wanted:
        what = "besides"
    return "signed {} {} [statement-files]".format(what, shorten(names[0], 200))


def _read_signatures(fd: int, path: str) -> List[Tuple[str, bytes]]:
    place = os.path.join(path, SIGNATURES_NAME)
    try:
        folder = os.open(SIGNATURES_NAME, _FOLDER_FLAGS, dir_fd=fd)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise_limit(error, place)
        text = "{}: isn't a folder, or can't be opened: {} [signature-folder]"
        raise BundleError(text.format(place, error.strerror)) from None
    try:
        names = []
        with os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) > MAX_SIGNATURES:
                    text = "{}: holds more than {} files [signature-count]"
                    raise BundleError(text.format(place, MAX_SIGNATURES))
        names = sorted(filter(is_signature_name, names))
        found = []
        rest = MAX_SIGNATURE_BYTES  # all of it is parsed before any key is asked
        for name in names:
            data = _read(folder, place, name, rest, "signature-file")
            assert data is not None
            found.append((name, data))
            rest = max(0, rest - len(data))
        return found
    finally:
        os.close(folder)


def _read(
    folder: int, path: str, name: str, limit: int, rule: str, optional: bool = False
) -> Optional[bytes]:
    place = os.path.join(path, name)
    try:
        fd = os.open(name, _FILE_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        if optional:
            return None
        raise BundleError("{}: is missing [{}]".format(place, rule)) from None
    except OSError as error:
        raise_limit(error, place)
        text = "{}: is a link, or can't be opened: {} [{}]"
        raise BundleError(text.format(place, error.strerror, rule)) from None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise BundleError("{}: isn't a regular file [{}]".format(place, rule))
        if info.st_size > limit:
            text = "{}: {} bytes, at most {} [{}]"
            raise BundleError(text.format(place, info.st_size, limit, rule))
        with os.fdopen(os.dup(fd), "rb") as stream:
            data: bytes = stream.read(limit + 1)
            return data
    finally:
        os.close(fd)
