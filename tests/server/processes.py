"""Servers as processes, and clients that ask them all the time."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgecompile.runtime import open_bundle
from tests.server.http.asgi import tensor

INFER = "/v2/models/tiny/infer"


class Server:
    """``python -m edgecompile.server``, or other ``words``, on a free port of this machine."""

    def __init__(
        self,
        *arguments: str | Path,
        python: str = sys.executable,
        words: Sequence[str] = ("edgecompile.server",),
        **how: Any,
    ) -> None:
        command = [python, "-m", *words, "--port", "0", "--json"]
        self.process = subprocess.Popen(
            [*command, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **how,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith('{"ready"'):
            raise RuntimeError(self.process.communicate()[1])
        self.port = int(json.loads(line)["urls"][0].rpartition(":")[2])

    def children(self) -> list[int]:
        """The numbers of all of its processes, in the order of their starts.

        One that was just forked still has the supervisor's command line; it isn't a worker yet.
        """
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        numbers = map(int, Path(path).read_text().split())
        return [number for number in numbers if b"\0--report\0" in command_line(number)]

    def workers(self) -> list[int]:
        """The numbers of those that open bundles: not of one that waits behind another to be called."""
        children = self.children()
        return children[:1] + [number for number in children[1:] if not waits(number)]

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Ends it, and returns its exit code."""
        self.process.send_signal(number)
        self.err = self.process.communicate()[1]
        return self.process.returncode


def check_inference(server: Server, bundle: Path, path: str = INFER) -> dict[str, Any]:
    """Asks for all outputs of a text, which have to be those of ``run``; the answer."""
    status, answer = server.ask("POST", path, tensor(5, 6, 7))
    assert status == 200, answer
    with open_bundle(bundle) as model:
        expected = model.run({"input_ids": np.array([[5, 6, 7]])})
    assert [item["name"] for item in answer["outputs"]] == list(expected)
    for output in answer["outputs"]:
        np.testing.assert_allclose(output["data"], expected[output["name"]].ravel(), atol=1e-5)
    body: dict[str, Any] = answer
    return body


def waits(number: int) -> bool:
    """Whether a process was started as a spare one that opens no bundle until it is called."""
    return b"\0--wait\0process\0" in command_line(number)


def command_line(number: int) -> bytes:
    """The arguments of a process, each before a zero byte; empty if it has ended."""
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return b""


def freeze(number: int) -> None:
    """Stops a process, and waits until none of its threads runs: on busy CPUs some go on for a while."""
    os.kill(number, signal.SIGSTOP)
    while any(map(_goes_on, Path(f"/proc/{number}/task").iterdir())):
        time.sleep(0.001)


def _goes_on(thread: Path) -> bool:
    try:
        return not (thread / "stat").read_text().rpartition(") ")[2].startswith("T")
    except OSError:  # it ended
        return False


@contextlib.contextmanager
def serving(*arguments: str | Path, **how: Any) -> Iterator[Server]:
    server = Server(*arguments, **how)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.communicate()


def customized(folder: Path, code: str) -> dict[str, str]:
    """An environment in which every Python that starts runs this code first, out of ``folder``."""
    (folder / "sitecustomize.py").write_text(code)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class DrainDelay:
    """A delay between a server's notice that it ends and the end of its listening; the test ends it.

    Args:
        folder: a folder for what the server's processes run first.
    """

    options = ("--drain-delay", "3600")

    def __init__(self, folder: Path) -> None:
        self._over = folder / "over"
        self.env = customized(
            folder,
            "import asyncio, os\n"
            "sleep = asyncio.sleep\n"
            "async def until_told(seconds):\n"
            f"    while seconds == 3600 and not os.path.exists({str(self._over)!r}):\n"
            "        await sleep(0.01)\n"
            "    await sleep(0 if seconds == 3600 else seconds)\n"
            "asyncio.sleep = until_told\n",
        )

    def end(self) -> None:
        self._over.touch()


def write_costs(path: Path, bundle: Path, costs: Mapping[str, Any]) -> None:
    """Writes costs of this bundle as ``bench --serving`` does."""
    manifest = hashlib.sha256((bundle / "manifest.json").read_bytes()).hexdigest()
    path.write_text(json.dumps({**costs, "manifest_sha256": manifest}))


class Load:
    """Clients that ask all the time, over connections that stay, each with tokens and ids of its own.

    An answer with another request's id or numbers is ``wrong``: one that came twice would be the next one's.
    """

    def __init__(self, port: int, bundle: Path, clients: int = 4) -> None:
        self.port = port
        self.answered = self.wrong = 0
        self.lost: list[BaseException] = []
        self.statuses: list[int] = []
        self.seconds: list[float] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        with open_bundle(bundle) as model:
            self._examples = []
            for index in range(clients * 8):
                ids = [1 + (index * 7 + k * (index + 1)) % 38 for k in range(3 + index % 9)]
                expected = model.run({"input_ids": np.array([ids])})["pooler_output"]
                self._examples.append((ids, expected.ravel().copy()))
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        turn = 0
        while not self._stop.is_set():
            ids, expected = self._examples[(number * 8 + turn % 8)]
            turn += 1
            request = {**tensor(*ids), "id": f"{number}-{turn}"}
            started = time.perf_counter()
            try:
                connection.request("POST", INFER, json.dumps(request))
                answer = connection.getresponse()
                body = json.loads(answer.read())
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                with self._lock:
                    self.lost.append(error)
                time.sleep(0.02)
                continue
            with self._lock:
                self.statuses.append(answer.status)
                self.seconds.append(time.perf_counter() - started)
                self.answered += 1
                if answer.status == 200:
                    output = next(o for o in body["outputs"] if o["name"] == "pooler_output")
                    right = np.allclose(output["data"], expected, atol=1e-5)
                    self.wrong += not right or body["id"] != request["id"]
        connection.close()

    def wait(self, count: int) -> None:
        """Until so many more requests are answered."""
        goal = self.answered + count
        while self.answered < goal:
            time.sleep(0.01)
