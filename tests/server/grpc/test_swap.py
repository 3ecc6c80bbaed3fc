"""Another worker takes over while clients of gRPC ask all the time."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from edgecompile.runtime import open_bundle
from edgecompile.server.grpc.messages import SERVICE, message
from tests.server.processes import DrainDelay, freeze, serving

#: What docs/deploy.md advises clients to have.
RETRIES = {
    "methodConfig": [
        {
            "name": [{}],
            "waitForReady": True,
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.1s",
                "maxBackoff": "5s",
                "backoffMultiplier": 3,
                "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
            },
        }
    ]
}


class Calls:
    """Clients that ask all the time.

    Args:
        port: the server's.
        bundle: what it serves.
        clients: so many, each with a connection of its own.
        beside: so many calls are under way on each of them.
        anew: whether each call opens another connection.
        config: a service config of gRPC.
    """

    def __init__(
        self,
        port: int,
        bundle: Path,
        clients: int = 4,
        beside: int = 1,
        anew: bool = False,
        config: dict[str, Any] | None = None,
    ) -> None:
        self._beside, self._anew, self._config = beside, anew, config
        self._lock = threading.Lock()
        self.answered = self.wrong = 0
        self.lost: list[grpc.RpcError] = []
        self._port = port
        self._stop = threading.Event()
        ids = np.array([[5, 6, 7, 8]], np.int64)
        with open_bundle(bundle) as model:
            self._outputs = [item.name for item in model.manifest.outputs]
            self._wanted = model.run({"input_ids": ids})
        request = message("ModelInferRequest")(model_name="tiny")
        request.inputs.add(name="input_ids", datatype="INT64", shape=ids.shape)
        request.raw_input_contents.append(ids.tobytes())
        self.request = request.SerializeToString()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self) -> Calls:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait(self, count: int) -> None:
        """Until so many more calls are over."""
        goal = self.answered + len(self.lost) + count
        while self.answered + len(self.lost) < goal:
            time.sleep(0.01)

    def _ask(self) -> None:
        while not self._stop.is_set():
            with self.connect() as channel:
                askers = [
                    threading.Thread(target=self._ask_on, args=(channel,))
                    for _ in range(self._beside)
                ]
                for asker in askers:
                    asker.start()
                for asker in askers:
                    asker.join()

    def _ask_on(self, channel: grpc.Channel) -> None:
        while not self._stop.is_set():
            try:
                self.check(infer(channel)(self.request))
            except grpc.RpcError as error:
                self.lost.append(error)
            if self._anew:
                return

    def connect(self) -> grpc.Channel:
        """A connection of its own."""
        options: list[tuple[str, Any]] = [("grpc.use_local_subchannel_pool", 1)]
        if self._config is not None:
            options.append(("grpc.service_config", json.dumps(self._config)))
        return grpc.insecure_channel(f"127.0.0.1:{self._port}", options)

    def check(self, answer: Any) -> None:
        """Counts an answer, and whether it is wrong."""
        place = self._outputs.index("pooler_output")
        found = np.frombuffer(answer.raw_output_contents[place], np.float32)
        right = np.allclose(found, self._wanted["pooler_output"].ravel(), atol=1e-5)
        with self._lock:
            self.wrong += not right
            self.answered += 1


class Paced(Calls):
    """Clients that ask whether the server lives, every two milliseconds, though no answer has come yet.

    Each has at most 32 calls under way: a server that is slower than its clients would refuse the thousandth.
    """

    def _ask_on(self, channel: grpc.Channel) -> None:
        read = message("ServerLiveResponse").FromString
        live = channel.unary_unary(f"/{SERVICE}/ServerLive", response_deserializer=read)
        under_way = 32
        room = threading.Semaphore(under_way)

        def take(call: Any) -> None:
            self._take(call)
            room.release()

        while not self._stop.is_set():
            room.acquire()
            live.future(b"").add_done_callback(take)
            time.sleep(0.002)
        for _ in range(under_way):
            room.acquire()  # all are answered

    def _take(self, call: Any) -> None:
        try:
            live = call.result().live
        except grpc.RpcError as error:
            self.lost.append(error)
            return
        with self._lock:
            self.wrong += not live
            self.answered += 1


def infer(channel: grpc.Channel) -> Any:
    """The method, to be called with a request's bytes."""
    answer = message("ModelInferResponse").FromString
    return channel.unary_unary(f"/{SERVICE}/ModelInfer", response_deserializer=answer)


