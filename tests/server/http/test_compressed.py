"""Bodies that come compressed, within the limits of what they become."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

import pytest

from edgecompile.server.settings import Limits
from tests.server.http.asgi import call, run, serving, tensor

INFER = "/v2/models/tiny/infer"
BODY = json.dumps(tensor(1, 2, 3)).encode()
MOST = 100_000


def raw(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


PACKED = {
    "gzip": gzip.compress(BODY),
    "x-gzip": gzip.compress(BODY),
    "GZip": gzip.compress(BODY),
    "deflate": zlib.compress(BODY),
    " deflate": raw(BODY),
    "identity": BODY,
}


@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_compressed_bodies_are_read(tiny_bundle: Path, chunk: int) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            wanted = (await call(app, "POST", INFER, BODY)).json
            for coding, body in PACKED.items():
                headers = {"content-encoding": coding.strip()}
                reply = await call(app, "POST", INFER, body, headers, chunk)
                assert (reply.status, reply.json) == (200, wanted), coding

    run(ask())


def test_what_a_body_becomes_is_limited(tiny_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle, limits=Limits(body_bytes=MOST)) as app:
            fits = BODY + b" " * (MOST - len(BODY))
            bomb = gzip.compress(bytes(50 << 20))
            assert len(bomb) < MOST
            for body, chunk, status in (
                (gzip.compress(fits), 1000, 200),
                (gzip.compress(fits + b" "), 1000, 413),
                (bomb, 1 << 20, 413),
                (bomb, 7, 413),
            ):
                reply = await call(app, "POST", INFER, body, {"content-encoding": "gzip"}, chunk)
                assert reply.status == status and not app.room.held
                if status == 413:
                    assert reply.error == f"the body may have at most {MOST} bytes"

    run(ask())


def test_the_room_for_bodies_is_taken_by_what_they_become(tiny_bundle: Path) -> None:
    async def ask() -> None:
        limits = Limits(body_bytes=MOST, pending_bytes=MOST)
        async with serving(tiny_bundle, limits=limits) as app:
            app.room.held = 20_000
            body = gzip.compress(BODY + b" " * 90_000)
            reply = await call(app, "POST", INFER, body, {"content-encoding": "gzip"})
            assert reply.status == 429 and "no room" in reply.error
            assert app.room.held == 20_000

    run(ask())


@pytest.mark.parametrize(
    ("coding", "body", "status", "message"),
    [
        ("gzip", PACKED["gzip"][:-9], 400, "the compressed body ends early"),
        ("gzip", BODY, 400, "isn't compressed as its header says"),
        ("gzip", PACKED["deflate"], 400, "isn't compressed as its header says"),
        ("deflate", PACKED["gzip"], 400, "isn't compressed as its header says"),
        ("gzip", PACKED["gzip"][:-8] + bytes(8), 400, "isn't compressed as its header says"),
        ("gzip", PACKED["gzip"] + b"x", 400, "something lies behind the end"),
        ("gzip", gzip.compress(b"") * 3000, 400, "something lies behind the end"),
        ("gzip", b"", 400, "ends early"),
        ("br", BODY, 415, "send gzip, deflate or none"),
        ("gzip, gzip", BODY, 415, "Content-Encoding 'gzip, gzip' isn't known here"),
    ],
    ids=range(10),  # compressed bytes hold the time
)
def test_what_is_no_compressed_body_is_refused(
    tiny_bundle: Path, coding: str, body: bytes, status: int, message: str
) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            for chunk in (1, 1 << 20):
                headers = {"content-encoding": coding}
                reply = await call(app, "POST", INFER, body, headers, chunk)
                assert reply.status == status and message in reply.error
                assert reply.headers.get("accept-encoding") == (
                    "gzip, deflate" if status == 415 else None
                )
            assert (await call(app, "POST", INFER, BODY)).status == 200

    run(ask())
