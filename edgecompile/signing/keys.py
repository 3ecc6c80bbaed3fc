"""Key pairs: made, and read from PEM files by the package cryptography."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from edgecompile import checks
from edgecompile.errors import BundleWriteError, MissingDependencyError, UsageError
from edgecompile.runtime.format.trust.keys import PublicKey, parse_public_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

PathLike: TypeAlias = "str | os.PathLike[str]"


def generate_key(name: PathLike) -> tuple[Path, Path]:
    """Makes a key pair of the curve P-256.

    Args:
        name: Path of both files without their endings.

    Returns:
        Paths of the private key, NAME.key, which only this user can read, and of the public one, NAME.pem.

    Raises:
        UsageError: one of the files exists, or ``name`` ends in no name of a file.
        MissingDependencyError: the package cryptography isn't installed.
        BundleWriteError: a file can't be written.
    """
    base = checks.given_path("name", name, "the path of the key files, without an ending")
    if base.name in ("", ".."):
        raise UsageError(f"`name` is {str(name)!r}", hint="give a path that ends in a name")
    private, public = base.with_name(base.name + ".key"), base.with_name(base.name + ".pem")
    for path in (private, public):
        if os.path.lexists(path):
            raise UsageError(f"{path} is already there", hint="choose another `name`")
    require_cryptography()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        for path, data, mode in ((private, secret, 0o600), (public, public_pem(key), 0o644)):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(path, flags, mode), "wb") as file:
                file.write(data)
    except OSError as error:
        raise BundleWriteError(f"{path} can't be written: {error.strerror}") from None
    return private, public


def require_cryptography() -> None:
    """Raises MissingDependencyError unless the package cryptography can be imported."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "signing needs the Python package cryptography", "pip install 'edgecompile[signing]'"
        ) from None


def read_private_key(path: Path) -> EllipticCurvePrivateKey:
    """The key in a PEM file.

    Raises:
        UsageError: the file can't be read, or holds no such key; others may read it.
        MissingDependencyError: the package cryptography isn't installed.
    """
    require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    data = read_key_file("key", path)
    try:
        key: object = serialization.load_pem_private_key(data, None)
    except TypeError:
        raise UsageError(
            f"{path}: this key has a password",
            hint="give `signer`, such as: openssl dgst -sha256 -sign FILE",
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or parse_public_key(public_pem(key)) is None:
        raise UsageError(
            f"{path}: isn't a private key of P-256, P-384 or P-521 in PEM",
            hint="edgecompile keygen makes one",
        )
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise UsageError(f"{path}: other users may read this key", hint=f"chmod 600 {path}")
    return key


def read_public_key(path: Path) -> PublicKey:
    """The key in a PEM file.

    Raises:
        UsageError: the file can't be read, or holds anything else.
    """
    key = parse_public_key(read_key_file("public_key", path))
    if key is None:
        raise UsageError(
            f"{path}: isn't a public key of P-256, P-384 or P-521 in PEM",
            hint="openssl pkey -pubout writes one",
        )
    return key


def read_key_file(argument: str, path: Path) -> bytes:
    """The bytes of a file that an argument names; raises UsageError where it can't be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"`{argument}`: {path} can't be read: {error.strerror}") from None


def public_pem(key: EllipticCurvePrivateKey) -> bytes:
    """The public half of a key as PEM text."""
    from cryptography.hazmat.primitives import serialization

    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
