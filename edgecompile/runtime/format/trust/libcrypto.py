"""ECDSA signatures, checked by the system's libcrypto or by the package cryptography.

Only functions are called that OpenSSL 1.1.1 and 3 both have under the same name.
"""

import ctypes
import functools
from ctypes import c_char_p, c_int, c_long, c_size_t, c_void_p
from typing import Any, Callable, List, Optional, Tuple

from ...base.errors import CryptoMissingError

#: By their SONAMEs, which never change meaning; the first one that fits is taken.
SONAMES = ("libcrypto.so.3", "libcrypto.so.1.1")
#: (DER of a public key, name of the hash, signed bytes, DER of the signature) -> whether it is valid.
Verifier = Callable[[bytes, str, bytes, bytes], bool]

_FUNCTIONS: Tuple[Tuple[str, Any, Tuple[Any, ...]], ...] = (
    ("d2i_PUBKEY", c_void_p, (c_void_p, ctypes.POINTER(c_void_p), c_long)),
    ("EVP_MD_CTX_new", c_void_p, ()),
    ("EVP_MD_CTX_free", None, (c_void_p,)),
    ("EVP_DigestVerifyInit", c_int, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)),
    ("EVP_DigestVerify", c_int, (c_void_p, c_char_p, c_size_t, c_char_p, c_size_t)),
    ("EVP_sha256", c_void_p, ()),
    ("EVP_sha384", c_void_p, ()),
    ("EVP_sha512", c_void_p, ()),
    ("EVP_PKEY_free", None, (c_void_p,)),
    ("ERR_clear_error", None, ()),
)

_verifier: Optional[Verifier] = None


def find_verifier() -> Verifier:
    """The function that checks signatures here, found once in a process.

    Raises:
        CryptoMissingError: there is neither libcrypto nor the package cryptography.
    """
    global _verifier
    if _verifier is None:
        _verifier = _load()
    return _verifier


def _load() -> Verifier:
    problems: List[str] = []
    for name in SONAMES:
        try:
            return _Libcrypto(name).verify
        except (OSError, AttributeError) as error:  # it isn't there, or lacks a function
            problems.append(str(error))
    try:
        return _verify_by_package()
    except ImportError as error:
        problems.append(str(error))
    raise CryptoMissingError(
        "signatures can't be checked here: {} [crypto-missing]".format("; ".join(problems)),
        "install OpenSSL's library (libssl3 or libssl1.1), or pip install cryptography",
    )


class _Key:
    """A loaded key: OpenSSL 3 takes longer to decode one than to check a signature by it."""

    def __init__(self, library: ctypes.CDLL, key: bytes) -> None:
        buffer = ctypes.create_string_buffer(key, len(key))
        place = c_void_p(ctypes.addressof(buffer))
        #: None: it isn't a key.
        self.pointer: Optional[int] = library.d2i_PUBKEY(None, ctypes.byref(place), len(key))
        self._free = library.EVP_PKEY_free

    def __del__(self) -> None:
        self._free(self.pointer)


class _Libcrypto:
    """One loaded library."""

    def __init__(self, name: str) -> None:
        library = ctypes.CDLL(name)
        for function, result, arguments in _FUNCTIONS:
            loaded = getattr(library, function)
            loaded.restype, loaded.argtypes = result, arguments
        self._library = library
        self._load = functools.lru_cache(maxsize=64)(functools.partial(_Key, library))

    def verify(self, key: bytes, digest: str, message: bytes, signature: bytes) -> bool:
        """See ``Verifier``."""
        library = self._library
        loaded = self._load(key)  # held until the end: the cache may drop it meanwhile
        context = library.EVP_MD_CTX_new()
        try:
            if not loaded.pointer or not context:
                return False
            kind = getattr(library, "EVP_" + digest)()
            # Failures are 0 or below: only 1 is success.
            if library.EVP_DigestVerifyInit(context, None, kind, None, loaded.pointer) != 1:
                return False
            done: int = library.EVP_DigestVerify(
                context, signature, len(signature), message, len(message)
            )
            return done == 1
        finally:
            library.EVP_MD_CTX_free(context)
            # Others of this process, such as ssl, read the same queue.
            library.ERR_clear_error()


def _verify_by_package() -> Verifier:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def verify(key: bytes, digest: str, message: bytes, signature: bytes) -> bool:
        kind = getattr(hashes, digest.upper())
        try:
            loaded = serialization.load_der_public_key(key)
            if not isinstance(loaded, ec.EllipticCurvePublicKey):
                return False
            loaded.verify(signature, message, ec.ECDSA(kind()))
        except (InvalidSignature, ValueError):
            return False
        return True

    return verify
