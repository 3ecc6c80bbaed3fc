"""benchmarks/serving/server.py: the client that measures servers, ours and others'."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.serving.server import connect, read_response

#: As Ray Serve's proxy answers before it knows its routes, and how its replicas do.
CHUNKED = (
    b"HTTP/1.1 404 Not Found\r\ncontent-type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"a\r\n0123\r\n\r\n67\r\n2;name=value\r\n89\r\n0\r\n\r\n"
)
COUNTED = b"HTTP/1.1 200 OK\r\nContent-Length:4\r\ndate: today\r\n\r\n\r\n\r\n"


@pytest.mark.parametrize(
    ("whole", "answer"),
    [(CHUNKED, (404, b"0123\r\n\r\n6789")), (COUNTED, (200, b"\r\n\r\n"))],
    ids=["chunked", "counted"],
)
def test_an_answer_is_read_once_it_is_whole(whole: bytes, answer: tuple[int, bytes]) -> None:
    assert [read_response(whole[:end]) for end in range(len(whole))] == [None] * len(whole)
    assert read_response(whole) == answer


def test_an_answer_without_a_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="tells no length"):
        read_response(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nbody")


def test_a_connection_goes_on_after_an_answer_in_chunks() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for whole in (CHUNKED, COUNTED):
            await reader.readuntil(b"\r\n\r\n")
            for at in range(0, len(whole), 7):
                writer.write(whole[at : at + 7])
                await writer.drain()
                await asyncio.sleep(0.001)
        writer.close()

    async def ask() -> list[int]:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            connection = await connect(server.sockets[0].getsockname()[1])
            answers = [await connection.ask(b"GET / HTTP/1.1\r\n\r\n") for _ in range(2)]
            connection.transport.close()
            return [status for status, _ in answers]

    assert asyncio.run(ask()) == [404, 200]
