"""Our server as a process of its own, and a model for it that computes next to nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

#: Token ids of a text of the model, at most in what is measured, and floats of its answer.
TOKENS, SIZE = 64, 384
_TICKS = os.sysconf("SC_CLK_TCK")


class Server(NamedTuple):
    """One that serves: the process that owns the address, and its port."""

    process: subprocess.Popen[str]
    port: int

    def workers(self) -> list[int]:
        """The numbers of its processes: the one that runs the models first, then a spare one."""
        number = self.process.pid
        children = Path(f"/proc/{number}/task/{number}/children").read_text()
        return [int(item) for item in children.split()]


@contextlib.contextmanager
def running(
    bundle: str | Path, *options: str, before: Sequence[str] = (), **how: Any
) -> Iterator[Server]:
    """Serves a bundle until the context ends.

    Args:
        options: of the server.
        before: what its command begins with.
        how: further arguments of ``Popen``.
    """
    command = [*before, sys.executable, "-m", "edgecompile.server", str(bundle), *options]
    command += ["--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **how)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the server ended"
        yield Server(process, int(json.loads(line)["urls"][0].rpartition(":")[2]))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def cpu_of(process: int, thread: int | None = None) -> float:
    """Seconds of CPU that a process has taken, or one of its threads."""
    place = f"/proc/{process}" if thread is None else f"/proc/{process}/task/{thread}"
    fields = Path(place, "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def factory() -> Any:
    """The model that computes next to nothing."""
    import torch

    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(1000, SIZE)

        def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"embedding": self.table(input_ids).mean(1)}

    return {
        "module": Mean().eval(),
        "inputs": {"input_ids": torch.randint(0, 1000, (1, 9))},
        "axes": {"input_ids": {1: "length"}},
        "limits": {"length": (1, 512)},
        "bounds": {"input_ids": (0, 999)},
    }


def build(folder: Path) -> Path:
    """The bundle of ``factory``."""
    bundle, lengths = folder / "mean.ecb", folder / "lengths.txt"
    lengths.write_text(f"1\n{TOKENS}\n512\n")
    command = [sys.executable, "-m", "edgecompile", "build", f"{__file__}:factory", "--quick"]
    subprocess.run(
        [*command, "--target", "cpu-x86-64", "--output", str(bundle), "--lengths", str(lengths)],
        check=True,
    )
    return bundle
