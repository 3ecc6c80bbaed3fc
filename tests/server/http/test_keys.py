"""Which ``authorization`` brings a key, over HTTP and gRPC alike."""

from __future__ import annotations

import pytest

from edgecompile.server.errors import Unauthorized
from edgecompile.server.keys import Keys

KEYS = Keys([b"first-key", b"second-key"])


def test_without_keys_anybody_may_ask() -> None:
    assert KEYS and not Keys(())


@pytest.mark.parametrize(
    "given",
    [b"Bearer first-key", b"Bearer second-key", b"bearer first-key", b"BEARER  second-key \t"],
)
def test_a_key_lets_in(given: bytes) -> None:
    KEYS.check(given)


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"first-key",
        b" first-key",
        b"Basic first-key",
        b"Bearer first",
        b"Bearer first-key second-key",
        b"Bearer\tfirst-key",
        b"Bearer " + b"x" * 9000,
    ],
)
def test_anything_else_is_refused(given: bytes) -> None:
    with pytest.raises(Unauthorized, match="Bearer KEY"):
        KEYS.check(given)