def ready(channel: grpc.Channel) -> bool:
    """What ServerReady answers."""
    read = message("ServerReadyResponse").FromString
    method = channel.unary_unary(f"/{SERVICE}/ServerReady", response_deserializer=read)
    return bool(method(b"").ready)


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def connections(port: int) -> int:
    """The number of clients that are connected with a port of this machine, by IPv4 or IPv6."""
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    # The far end's address, and the state.
    ends = [line.split()[2:4] for table in tables for line in table.splitlines()]
    return sum(end.endswith(f":{port:04X}") and state == "01" for end, state in ends)


@pytest.mark.slow
def test_another_worker_takes_over(tiny_bundle: Path) -> None:
    """Nothing is lost: of clients that wait for each answer, of those that don't, nor of new ones."""
    port = free_port()
    serve = serving(f"tiny={tiny_bundle}", "--grpc-port", str(port), "--drain-timeout", "10")
    with (
        serve as server,
        Calls(port, tiny_bundle, clients=2) as calls,
        Calls(port, tiny_bundle, clients=2, beside=2) as many,
        Paced(port, tiny_bundle) as paced,
        Calls(port, tiny_bundle, clients=1, anew=True) as new,
    ):
        for _ in range(2):
            calls.wait(50)
            (worker,) = server.workers()
            server.process.send_signal(signal.SIGHUP)
            while worker in server.workers() or not server.workers():
                time.sleep(0.01)
        for each in (calls, many, paced, new):
            each.wait(20)
            assert not each.lost and not each.wrong


@pytest.mark.slow
def test_nothing_is_lost_when_it_ends(tiny_bundle: Path, tmp_path: Path) -> None:
    port, delay = free_port(), DrainDelay(tmp_path)
    arguments = (f"tiny={tiny_bundle}", "--grpc-port", str(port), *delay.options)
    with serving(*arguments, env=delay.env) as server:
        with Calls(port, tiny_bundle, beside=2) as calls, calls.connect() as channel:
            calls.wait(50)
            server.process.send_signal(signal.SIGTERM)
            while ready(channel):
                time.sleep(0.005)
            # It isn't ready any more, and yet takes what comes.
            calls.wait(20)
        delay.end()
        assert server.process.wait() == 0
        assert not calls.lost and not calls.wrong


@pytest.mark.slow
def test_a_policy_of_retries_loses_no_call_of_a_killed_worker(tiny_bundle: Path) -> None:
    port = free_port()
    with serving(f"tiny={tiny_bundle}", "--grpc-port", str(port)) as server:
        with Calls(port, tiny_bundle, beside=2, config=RETRIES) as calls:
            for _ in range(2):
                calls.wait(50)
                (worker,) = server.workers()
                os.kill(worker, signal.SIGKILL)
                calls.wait(50)
                assert worker not in server.workers()
        assert not calls.lost and not calls.wrong


@pytest.mark.slow
def test_calls_that_no_worker_has_read_outlive_it(tiny_bundle: Path) -> None:
    """A frozen worker is killed: whose calls wait for the server is answered by the next one."""
    port = free_port()
    calls = Calls(port, tiny_bundle)
    with (
        serving(f"tiny={tiny_bundle}", "--grpc-port", str(port)) as server,
        ExitStack() as channels,
    ):
        (worker,) = server.workers()
        freeze(worker)
        waiting = []
        for _ in range(16):
            method = infer(channels.enter_context(calls.connect()))
            waiting.append(method.future(calls.request, wait_for_ready=True))
        while connections(port) < 16:  # in the frozen worker's queue
            time.sleep(0.01)
        os.kill(worker, signal.SIGKILL)
        for call in waiting:
            calls.check(call.result())
        assert calls.answered == 16 and not calls.wrong
        assert worker not in server.workers()
