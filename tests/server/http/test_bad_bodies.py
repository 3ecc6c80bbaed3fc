"""Bodies that are bad, too large or without room, each with its status; the next request is answered rightly."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from edgecompile.server.protocol import documents
from edgecompile.server.settings import Limits
from tests.server.http import test_tensors as known
from tests.server.http.asgi import call, run, serving, tensor
from tests.server.http.sockets import GOOD, HEAD, LIMITS, Served, read_answer

INFER = "/v2/models/tiny/infer"
MIB = 1 << 20


class Bad(NamedTuple):
    """A body of …/infer, the length of its JSON if that is told, and the status that it gets."""

    body: bytes
    json_length: bytes | None = None
    status: int = 400


def changed(**changes: Any) -> bytes:
    return json.dumps({"inputs": [{**known.ONE, **changes}]}).encode()


def bad_bodies() -> Iterator[Bad]:
    """All that test_tensors.py knows, and what only the model finds wrong."""
    for shape, error in known.SHAPES:
        yield Bad(changed(shape=shape), status=error.status)
    for data, datatype, shape, _ in known.DATA:
        yield Bad(changed(data=data, datatype=datatype, shape=shape))
    for change, _ in known.INPUTS:
        yield Bad(changed(**change))
    for body, _ in known.REQUESTS:
        yield Bad(body, status=413 if len(body) > LIMITS.body_bytes else 400)
    for length, _ in known.HEADER_LENGTHS:
        yield Bad(known.request(), length)
    for size, given, _ in known.SIZES:
        yield Bad(*known.with_sizes(given, size))
    for sizes, given, _ in known.OVERLAPS:
        yield Bad(*known.with_sizes(given, *sizes))
    yield Bad(known.request())  # a name that isn't the model's


@pytest.mark.parametrize(
    "bad", [pytest.param(bad, id=str(n)) for n, bad in enumerate(bad_bodies())]
)
def test_a_bad_body_has_its_status_and_harms_no_other(served: Served, bad: Bad) -> None:
    head = HEAD + b"Content-Length: %d\r\n" % len(bad.body)
    if bad.json_length is not None:
        head += b"Inference-Header-Content-Length: " + bad.json_length + b"\r\n"
    with served.connect() as client:
        client.sendall(head + b"\r\n" + bad.body)
        status, body = read_answer(client)
        assert status == bad.status and json.loads(body)["error"]
        client.sendall(GOOD)
        status, body = read_answer(client)
    assert status == 200
    outputs = {item["name"]: item["data"] for item in json.loads(body)["outputs"]}
    wanted = served.model.model.run({"input_ids": np.array([[1, 2, 3]])})
    for name, array in wanted.items():
        np.testing.assert_allclose(outputs[name], array.ravel(), atol=1e-5)


def test_a_text_of_50_megabytes_is_too_large(served: Served) -> None:
    size = 50 * MIB
    head = b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (size + 13)
    with served.connect() as client:
        client.sendall(head + b'{"inputs": "' + b"a" * size + b'"')
        status, body = read_answer(client)
    assert status == 413 and b"at most 100000 bytes" in body
    served.check()


def texts_of(path: str, texts: Any) -> dict[str, Any]:
    """A body of this route with these texts."""
    if path == INFER:
        entry = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
        return {"inputs": [entry], "outputs": [{"name": "pooler_output"}]}
    if path == "/v1/embeddings":
        return {"model": "tiny", "input": texts}
    if path == "/rerank":
        return {"query": "the cat", "texts": texts}
    # A list of strings is a pair of them for /predict.
    return {"inputs": [[text] for text in texts] if path == "/predict" else texts}


PATHS = [INFER, "/v1/embeddings", "/embed", "/rerank", "/predict"]
#: Those that the bundle has an answer for.
TEXTS = PATHS[:3]


@pytest.mark.parametrize("path", PATHS)
def test_many_texts_are_too_many(tiny_bundle: Path, path: str) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            reply = await call(app, "POST", path, texts_of(path, ["the"] * 100_000))
            assert reply.status == 413 and "the limit is 2048" in reply.error
            reply = await call(app, "POST", INFER, texts_of(INFER, ["the"]))
            assert reply.status == 200

    run(ask())


@pytest.mark.parametrize("path", PATHS)
def test_no_texts_are_too_few(tiny_bundle: Path, path: str) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            reply = await call(app, "POST", path, texts_of(path, []))
            assert reply.status == 400 and reply.error

    run(ask())


@pytest.mark.parametrize("path", TEXTS)
def test_long_texts_are_not_tokenized(tiny_bundle: Path, path: str) -> None:
    """Bodies of any size are allowed here; of the texts the first tokens would be left alone."""

    async def ask() -> None:
        limits = Limits(body_bytes=64 * MIB, characters=1000)
        async with serving(tiny_bundle, limits=limits) as app:
            for texts in (["the " * (50 * MIB // 4)], ["the "] * 251):
                reply = await call(app, "POST", path, texts_of(path, texts))
                assert reply.status == 413 and "characters, the limit is 1000" in reply.error
            reply = await call(app, "POST", path, texts_of(path, ["the "] * 250))
            assert reply.status == 200

    run(ask())


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("path", TEXTS)
def test_half_of_a_surrogate_pair_is_no_text(
    tiny_bundle: Path, path: str, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fast and documents.orjson is None:
        pytest.skip("orjson isn't installed")
    if not fast:
        monkeypatch.setattr(documents, "orjson", None)

    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            for texts in (["\ud800"], ["the", "cat \udfff"], ["\udc00\ud800"]):
                reply = await call(app, "POST", path, texts_of(path, texts))
                assert reply.status == 400 and reply.error
            # Both halves together are a character.
            reply = await call(app, "POST", path, texts_of(path, ["\U0001f408"]))
            assert reply.status == 200

    run(ask())


def test_bytes_that_are_half_of_a_pair(tiny_bundle: Path) -> None:
    half = "\ud800".encode("utf-8", "surrogatepass")
    data = struct.pack("<I", len(half)) + half
    entry = {"name": "text", "datatype": "BYTES", "shape": [1]}
    document = {"inputs": [{**entry, "parameters": {"binary_data_size": len(data)}}]}
    head = json.dumps(document).encode()

    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            headers = {"Inference-Header-Content-Length": str(len(head))}
            reply = await call(app, "POST", INFER, head + data, headers)
            assert reply.status == 400 and "isn't UTF-8" in reply.error
            assert (await call(app, "POST", INFER, tensor(1, 2, 3))).status == 200

    run(ask())


def test_half_of_a_pair_elsewhere(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In names and ids, which come back in answers; the standard library's JSON lets them through."""
    monkeypatch.setattr(documents, "orjson", None)

    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            reply = await call(app, "POST", INFER, {**tensor(1, 2, 3), "id": "\ud800"})
            assert reply.status == 200 and reply.json["id"] == "\ud800"
            reply = await call(app, "POST", INFER, tensor(1, 2, 3, name="\ud800"))
            assert reply.status == 400 and reply.error
            body = {"model": "\ud800", "input": "the"}
            assert (await call(app, "POST", "/v1/embeddings", body)).status == 404

    run(ask())


