"""Signature files and what they state: OpenSSF Model Signing 1.0, by a key, with a SHA-256 for each file.

A file is a Sigstore bundle that holds a DSSE envelope; its payload is an in-toto statement.
"""

import hashlib
import re
from typing import Any, Dict, Mapping, NamedTuple, Tuple

from ...base.errors import BundleError
from ..document import SHA256, parse_json
from ..manifest.parse import check_path
from .keys import decode_base64
from .release import RELEASE_NAME

SIGNATURES_NAME = "signatures"
MAX_SIGNATURES = 16
#: Of all files together.
MAX_SIGNATURE_BYTES = 8 << 20
MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"
#: Other tools pass these over, where they lie beside the manifest.
GIT_NAMES = (".git", ".gitattributes", ".github", ".gitignore")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}\.sig")
_OF_RESOURCE = {"name", "algorithm", "digest"}


class Envelope(NamedTuple):
    """The content of a signature file: the hint of its key, the signed payload and the signature in DER."""

    hint: str
    payload: bytes
    signature: bytes


class Fault(Exception):
    """The reason why a signature doesn't count: the id of a rule, and a text."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__("{} [{}]".format(text, rule))


def is_signature_name(name: str) -> bool:
    """Whether a file of the folder ``signatures`` may have this name."""
    return _FILE_NAME.fullmatch(name) is not None


def is_signing_file(path: str) -> bool:
    """Whether the manifest needn't list a file of this path: signatures and the release lie beside it."""
    folder, _, name = path.rpartition("/")
    return path == RELEASE_NAME or (folder == SIGNATURES_NAME and is_signature_name(name))


def encode(payload: bytes) -> bytes:
    """The bytes that are signed: DSSE's pre-authentication encoding."""
    head = "DSSEv1 {} {} {} ".format(len(PAYLOAD_TYPE), PAYLOAD_TYPE, len(payload))
    return head.encode() + payload


def parse_envelope(data: bytes) -> Envelope:
    """Parses a signature file.

    Raises:
        Fault: it isn't one by a key.
    """
    top = _parse(data, "signature-envelope")
    if top.get("mediaType") != MEDIA_TYPE:
        raise Fault("signature-envelope", "mediaType isn't " + MEDIA_TYPE)
    material, envelope = top.get("verificationMaterial"), top.get("dsseEnvelope")
    key = material.get("publicKey") if isinstance(material, dict) else None
    hint = key.get("hint") if isinstance(key, dict) else None
    if not isinstance(hint, str) or not SHA256.fullmatch(hint):
        text = "isn't by a key that it names (verify certificates and keyless signatures with model_signing)"
        raise Fault("signature-envelope", text)
    if not isinstance(envelope, dict) or envelope.get("payloadType") != PAYLOAD_TYPE:
        raise Fault("signature-envelope", "dsseEnvelope.payloadType isn't " + PAYLOAD_TYPE)
    signatures = envelope.get("signatures")
    if not isinstance(signatures, list) or len(signatures) != 1:
        raise Fault("signature-envelope", "dsseEnvelope doesn't hold exactly one signature")
    only = signatures[0]
    signature = _decode(only.get("sig") if isinstance(only, dict) else None)
    return Envelope(hint, _decode(envelope.get("payload")), signature)


def parse_statement(payload: bytes) -> Dict[str, str]:
    """Parses a signed payload.

    Returns:
        The SHA-256 in hex of each file, by its path in the bundle.

    Raises:
        Fault: it isn't a statement of this form.
    """
    top = _parse(payload, "statement-form")
    _keys(top, "_type", "subject", "predicateType", "predicate")
    _equal(top, "_type", STATEMENT_TYPE)
    _equal(top, "predicateType", PREDICATE_TYPE)
    predicate = top["predicate"]
    _keys(predicate, "serialization", "resources")
    serialization = predicate["serialization"]
    _keys(serialization, "method", "hash_type", "allow_symlinks", "ignore_paths")
    _equal(serialization, "method", "files")
    _equal(serialization, "hash_type", "sha256")
    _equal(serialization, "allow_symlinks", False)
    _check_ignored(serialization["ignore_paths"])
    digests, whole = _read_resources(predicate["resources"])
    subjects = top["subject"]
    if not isinstance(subjects, list) or len(subjects) != 1:
        raise Fault("statement-form", "it has not exactly one subject")
    _keys(subjects[0], "name", "digest")
    _keys(subjects[0]["digest"], "sha256")
    if subjects[0]["digest"]["sha256"] != whole:
        raise Fault("statement-digest", "the subject's digest isn't that of the resources")
    return digests


def _read_resources(resources: Any) -> Tuple[Dict[str, str], str]:
    """The files' digests, and the digest over them in their order."""
    if not isinstance(resources, list):
        raise Fault("statement-form", "resources must be a list")
    digests: Dict[str, str] = {}
    for item in resources:
        # One entry takes a microsecond or two: a bundle has a hundred, a large one thousands.
        if not isinstance(item, dict) or item.keys() != _OF_RESOURCE:
            raise Fault("statement-form", "a resource hasn't exactly a name, algorithm and digest")
        name, digest = item["name"], item["digest"]
        if item["algorithm"] != "sha256" or not isinstance(digest, str):
            raise Fault("statement-form", "a resource's algorithm isn't sha256")
        if not SHA256.fullmatch(digest):
            raise Fault("statement-form", "a resource's digest isn't 64 lower-case hex digits")
        if not isinstance(name, str) or check_path(name) is not None:
            raise Fault("statement-form", "a resource's name isn't a path in a bundle")
        if name in digests:
            raise Fault("statement-form", "a resource is named twice")
        digests[name] = digest
    whole = bytes.fromhex("".join(digests.values()))
    return digests, hashlib.sha256(whole).hexdigest()


def _check_ignored(paths: Any) -> None:
    """Signers may leave out signatures and git's files, nothing that a bundle consists of."""
    if not isinstance(paths, list):
        raise Fault("statement-form", "ignore_paths must be a list")
    for path in paths:
        name = path.rpartition("/")[2] if isinstance(path, str) else ""
        if path != SIGNATURES_NAME and path not in GIT_NAMES and not is_signature_name(name):
            raise Fault(
                "statement-form", "ignore_paths leaves out more than signatures and git's files"
            )


def _parse(data: bytes, rule: str) -> Dict[str, Any]:
    try:
        return parse_json(data, "it", MAX_SIGNATURE_BYTES)
    except BundleError as error:
        raise Fault(rule, error.message) from None


def _keys(value: Any, *names: str) -> None:
    if not isinstance(value, dict) or value.keys() != set(names):
        raise Fault("statement-form", "an object hasn't exactly the keys " + ", ".join(names))


def _equal(value: Mapping[str, Any], key: str, wanted: object) -> None:
    if value[key] != wanted or type(value[key]) is not type(wanted):
        raise Fault("statement-form", "{} isn't {}".format(key, wanted))


def _decode(text: object) -> bytes:
    data = decode_base64(text)
    if data is None:
        raise Fault("signature-envelope", "a value isn't canonical base64")
    return data
