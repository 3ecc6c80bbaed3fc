"""Pages of other origins: what a browser is told before and with an answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from edgecompile.server.http.cors import Cors
from edgecompile.server.http.limited import Limited
from tests.server.http.asgi import Reply, call, run, serving, tensor

INFER = "/v2/models/tiny/infer"
PAGE, OTHER = "https://a.example", "https://b.example:8443"
ASKED = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


def allowed(reply: Reply) -> str | None:
    return reply.headers.get("access-control-allow-origin")


@pytest.mark.parametrize("origins", [(PAGE, OTHER), ("*",)], ids=["two", "all"])
def test_pages_may_ask(tiny_bundle: Path, origins: tuple[str, ...]) -> None:
    wanted = "*" if origins == ("*",) else PAGE

    async def ask() -> None:
        async with serving(tiny_bundle, cors_origins=origins, keys=(b"12345678",)) as app:
            reply = await call(app, "OPTIONS", INFER, headers=ASKED)
            assert (reply.status, allowed(reply)) == (200, wanted)
            assert reply.headers["access-control-allow-methods"] == "POST"
            assert reply.headers["access-control-allow-headers"] == "authorization,content-type"
            key = {"authorization": "Bearer 12345678"}
            for path, body, headers, status in (
                (INFER, tensor(1, 2), key, 200),
                (INFER, tensor(1, 2), {}, 401),
                (INFER, b"{", key, 400),
                ("/nothing", b"", key, 404),
                ("/metrics", b"", key, 405),
            ):
                reply = await call(app, "POST", path, body, {**headers, "origin": PAGE})
                assert (reply.status, allowed(reply)) == (status, wanted)
                assert reply.headers["access-control-expose-headers"] == "*"

    run(ask())


def test_other_pages_may_not(tiny_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle, cors_origins=(PAGE,)) as app:
            for origin in (OTHER, "null", PAGE + ".example", "http://a.example"):
                for method in ("OPTIONS", "GET"):
                    reply = await call(app, method, "/v2", headers={**ASKED, "origin": origin})
                    assert allowed(reply) is None and reply.headers["vary"] == "origin"
        async with serving(tiny_bundle) as app:
            reply = await call(app, "OPTIONS", INFER, headers=ASKED)
            assert (reply.status, allowed(reply)) == (405, None)
            assert "vary" not in (await call(app, "GET", "/v2", headers=ASKED)).headers

    run(ask())


def test_refusals_of_the_connection_say_it_too() -> None:
    written = []

    class Transport:
        write = staticmethod(written.append)

        def is_closing(self) -> bool:
            return False

        def close(self) -> None: ...

    async def refuse() -> None:
        connection = Limited()
        connection.cors, connection.transport = Cors([PAGE]), Transport()
        connection.headers = [(b"origin", PAGE.encode())]
        connection.refuse(408, "Request Timeout", "too slow")

    asyncio.run(refuse())
    assert b"\r\naccess-control-allow-origin: https://a.example\r\n" in written[0]
