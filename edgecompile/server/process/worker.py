"""A worker: opens the bundles, proves them, and serves on sockets that the supervisor owns.

    python -m edgecompile.server.process.worker --sockets 3,4 --report 5 --journal 6 -- OPTIONS…

What it tells the supervisor, a line each on the pipe ``--report``: "ready" when it accepts, "alive" every half
second while its loop turns and no run is stuck, "clear" with the key of a suspected request that ran well.
A spare one (``--wait``) waits for a byte on its standard input, before it opens the bundles or accepts. It ends by itself once a GPU is broken for its process.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import quote

from edgecompile import __version__
from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import EdgecompileError
from edgecompile.runtime.model.proof import prove
from edgecompile.server.errors import StartError
from edgecompile.server.http.app import App
from edgecompile.server.http.connections import Listener
from edgecompile.server.journal import Journal
from edgecompile.server.process.arguments import SPARE, Arguments, parse
from edgecompile.server.schedule.costs import read_document
from edgecompile.server.schedule.streams import Cores
from edgecompile.server.serving import Repository, ServedModel

try:
    from uvloop import run
except ImportError:
    from asyncio import run  # type: ignore[assignment]

#: A bundle that can't be served; starting it again wouldn't help.
UNUSABLE = 3
#: Its GPU failed so that only another process can use it.
BROKEN = 4
_BEAT = 0.5
#: Seconds in which requests that are in may end once nothing runs any more: they only need their answers.
_BROKEN_S = 2.0
#: Seconds for requests that are being sent then: kept connections close with their next answer.
_SENT_S = 0.1
#: A connection of gRPC may be so old, of the time that a worker has to end, and one second at least.
_AGE = 0.6
#: Seconds between two writings of a stats file.
_STATS_EVERY = 60.0
_log = logging.getLogger("edgecompile.server")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sockets", required=True)
    parser.add_argument("--report", type=int, required=True)
    parser.add_argument("--journal", type=int, required=True)
    parser.add_argument("--wait", choices=SPARE[1:])
    parser.add_argument("rest", nargs="*")
    options = parser.parse_args(arguments)
    if options.wait == "process" and not os.read(sys.stdin.fileno(), 1):
        return 0
    logging.basicConfig(format="edgecompile[%(process)d]: %(message)s", level=logging.INFO)
    settings = parse(options.rest)
    sockets = [socket.socket(fileno=int(item)) for item in options.sockets.split(",")]
    worker = Worker(settings, sockets, options.report, options.journal, options.wait == "models")
    try:
        return run(worker.serve())
    except EdgecompileError as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE


class Worker:
    """The models, the application and the listener of one process."""

    def __init__(
        self,
        asked: Arguments,
        sockets: Sequence[socket.socket],
        report: int,
        journal: int,
        spare: bool = False,
    ) -> None:
        """``spare``: it waits, all else done, until it is called."""
        self._asked = asked
        self._sockets = sockets
        self._report = report
        self._journal = Journal(journal, lambda key: self._tell("clear " + key.hex()))
        self._spare = spare
        self._repository = Repository()
        self.app = App(self._repository, asked.settings)
        self._end, self._go = asyncio.Event(), asyncio.Event()
        self._successor = False

    async def serve(self) -> int:
        """Opens and proves the bundles, serves until its parent ends it, and drains."""
        loop = asyncio.get_running_loop()
        settings = self._asked.settings
        # Probes are answered from the beginning, once all bundles are open and their names known.
        cpus = settings.threads or len(os.sched_getaffinity(0))
        cores = Cores(cpus)
        costs = {path: read_document(path) for path in settings.costs}
        counted: set[str] = set()
        for name, path in self._asked.bundles:
            model = open_bundle(path, threads=settings.threads, concurrency=cpus)
            own = (
                x for x in costs.values() if x["manifest_sha256"] == model.info["manifest_sha256"]
            )
            served = ServedModel(
                model,
                name,
                limits=settings.limits,
                costs=next(own, None),
                journal=self._journal,
                cores=cores,
                lookup=settings.lookup,
            )
            if settings.stats is not None:
                file = settings.stats.replace("{model}", quote(served.name, safe=""))
                if file in counted:
                    text = f"--stats {settings.stats}: two models would write the same file"
                    raise StartError(text, "put {model} into its name, and give each another NAME=")
                counted.add(file)
                served.scheduler.traffic.schedule(file, _STATS_EVERY)
            self._repository.add(served)
        builds = {served.model.info["manifest_sha256"] for served in self._repository}
        for path, document in costs.items():
            if document["manifest_sha256"] not in builds:
                _log.warning("--costs %s isn't used: it was measured with another build", path)
        listener = Listener(self.app)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end.set)
        loop.add_signal_handler(signal.SIGUSR1, self._hand_over)
        for served in self._repository:
            await loop.run_in_executor(None, prove, served.model)
        # What is there now stays: no collection has to look at it again.
        gc.collect()
        gc.freeze()
        beating = loop.create_task(self._beat())
        if self._spare and not await self._called():
            return 0
        await listener.start(self._sockets)
        for served in self._repository:
            served.proven = True
        stop_grpc = await self._start_grpc()
        self._tell("ready")
        await self._end.wait()
        broken = self.app.broken()
        delay, patience = settings.drain_delay_s, settings.drain_s
        self.app.draining = True
        if broken is not None:
            # Whoever comes now waits in the sockets' queue for the next worker.
            _log.error("the worker ends: %s", broken)
            delay, patience = min(delay, _SENT_S), min(patience, _BROKEN_S)
        if self._successor or broken is not None:
            listener.stop_listening()
        await asyncio.sleep(delay)
        whole, _ = await asyncio.gather(listener.close(patience), stop_grpc(patience))
        beating.cancel()
        if not whole:
            _log.warning("requests were cut off after %.0f s", patience)
        for served in self._repository:
            await served.close()
        return 0 if broken is None else BROKEN

    async def _start_grpc(self) -> Callable[[float], Awaitable[None]]:
        """Listens for gRPC where that was asked for; returns what ends it."""
        port = self._asked.grpc_port
        if port is None:
            return _nothing
        from edgecompile.server.grpc.connections import let_go, prefer_successor
        from edgecompile.server.grpc.service import InferenceService, start

        app, settings = self.app, self._asked.settings
        service = InferenceService(
            self._repository,
            version=__version__,
            live=lambda: app.sick() is None,
            ready=lambda: not app.draining,
            keys=settings.keys,
            limits=settings.limits,
            slo=settings.slo_s,
            room=app.room,
            see=app.metrics.answer,
            count=lambda method, status: app.metrics.request(f"grpc {method}", status),
        )
        host = self._asked.host
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            server, _ = await start(
                service,
                address,
                max_bytes=settings.limits.body_bytes,
                max_age_s=max(1.0, _AGE * settings.drain_s),
            )
        except OSError as error:
            raise StartError(str(error), "name another --grpc-port") from None
        prefer_successor(port)

        async def stop(patience: float) -> None:
            loop = asyncio.get_running_loop()
            end = loop.time() + patience
            if self._successor:
                await let_go(port, patience)
            await service.stop(server, max(0.0, end - loop.time()))

        return stop

    async def _called(self) -> bool:
        """Waits until this worker has to take another one's place; False: it has to end."""
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin, self._on_call)
        waits = [asyncio.ensure_future(event.wait()) for event in (self._go, self._end)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        loop.remove_reader(sys.stdin)
        return not self._end.is_set()

    def _on_call(self) -> None:
        called = os.read(sys.stdin.fileno(), 1)
        (self._go if called else self._end).set()

    def _hand_over(self) -> None:
        """Another worker accepts on the same sockets."""
        self._successor = True
        self._end.set()

    async def _beat(self) -> None:
        while True:
            if self.app.broken() is not None:
                self._end.set()
            elif self.app.stuck() is None:
                self._tell("alive")
            await asyncio.sleep(_BEAT)

    def _tell(self, word: str) -> None:
        if self._report is not None:
            try:
                os.write(self._report, word.encode() + b"\n")
            except BrokenPipeError:  # nobody looks after this process any more
                self._end.set()
            except BlockingIOError:  # the supervisor is stopped; it will read enough of them
                pass


async def _nothing(seconds: float) -> None:
    """Ends what wasn't begun."""


if __name__ == "__main__":
    sys.exit(main())
