"""Public keys: PEM files with a key of the curve P-256, P-384 or P-521."""

import binascii
import hashlib
import re
from typing import NamedTuple, Optional, Tuple

#: Of each curve all of a key's DER before the point, the DER's size in bytes, and the hash of its signatures. The
#: bytes are compared, so no other kind of key is ever handed to a library.
CURVES: Tuple[Tuple[bytes, int, str], ...] = (
    (bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d03010703420004"), 91, "sha256"),
    (bytes.fromhex("3076301006072a8648ce3d020106052b8104002203620004"), 120, "sha384"),
    (bytes.fromhex("30819b301006072a8648ce3d020106052b810400230381860004"), 158, "sha512"),
)
MAX_KEY_BYTES = 4096
_PEM = re.compile(
    rb"\s*-----BEGIN PUBLIC KEY-----\r?\n([A-Za-z0-9+/=\r\n]+)-----END PUBLIC KEY-----\s*"
)


class PublicKey(NamedTuple):
    """A key.

    Attributes:
        der: SubjectPublicKeyInfo, its identity.
        digest: name of the hash of its signatures.
        hint: hex SHA-256 of its PEM text, by which signatures name it.
    """

    der: bytes
    digest: str
    hint: str


def parse_public_key(data: bytes) -> Optional[PublicKey]:
    """The key in the text of a PEM file; None: it holds anything else."""
    match = _PEM.fullmatch(data[: MAX_KEY_BYTES + 1])
    if match is None:
        return None
    der = decode_base64(re.sub(rb"[\r\n]", b"", match.group(1)).decode())
    if der is None:
        return None
    for prefix, size, digest in CURVES:
        if len(der) == size and der.startswith(prefix):
            return PublicKey(der, digest, hashlib.sha256(format_pem(der)).hexdigest())
    return None


def decode_base64(text: object) -> Optional[bytes]:
    """The bytes of canonical base64, of which each value has one text; None: it is anything else, or empty."""
    try:
        data = binascii.a2b_base64(text) if isinstance(text, str) else b""
    except ValueError:
        return None
    return data if data and _encode_base64(data) == text else None


def _encode_base64(data: bytes) -> str:
    # The module base64 would be imported for this alone.
    return binascii.b2a_base64(data, newline=False).decode()


def format_pem(der: bytes) -> bytes:
    """The PEM text of a public key, as ``openssl pkey -pubout`` writes it."""
    text = _encode_base64(der)
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join(
        ["-----BEGIN PUBLIC KEY-----", *lines, "-----END PUBLIC KEY-----", ""]
    ).encode()
