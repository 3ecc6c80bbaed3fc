"""Sockets of one port: which gets new connections, and when nobody is connected any more."""

from __future__ import annotations

import asyncio
import socket

import pytest

from edgecompile.server.grpc.connections import let_go, prefer_successor


def listen(port: int = 0) -> socket.socket:
    """One of several that listen on this port."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    made.listen(64)
    made.setblocking(False)
    return made


def test_the_second_one_gets_all_connections() -> None:
    with listen() as first:
        port = first.getsockname()[1]
        prefer_successor(port)
        with socket.create_connection(("127.0.0.1", port)):
            first.accept()[0].close()  # while it is alone
        with listen(port) as second:
            for _ in range(32):
                with socket.create_connection(("127.0.0.1", port)):
                    second.accept()[0].close()
            with pytest.raises(BlockingIOError):
                first.accept()
            first.close()
            with socket.create_connection(("127.0.0.1", port)):
                second.accept()[0].close()


def test_it_listens_no_more_and_waits_for_those_that_are_connected() -> None:
    async def run() -> None:
        with listen() as listener:
            port = listener.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port)):
                accepted, _ = listener.accept()
                letting_go = asyncio.ensure_future(let_go(port, 600))
                while True:
                    await asyncio.sleep(0.01)
                    try:
                        socket.create_connection(("127.0.0.1", port)).close()
                    except ConnectionRefusedError:
                        break
                assert not letting_go.done()
                await let_go(port, 0.05)  # so long at most
                assert not letting_go.done()
                accepted.close()
                await letting_go

    asyncio.run(run())
