"""Pages of other origins that may ask: what a browser wants to hear before it shows them an answer.

Source: the Fetch standard, "CORS protocol" (fetch.spec.whatwg.org).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Headers = list[tuple[bytes, bytes]]

#: Every origin.
ANY = "*"
#: Seconds for which a browser remembers what it was told; none remembers it longer than two hours.
_REMEMBERED = b"7200"


class Cors:
    """Says to browsers which origins may ask; nothing where there are none."""

    def __init__(self, origins: Iterable[str]) -> None:
        """``origins``: such as ``https://example.com``, or ``ANY``."""
        self._origins = frozenset(item.lower().encode() for item in origins)
        self._any = ANY.encode() in self._origins

    def __bool__(self) -> bool:
        return bool(self._origins)

    def headers(self, headers: Mapping[bytes, bytes]) -> Headers:
        """The CORS headers of an answer to a request with these headers, an error's too."""
        if not self._origins:
            return []
        if self._any:
            allowed: Headers = [(b"access-control-allow-origin", b"*")]
        else:
            origin = headers.get(b"origin", b"")
            # Caches keep an answer for each origin.
            allowed = [(b"vary", b"origin")]
            if origin.lower() not in self._origins:
                return allowed
            allowed.append((b"access-control-allow-origin", origin))
        return [*allowed, (b"access-control-expose-headers", b"*")]

    def preflight(self, headers: Mapping[bytes, bytes], methods: Iterable[str]) -> Headers:
        """The further headers of the answer to a browser that asks before its request whether it may send it.

        Args:
            headers: Headers of the request.
            methods: the methods that the address takes.
        """
        asked = headers.get(b"access-control-request-headers", b"")
        # All of them, as no cookie is read here: a page brings its own key or none.
        return [
            (b"access-control-allow-methods", ", ".join(methods).encode()),
            *([(b"access-control-allow-headers", asked)] if asked else []),
            (b"access-control-max-age", _REMEMBERED),
        ]
