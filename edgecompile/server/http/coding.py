"""Bodies that come compressed."""

from __future__ import annotations

import zlib

from edgecompile.server.errors import BadRequest, WrongMedia

#: What clients may do to bodies.
TAKEN = b"gzip, deflate"
_GZIP, _ZLIB, _RAW = 31, 15, -15  # zlib's own numbers, for the largest window


class Inflate:
    """Decompresses a body piece by piece, and never more of it than is asked for."""

    def __init__(self, coding: bytes) -> None:
        """``coding``: the header Content-Encoding.

        Raises:
            WrongMedia: it is another one than gzip or deflate, or several.
        """
        gzip = coding in (b"gzip", b"x-gzip")
        if not gzip and coding != b"deflate":
            name = coding.decode("latin-1")
            raise WrongMedia(
                f"Content-Encoding {name!r:.50} isn't known here\nhint: send gzip, deflate or none"
            )
        self._stream = zlib.decompressobj(_GZIP) if gzip else None

    def feed(self, data: bytes, most: int) -> bytes:
        """The next piece, decompressed: at most ``most`` bytes, and one more where there is more.

        Raises:
            BadRequest: it isn't what its coding says.
        """
        if not data:
            return b""
        # One member alone: of thousands of empty ones, each would cost a copy of all that follows it.
        if self._stream is not None and self._stream.eof:
            raise _behind()
        if self._stream is None:
            # RFC 9110 means zlib's form; some clients leave out its two bytes, of which the first ends in 8.
            self._stream = zlib.decompressobj(_ZLIB if data[0] & 15 == 8 else _RAW)
        try:
            piece = self._stream.decompress(data, most + 1)
        except zlib.error as error:
            raise BadRequest(f"the body isn't compressed as its header says: {error}") from None
        if self._stream.unused_data:
            raise _behind()
        return piece

    def end(self) -> None:
        """Raises BadRequest where the body has come whole, and its compressed form hasn't."""
        if self._stream is not None and not self._stream.eof:
            raise BadRequest("the compressed body ends early")


def _behind() -> BadRequest:
    return BadRequest("something lies behind the end of the compressed body")