def test_large_bodies_are_refused_while_they_arrive(tiny_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle, limits=Limits(body_bytes=1000)) as app:
            for size, chunk in ((1001, 2000), (1001, 100), (10_000, 100)):
                reply = await call(app, "POST", INFER, b" " * size, chunk=chunk)
                assert reply.status == 413 and "at most 1000 bytes" in reply.error
            for path, key in (
                ("/embed", "inputs"),
                ("/rerank", "texts"),
                ("/v1/embeddings", "input"),
            ):
                reply = await call(
                    app, "POST", path, {"model": "tiny", "query": "a", key: ["a"] * 200}
                )
                assert reply.status == 413
            assert (await call(app, "POST", INFER, tensor(1, 2, 3), chunk=10)).status == 200

    run(ask())


def test_bodies_of_all_requests_share_their_room(tiny_bundle: Path) -> None:
    """What would be too much is refused unread; small bodies need no room, and room comes back."""
    large = json.dumps(tensor(1, 2, 3)).encode() + b" " * 100_000
    length = {"content-length": str(len(large))}

    async def ask() -> None:
        limits = Limits(body_bytes=150_000, pending_bytes=150_000)
        async with serving(tiny_bundle, limits=limits) as app:
            held = asyncio.Event()

            class Slow:
                """A body of which one half has come."""

                def __init__(self) -> None:
                    self.pieces = [large[:70_000], large[70_000:]]

                async def receive(self) -> dict[str, Any]:
                    if len(self.pieces) == 1:
                        await held.wait()
                    piece = self.pieces.pop(0)
                    return {"type": "http.request", "body": piece, "more_body": bool(self.pieces)}

            async def nothing(message: dict[str, Any]) -> None:
                statuses.append(message.get("status"))

            async def unread() -> dict[str, Any]:
                raise AssertionError("a body without room is read")

            statuses: list[Any] = []
            head = [(name.encode(), value.encode()) for name, value in length.items()]
            scope = {"type": "http", "method": "POST", "path": INFER, "headers": head}
            slow = asyncio.ensure_future(app(dict(scope), Slow().receive, nothing))
            await asyncio.sleep(0)
            assert app.room.held == 70_000
            await app(dict(scope), unread, nothing)
            assert statuses[0] == 429
            reply = await call(app, "POST", INFER, large)  # its length isn't known before
            assert reply.status == 429 and "no room" in reply.error
            assert reply.headers["retry-after"] == "1"
            assert (await call(app, "POST", INFER, tensor(1, 2, 3))).status == 200
            held.set()
            await slow
            assert statuses[2] == 200 and app.room.held == 0
            assert (await call(app, "POST", INFER, large, length)).status == 200
            assert app.room.held == 0

    run(ask())
