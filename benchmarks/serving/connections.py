"""Connections to servers of this machine, what is asked over them, and free ports; the standard library alone."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterable, Sequence
from typing import Any


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    made = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(item.getsockname()[1]) for item in made]
    for item in made:
        item.close()
    return ports


def http_request(path: str, body: bytes, headers: Sequence[str] = ()) -> bytes:
    """A POST."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def binary_request(
    path: str, inputs: Iterable[tuple[str, Sequence[int], str, bytes]], **parameters: Any
) -> bytes:
    """A request of the protocol v2 with its inputs in binary: name, shape, datatype and data of each."""
    inputs = list(inputs)
    entries = [
        {
            "name": name,
            "shape": shape,
            "datatype": kind,
            "parameters": {"binary_data_size": len(data)},
        }
        for name, shape, kind, data in inputs
    ]
    head = json.dumps({"inputs": entries, "parameters": parameters}).encode()
    body = head + b"".join(data for *_, data in inputs)
    return http_request(path, body, [f"Inference-Header-Content-Length: {len(head)}"])


def read_response(data: bytes) -> tuple[int, bytes] | None:
    """The status and the body of a whole answer, of a length that is told or in chunks; None: more is to come.

    Raises:
        ValueError: it tells neither, or isn't HTTP.
    """
    head, sign, rest = data.partition(b"\r\n\r\n")
    if not sign:
        return None
    first, *lines = head.lower().split(b"\r\n")
    fields = {name: value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    status = int(first.split(b" ", 2)[1])
    if fields.get(b"transfer-encoding") != b"chunked":
        if b"content-length" not in fields:
            raise ValueError(f"the answer tells no length: {head!r:.300}")
        length = int(fields[b"content-length"])
        return (status, rest) if len(rest) >= length else None
    body = b""
    while True:
        size, sign, rest = rest.partition(b"\r\n")
        if not sign:
            return None
        length = int(size.partition(b";")[0], 16)
        if len(rest) < length + 2:
            return None
        if not length:
            return status, body
        body, rest = body + rest[:length], rest[length + 2 :]


class Connection(asyncio.Protocol):
    """A kept-alive connection with one request under way."""

    def __init__(self) -> None:
        self.done: asyncio.Future[tuple[int, bytes]] | None = None
        self.rest = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(exc or ConnectionResetError())

    def data_received(self, data: bytes) -> None:
        self.rest += data
        answer = read_response(self.rest)
        if answer is not None:
            self.rest = b""
            assert self.done is not None
            self.done.set_result(answer)

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Sends a request and waits for the whole answer; its status and body."""
        self.done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self.done

    async def succeed(self, request: bytes) -> None:
        """The same, of a request whose status has to be 200."""
        status, body = await self.ask(request)
        assert status == 200, body


async def connect(port: int) -> Connection:
    """To a port of this machine."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
    return connection
