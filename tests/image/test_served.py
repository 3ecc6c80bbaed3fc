"""The server in a real image, started as its entrypoint says; and what an update of its code moves.

The base comes from Debian's mirror and the packages from PyPI, kept in the user's cache from one run to
the next.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import open_bundle
from tests.image.layouts import append, change_code, contained, unpack, write
from tests.needs import lack, need, need_network
from tests.server.http.asgi import tensor

pytestmark = pytest.mark.slow

#: Bytes of MiniLM's weights.
WEIGHTS = 90_281_664


@pytest.fixture(autouse=True)
def needs() -> None:
    need("mmdebstrap", "mmdebstrap")
    if os.geteuid() != 0:
        lack("running an image by hand needs root's rights")
    need_network()


def free_ports() -> tuple[int, int]:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        return one.getsockname()[1], two.getsockname()[1]


class Container:
    """A server out of an unpacked image, with the machine's network, on other ports than its own."""

    def __init__(self, layout: Path, root: Path) -> None:
        config = unpack(layout, root)
        self.port, grpc = free_ports()
        words = [*config["Entrypoint"], *config["Cmd"], "--port", self.port, "--grpc-port", grpc]
        command, variables = contained(config, root, *map(str, words))
        self.process = subprocess.Popen(command, env=variables)

    def ask(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", data) as answer:
            return json.load(answer)

    def wait(self) -> None:
        """Until it is ready."""
        while True:
            assert self.process.poll() is None, "it ended"
            try:
                self.ask("/v2/health/ready")
                return
            except OSError:
                time.sleep(0.1)

    def server(self) -> int:
        """The process that is the first one in there."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(path.read_text())


@pytest.fixture
def container(tiny_bundle: Path, tmp_path: Path) -> Iterator[Container]:
    write(tiny_bundle, "--output", tmp_path / "tiny.oci")
    made = Container(tmp_path / "tiny.oci", tmp_path / "root")
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        shutil.rmtree(tmp_path, ignore_errors=True)


def test_its_server_answers(container: Container, tiny_bundle: Path) -> None:
    container.wait()
    answer = container.ask("/v2/models/tiny/infer", tensor(1, 2, 3))
    with open_bundle(tiny_bundle) as model:
        wanted = model.run({"input_ids": np.array([[1, 2, 3]])})
    for item in answer["outputs"]:
        np.testing.assert_allclose(item["data"], wanted[item["name"]].ravel(), atol=1e-5)
    texts = container.ask("/embed", {"inputs": "the cat"})
    assert np.shape(texts) == (1, 16)
    status = Path(f"/proc/{container.server()}/status").read_text()
    assert "Uid:\t10001\t10001\t10001\t10001" in status
    os.kill(container.server(), signal.SIGTERM)
    assert container.process.wait() == 0


def grow_weights(source: Path, target: Path) -> Path:
    """A copy of a bundle with weights of MiniLM's size: bytes behind its own, which nobody would read."""
    files = json.loads((source / "manifest.json").read_text())["files"]
    (name,) = (name for name in files if name.startswith("weights"))
    return append(
        source, target, name, np.random.default_rng(7).bytes(WEIGHTS - files[name]["size"])
    )


def test_an_update_of_the_code_moves_little(tiny_bundle: Path, tmp_path: Path) -> None:
    """At most 1.5 % of an image with weights of MiniLM's size."""
    first = grow_weights(tiny_bundle, tmp_path / "first.ecb")
    second = change_code(first, tmp_path / "second.ecb")
    (before,), (after,) = (
        write(bundle, "--output", tmp_path / f"{bundle.stem}.oci")["images"]
        for bundle in (first, second)
    )
    kept = {layer["digest"] for layer in before["layers"]}
    moved = [layer for layer in after["layers"] if layer["digest"] not in kept]
    assert [layer["title"] for layer in moved] == ["code"]
    assert after["bytes"] > WEIGHTS and moved[0]["size"] <= 0.015 * after["bytes"]
    shutil.rmtree(tmp_path, ignore_errors=True)
