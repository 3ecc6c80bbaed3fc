"""A registry on this machine, by Debian's docker-registry."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.needs import need

CONFIG = """
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "{host}"}}
"""


class Registry(NamedTuple):
    host: str
    folder: Path

    def bytes(self) -> int:
        """What all blobs in it take."""
        return sum(path.stat().st_size for path in self.folder.rglob("data"))


@contextmanager
def serving_registry(folder: Path) -> Iterator[Registry]:
    """A registry that keeps its blobs in ``folder``, which goes with it."""
    program = need("docker-registry", "docker-registry")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{unused.getsockname()[1]}"
    (folder / "config.yml").write_text(CONFIG.format(folder=folder / "data", host=host))
    process = subprocess.Popen(
        [program, "serve", str(folder / "config.yml")],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while process.poll() is None:
            try:
                urllib.request.urlopen(f"http://{host}/v2/").close()
                break
            except OSError:
                time.sleep(0.1)
        assert process.poll() is None, "the registry ended"
        yield Registry(host, folder / "data")
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
