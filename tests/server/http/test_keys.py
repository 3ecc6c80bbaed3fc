"""Which ``authorization`` brings a key, over HTTP and gRPC alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgecompile.server.errors import Unauthorized
from edgecompile.server.keys import Keys
from tests.server.http.asgi import call, run, serving, tensor

INFER = "/v2/models/tiny/infer"
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


def test_keys(tiny_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle, keys=(b"first-key", b"second-key")) as app:
            for given in (None, "Bearer x", "Bearer ", "Basic first-key", "Bearer " + "x" * 9000):
                headers = {} if given is None else {"Authorization": given}
                reply = await call(app, "POST", INFER, tensor(1, 2, 3), headers)
                assert reply.status == 401 and reply.headers["www-authenticate"] == "Bearer"
            for key in ("first-key", "second-key"):
                headers = {"authorization": f"bearer {key}"}
                assert (await call(app, "POST", INFER, tensor(1, 2, 3), headers)).status == 200
            for path in ("/v2/health/live", "/v2/health/ready", "/health", "/metrics"):
                assert (await call(app, "GET", path)).status == 200
            assert (await call(app, "GET", "/openapi.json")).status == 401

    run(ask())
