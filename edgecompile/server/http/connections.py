"""Accepts connections and looks after them, over uvicorn's protocols with limits of ours."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import resource
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from email.utils import formatdate
from typing import Any

from uvicorn import Config
from uvicorn.server import ServerState

from edgecompile.server.http.app import App
from edgecompile.server.http.cors import Cors

_log = logging.getLogger("edgecompile.server")
#: Seconds between two looks at all connections.
_SWEEP = 1.0
#: Seconds that a new connection has for its first request once the listener closes.
_FIRST_REQUEST = 0.5
#: Files that a worker may need beside its connections: statistics, the moment in which one is refused.
_OTHER_FILES = 24


def _load_protocol(fast: bool) -> type[Any]:
    """Over httptools or h11: of the two only one is imported, which a worker's start gains from."""
    if fast:
        from edgecompile.server.http.fast import HttpTools

        return HttpTools
    from edgecompile.server.http.plain import H11

    return H11


def _files_for(connections: int) -> int:
    """So many of these connections may be open at once; raises the process' own limit where it can.

    Without a file for it a connection would be accepted and cut off, and nobody told why.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd")) + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= used + connections:
        return connections
    most = used + connections
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(1, most - used)


class Listener:
    """Accepts connections on sockets and serves an application over them."""

    def __init__(self, app: App, http: str = "auto") -> None:
        """``http``: "httptools", "h11", or "auto" for the first one where it is installed."""
        limits = app.settings.limits
        fast = importlib.util.find_spec("httptools") is not None
        base = _load_protocol(http == "httptools" or (http == "auto" and fast))
        self._protocol: Any = type(
            base.__name__, (base,), {"limits": limits, "cors": Cors(app.settings.cors_origins)}
        )
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
        limits = self._protocol.limits
        most = _files_for(limits.connections)
        if most < limits.connections:
            _log.warning("at most %d connections, as the system allows no more files", most)
            self._protocol.limits = replace(limits, connections=most)
        for item in sockets:
            self._servers.append(await loop.create_server(self._make, sock=item, backlog=2048))
        self._sweeper = loop.create_task(self._sweep(loop.time))

    def _make(self) -> asyncio.Protocol:
        loop = asyncio.get_running_loop()
        protocol: asyncio.Protocol = self._protocol(self._config, self._state, {}, loop)
        return protocol

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

        A connection that has just come is about to send its first request, which nobody sends again.

        Args:
            patience: seconds to wait at most.

        Returns:
            Whether all of them were; the rest is cut off.
        """
        self.stop_listening()
        loop = asyncio.get_running_loop()
        now = loop.time()
        end, silent = now + patience, now + min(patience, _FIRST_REQUEST)
        while True:
            open_ones: list[Any] = list(self._state.connections)
            for connection in open_ones:
                if connection.cycle is not None or now >= silent:
                    connection.shutdown()
            await asyncio.sleep(0.02)  # whoever was accepted in this moment is a connection then
            now = loop.time()
            whole = not self._state.connections and not self._state.tasks
            if whole or now >= end:
                break
        for connection in list(self._state.connections):
            connection.transport.abort()
        for task in list(self._state.tasks):
            task.cancel()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        return whole
