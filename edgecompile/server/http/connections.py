"""Accepts connections and looks after them, over uvicorn's protocols with limits of ours."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import socket
from collections.abc import Callable, Sequence
from email.utils import formatdate
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from edgecompile.server.http.app import App
from edgecompile.server.http.limited import BODY, HEADER, IDLE, RUNNING, Limited

_log = logging.getLogger("edgecompile.server")
#: Seconds between two looks at all connections.
_SWEEP = 1.0


class _H11(Limited, H11Protocol):
    """Pure Python."""

    def phase(self) -> str:
        """See the base."""
        import h11

        state = self.conn.their_state
        if state is h11.IDLE:
            return HEADER if self.conn.trailing_data[0] else IDLE
        if state is h11.SEND_BODY:
            return BODY
        return RUNNING


def _load_fast() -> type[Any]:
    from edgecompile.server.http.fast import HttpTools

    return HttpTools


class Listener:
    """Accepts connections on sockets and serves an application over them."""

    def __init__(self, app: App, http: str = "auto") -> None:
        """``http``: "httptools", "h11", or "auto" for the first one where it is installed."""
        limits = app.settings.limits
        fast = importlib.util.find_spec("httptools") is not None
        base: type[Any] = _load_fast() if http == "httptools" or (http == "auto" and fast) else _H11
        self._protocol = type(base.__name__, (base,), {"limits": limits})
        self._config = Config(
            app,
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(limits.idle_s) + 5,  # the sweep's is first
            h11_max_incomplete_event_size=limits.header_bytes,
        )
        self._config.load()
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []
        self._sweeper: asyncio.Task[None] | None = None
        app.connections = lambda: len(self._state.connections)
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Begins to accept on sockets that listen already."""
        loop = asyncio.get_running_loop()
        for item in sockets:
            self._servers.append(await loop.create_server(self._make, sock=item, backlog=2048))
        self._sweeper = loop.create_task(self._sweep(loop.time))

    def _make(self) -> asyncio.Protocol:
        loop = asyncio.get_running_loop()
        made: asyncio.Protocol = self._protocol(self._config, self._state, {}, loop)
        return made

    async def _sweep(self, clock: Callable[[], float]) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            now = clock()
            self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
            open_ones: list[Any] = list(self._state.connections)
            for connection in open_ones:
                try:
                    connection.sweep(now)
                except Exception:
                    _log.exception("a connection couldn't be looked at")

    def stop_listening(self) -> None:
        """Accepts no more; connections stay."""
        for server in self._servers:
            server.close()

    async def close(self, patience: float) -> bool:
        """Closes idle connections and waits until requests under way are answered.

        Args:
            patience: seconds to wait at most.

        Returns:
            Whether all of them were; the rest is cut off.
        """
        self.stop_listening()
        loop = asyncio.get_running_loop()
        end = loop.time() + patience
        for connection in list(self._state.connections):
            connection.shutdown()
        while (self._state.connections or self._state.tasks) and loop.time() < end:
            await asyncio.sleep(0.02)
        whole = not self._state.connections and not self._state.tasks
        for connection in list(self._state.connections):
            connection.transport.abort()
        for task in list(self._state.tasks):
            task.cancel()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        return whole
