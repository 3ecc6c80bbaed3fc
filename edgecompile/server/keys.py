"""Bearer keys, as HTTP's header and gRPC's metadata have them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection

from edgecompile.server.errors import Unauthorized


class Keys:
    """The keys of which a request has to bring one; false where there are none, and anybody may ask."""

    def __init__(self, keys: Collection[bytes]) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, authorization: bytes) -> None:
        """Compares what a request has under ``authorization``; call it where there are keys.

        Raises:
            Unauthorized: it isn't ``Bearer KEY`` with one of them. Blanks around the key don't count.
        """
        scheme, _, key = authorization.partition(b" ")
        # Every key is compared, and each in a time that doesn't depend on how much of it was right.
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, stored) for stored in self._digests]
        if scheme.lower() != b"bearer" or not any(matches):
            raise Unauthorized("needs authorization: Bearer KEY, with a key of this server")


def _digest(key: bytes) -> bytes:
    """A digest of the key, of the same length for all keys."""
    return hashlib.sha256(key).digest()
