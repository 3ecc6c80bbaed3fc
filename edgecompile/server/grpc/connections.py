"""Hands a port over to another worker, by the sockets of grpcio's server, which has no interface for it.

``grpc.aio.Server.stop`` cancels calls that come before their clients have read of the end. So a worker with a
successor doesn't stop: new connections go to the other one, and the server's own limit on a connection's age
(``start``) ends the existing ones, which loses no call.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress

#: Linux's socket option for several listeners on one port: a filter chooses who gets a connection.
_SO_ATTACH_REUSEPORT_CBPF = 51
#: A filter of one instruction: return 1, the second listener. Without a second one the kernel chooses.
_SECOND = struct.pack("HBBI", 0x06, 0, 0, 1)
_LOOK_S = 0.1


def prefer_successor(port: int) -> None:
    """Gives all new connections to the second listener on this port, if the kernel can do that."""
    code = ctypes.create_string_buffer(_SECOND, len(_SECOND))
    program = struct.pack("HL", 1, ctypes.addressof(code))
    for item in _sockets(port, listening=True):
        with suppress(OSError):
            item.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, program)


async def let_go(port: int, seconds: float) -> None:
    """Stops listening, and waits until all clients have gone, ``seconds`` at most."""
    for item in _sockets(port, listening=True):
        # The kernel tells grpcio's listener, which logs it and ends.
        with suppress(OSError):
            item.shutdown(socket.SHUT_RD)
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    while clock() < end and any(map(_connected, _sockets(port, listening=False))):
        await asyncio.sleep(_LOOK_S)


def _connected(item: socket.socket) -> bool:
    try:
        item.getpeername()
    except OSError:  # it listened
        return False
    return True


def _sockets(port: int, *, listening: bool) -> Iterator[socket.socket]:
    """Copies of this process's TCP sockets of a port; each is closed when the next one is taken."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            copy = os.dup(int(name))
        except OSError:  # it was closed meanwhile
            continue
        with socket.socket(fileno=copy) as item:
            if item.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            listens = bool(item.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
            if listens == listening and item.getsockname()[1] == port:
                yield item
