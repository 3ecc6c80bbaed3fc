"""benchmarks/serving/connections.py: the client that measures servers, ours and others'."""

from __future__ import annotations

import asyncio
import json

import pytest

from benchmarks.serving.connections import binary_request, connect, read_response

#: As Ray Serve's proxy answers before it knows its routes, and how its replicas do.
CHUNKED = (
    b"HTTP/1.1 404 Not Found\r\ncontent-type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"a\r\n0123\r\n\r\n67\r\n2;name=value\r\n89\r\n0\r\n\r\n"
)
COUNTED = b"HTTP/1.1 200 OK\r\nContent-Length:4\r\ndate: today\r\n\r\n\r\n\r\n"


def test_a_binary_request_tells_how_long_its_parts_are() -> None:
    inputs = [("ids", (1, 2), "INT64", b"0" * 16), ("text", [1], "BYTES", b"1" * 7)]
    head, _, body = binary_request("/infer", inputs, timeout=5).partition(b"\r\n\r\n")
    fields = dict(line.split(": ") for line in head.decode().splitlines()[1:])
    assert int(fields["Content-Length"]) == len(body)
    end = int(fields["Inference-Header-Content-Length"])
    document = json.loads(body[:end])
    assert document["parameters"] == {"timeout": 5} and body[end:] == b"0" * 16 + b"1" * 7
    sizes = [item["parameters"]["binary_data_size"] for item in document["inputs"]]
    assert sizes == [16, 7] and document["inputs"][0]["shape"] == [1, 2]


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
