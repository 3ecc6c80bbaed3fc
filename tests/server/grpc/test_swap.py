"""Another worker takes over while clients of gRPC ask all the time."""

from __future__ import annotations

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
from tests.server.processes import serving


class Calls:
    """Clients with a connection each, and a call under way all the time."""

    def __init__(self, port: int, bundle: Path, clients: int = 4) -> None:
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
        with self.connect() as channel:
            while not self._stop.is_set():
                try:
                    answer = infer(channel)(self.request)
                except grpc.RpcError as error:
                    self.lost.append(error)
                    continue
                self.check(answer)

    def connect(self) -> grpc.Channel:
        """A connection of its own for each client."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.insecure_channel(f"127.0.0.1:{self._port}", options)

    def check(self, answer: Any) -> None:
        """Counts an answer, and whether it is wrong."""
        place = self._outputs.index("pooler_output")
        found = np.frombuffer(answer.raw_output_contents[place], np.float32)
        right = np.allclose(found, self._wanted["pooler_output"].ravel(), atol=1e-5)
        self.wrong += not right
        self.answered += 1


def infer(channel: grpc.Channel) -> Any:
    """The method, to be called with a request's bytes."""
    answer = message("ModelInferResponse").FromString
    return channel.unary_unary(f"/{SERVICE}/ModelInfer", response_deserializer=answer)


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


@pytest.mark.slow
def test_another_worker_takes_over(tiny_bundle: Path) -> None:
    port = free_port()
    with (
        serving(f"tiny={tiny_bundle}", "--grpc-port", str(port)) as server,
        Calls(port, tiny_bundle) as calls,
    ):
        for _ in range(4):
            calls.wait(50)
            (worker,) = server.workers()
            server.process.send_signal(signal.SIGHUP)
            while worker in server.workers() or not server.workers():
                time.sleep(0.01)
        calls.wait(50)
        # grpcio cancels a call that comes while it tells its clients to go elsewhere: only of one who
        # took longer than the server waited to ask again.
        assert len(calls.lost) <= 2 and not calls.wrong
        assert {error.code().name for error in calls.lost} <= {"CANCELLED", "UNAVAILABLE"}


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
        os.kill(worker, signal.SIGSTOP)
        waiting = []
        for _ in range(16):
            method = infer(channels.enter_context(calls.connect()))
            waiting.append(method.future(calls.request, wait_for_ready=True))
        time.sleep(0.5)  # their connections are open, in the dead worker's queue
        os.kill(worker, signal.SIGKILL)
        for call in waiting:
            calls.check(call.result())
        assert calls.answered == 16 and not calls.wrong
        assert worker not in server.workers()
