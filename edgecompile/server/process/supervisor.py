"""The process that owns the sockets: starts workers, replaces those that die or hang, and swaps them.

It runs no model and speaks to no client. While no worker lives, connections wait in the sockets' queue.
A spare worker takes the place of one that dies: it has its packages loaded, or all done but accepting.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import logging
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import edgecompile
from edgecompile.runtime.format.files.hashes import bundle_state
from edgecompile.server.errors import StartError
from edgecompile.server.journal import Suspects
from edgecompile.server.process.arguments import Arguments

_log = logging.getLogger("edgecompile.server")
_BACKLOG = 2048
#: Seconds without a word after which a worker that was ready counts as dead.
_SILENCE = 10.0
#: Seconds until a worker that died before it was ready is started again: doubled each time.
_FIRST_DELAY, _LAST_DELAY = 0.1, 30.0
#: Seconds from a worker's being ready to the start of its spare one: the first requests go first.
_SPARE_DELAY = 1.0


class _Child:
    """A worker process, perhaps a spare one."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        arguments: Sequence[str],
        suspects: Suspects,
        wait: str | None = None,
    ) -> None:
        """``wait``: what a spare one has done before it waits; None: it isn't one."""
        self.report, write = os.pipe()
        os.set_blocking(self.report, False)
        os.set_blocking(write, False)
        numbers = [item.fileno() for item in sockets]
        command = [sys.executable, "-m", "edgecompile.server.process.worker"]
        self.journal = suspects.new_file()
        command += ["--sockets", ",".join(map(str, numbers)), "--report", str(write)]
        command += ["--journal", str(self.journal), *(["--wait", wait] if wait else []), "--"]
        # The very package that runs here, whatever is in the working directory.
        root = str(Path(edgecompile.__file__).parents[1])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
        self.process = subprocess.Popen(
            [*command, *arguments],
            pass_fds=(*numbers, write, self.journal),
            env=environment,
            # What a spare one waits at: a byte calls it, the end says that this process has gone.
            stdin=subprocess.PIPE if wait else subprocess.DEVNULL,
            bufsize=0,
            # A terminal's Ctrl-C is the supervisor's; it ends its workers in order.
            start_new_session=True,
        )
        os.close(write)
        self.heard = time.monotonic()
        self.ready_at = math.inf
        self.left: float | None = None
        self.cleared: list[bytes] = []

    @property
    def ready(self) -> bool:
        """Whether it has begun to accept."""
        return self.ready_at < math.inf

    def listen(self) -> bool:
        """Reads what it told; False once it has ended."""
        try:
            data = os.read(self.report, 65536)
        except BlockingIOError:
            return True
        self.heard = time.monotonic()
        words = data.split(b"\n")
        if b"ready" in words:
            self.ready_at = self.heard
        for word in words:
            if word.startswith(b"clear "):
                self.cleared.append(bytes.fromhex(word[6:].decode()))
        return bool(data)

    def call(self) -> None:
        """Lets a spare one go on as soon as it can."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has just died
                self.process.stdin.write(b"\n")

    def close(self) -> int:
        """Waits for its end; its exit code."""
        os.close(self.report)
        if self.process.stdin is not None:
            self.process.stdin.close()
        return self.process.wait()


class Supervisor:
    """Keeps one worker serving.

    Args:
        asked: the options, read.
        arguments: the same, as the worker reads them.
        tell_json: whether to say on stdout, as an object, when the server is ready.
    """

    def __init__(self, asked: Arguments, arguments: Sequence[str], tell_json: bool = False) -> None:
        self._asked = asked
        self._arguments = list(arguments)
        self._tell_json = tell_json
        self._sockets: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()
        self._current: _Child | None = None
        self._next: _Child | None = None
        self._spare: _Child | None = None
        self._suspects = Suspects()
        self._leaving: list[_Child] = []
        self._delay = _FIRST_DELAY
        self._start_at = self._spare_at = 0.0
        self._ending: float | None = None
        self._swap = False
        self._seen = self._states()
        self._looked = time.monotonic()

    def run(self) -> int:
        """Serves until SIGTERM or SIGINT; returns the exit code.

        Raises:
            StartError: the address can't be had, or uvicorn isn't installed.
        """
        if importlib.util.find_spec("uvicorn") is None:
            raise StartError(
                "the server needs the Python package uvicorn, which isn't installed here",
                "pip install edgecompile-server, or 'edgecompile[server]' on a build host",
            )
        self._open_sockets()
        wake, woken = socket.socketpair()
        for end in (wake, woken):
            end.setblocking(False)
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_end)
        signal.signal(signal.SIGINT, self._on_end)
        signal.signal(signal.SIGHUP, self._on_swap)
        self._selector.register(wake, selectors.EVENT_READ, None)
        self._current = self._start()
        announced = False
        while True:
            for key, _ in self._selector.select(0.1):
                if key.data is None:
                    wake.recv(4096)
                    continue
                alive = key.data.listen()
                if key.data.cleared:
                    self._forgive(key.data)
                if not alive:
                    code = self._bury(key.data)
                    if code is not None and not announced:
                        self._close_sockets()
                        return code
            current = self._current
            if current is not None and current.ready and not announced:
                announced = True
                self._announce()
            if self._ending is not None:
                if not self._finish():
                    return 0
            else:
                self._tend()

    def _open_sockets(self) -> None:
        host, port = self._asked.host, self._asked.port
        try:
            addresses = socket.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, kind, protocol, _, address in dict.fromkeys(addresses):
                item = socket.socket(family, kind, protocol)
                self._sockets.append(item)
                item.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    item.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                item.bind(address)
                item.listen(_BACKLOG)
                item.setblocking(False)
        except OSError as error:
            text = f"can't listen on {host} port {port}: {error.strerror or error}"
            used = error.errno == errno.EADDRINUSE
            hint = "choose another --port, or end what uses it" if used else "see --host and --port"
            raise StartError(text, hint) from None

    def _close_sockets(self) -> None:
        for item in self._sockets:
            item.close()
        self._sockets.clear()

    def _start(self, wait: str | None = None) -> _Child:
        child = _Child(self._sockets, self._arguments, self._suspects, wait)
        self._selector.register(child.report, selectors.EVENT_READ, child)
        return child

    def _bury(self, child: _Child) -> int | None:
        """Takes an ended worker out; its exit code if it was the one that served, or should have."""
        self._selector.unregister(child.report)
        code = child.close()
        if code:
            refused = self._suspects.add(child.journal, time.monotonic())
            if refused:
                _log.warning("%d requests are refused, for workers died while they ran", refused)
            self._suspects.write(*(item.journal for item in self._children()))
        os.close(child.journal)
        if child is self._spare:
            if self._ending is None:
                _log.warning("the spare worker ended with %d", code)
            self._spare, self._spare_at = None, time.monotonic() + _LAST_DELAY
            return None
        if child is self._next:
            _log.warning("the new worker ended with %d: the old one goes on", code)
            self._next = None
            return None
        if child is not self._current:
            self._leaving.remove(child)
            return None
        self._current = None
        if self._ending is None:
            if child.ready:
                self._delay, self._start_at = _FIRST_DELAY, 0.0
            else:
                self._start_at = time.monotonic() + self._delay
                self._delay = min(2 * self._delay, _LAST_DELAY)
            _log.warning("worker %d ended with %d", child.process.pid, code)
        return code if code > 0 else 1

    def _tend(self) -> None:
        """Starts, ends and swaps workers where that is due."""
        now = time.monotonic()
        if self._suspects.expire(now):
            self._suspects.write(*(item.journal for item in self._children()))
        self._end_leaving(now)
        if self._current is None:
            if self._next is not None:
                self._current, self._next = self._next, None
            elif self._spare is not None:
                self._current, self._spare = self._spare, None
                self._current.call()
            elif now >= self._start_at:
                self._current = self._start()
        if self._current is None:
            return
        if self._current.ready and now - self._current.heard > _SILENCE:
            _log.warning("worker %d is stuck and is killed", self._current.process.pid)
            self._current.process.kill()
            self._current.heard = now
        if self._asked.watch_s and now - self._looked > self._asked.watch_s:
            self._looked = now
            states = self._states()
            self._swap |= states != self._seen and None not in states
            self._seen = states
        if self._swap and self._next is None and self._current.ready:
            self._swap = False
            if self._spare is not None:  # of the old version
                self._leave(self._spare, signal.SIGTERM)
                self._spare = None
            self._seen = self._states()
            self._next = self._start()
        if self._next is not None and self._next.ready:
            _log.info("worker %d takes over", self._next.process.pid)
            self._leave(self._current, signal.SIGUSR1)
            self._current, self._next = self._next, None
        if (
            self._asked.spare != "none"
            and self._spare is self._next is None
            and now >= max(self._spare_at, self._current.ready_at + _SPARE_DELAY)
        ):
            self._spare = self._start(wait=self._asked.spare)

    def _children(self) -> list[_Child]:
        children = (self._current, self._next, self._spare, *self._leaving)
        return [child for child in children if child is not None]

    def _forgive(self, child: _Child) -> None:
        """Clears suspects that ran well in this worker."""
        for key in child.cleared:
            self._suspects.clear(key)
        child.cleared.clear()
        self._suspects.write(*(item.journal for item in self._children()))

    def _leave(self, child: _Child, number: int) -> None:
        child.process.send_signal(number)
        child.left = time.monotonic()
        self._leaving.append(child)

    def _end_leaving(self, now: float) -> None:
        """Kills workers that were to end, and hang."""
        settings = self._asked.settings
        for child in self._leaving:
            if child.left is not None and now - child.left > settings.patience_s:
                _log.warning("worker %d doesn't end and is killed", child.process.pid)
                child.process.kill()
                child.left = None

    def _finish(self) -> bool:
        """Ends all workers; False once there are none."""
        self._close_sockets()
        patience, children = self._asked.settings.patience_s, self._children()
        assert self._ending is not None
        for child in children:
            if time.monotonic() - self._ending > patience:
                child.process.kill()
        return bool(children)

    def _on_end(self, number: int, frame: FrameType | None) -> None:
        if self._ending is None:
            self._ending = time.monotonic()
            for child in self._children():
                child.process.terminate()

    def _on_swap(self, number: int, frame: FrameType | None) -> None:
        self._swap = True

    def _states(self) -> list[tuple[int, ...] | None]:
        """The state of the manifest at each bundle's path."""
        return [bundle_state(path) for _, path in self._asked.bundles]

    def _announce(self) -> None:
        addresses = [item.getsockname() for item in self._sockets]
        urls = [f"http://{f'[{a[0]}]' if ':' in a[0] else a[0]}:{a[1]}" for a in addresses]
        _log.info("serving on %s", ", ".join(urls))
        if self._tell_json:
            print(json.dumps({"ready": True, "urls": urls, "pid": os.getpid()}), flush=True)
