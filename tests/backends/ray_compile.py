"""Compiles on a Ray cluster of this machine, with the folder shared and not; run by test_ray.py.

Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray

from edgecompile.backends import ray as remote
from edgecompile.backends.compilation import CompiledModel, CompileOptions, compile_buckets
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.errors import ClusterError, EdgecompileError
from edgecompile.export.store import ExportStore, export_buckets
from edgecompile.hosts.cluster import open_cluster
from edgecompile.loaders.load import load_model
from edgecompile.targets.profile import load_target

MODELS = """
import torch

class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        return torch.sin(self.linear(x)) * 2

class Exotic(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.qr(x @ x.mT)[1]

def plain():
    return made(Plain(), torch.randn(1, 4, 16), {1: "length"})

def exotic():
    return made(Exotic(), torch.randn(4, 3, 3), {0: "length"})

def made(module, x, axes):
    return {"module": module, "inputs": {"x": x}, "axes": {"x": axes}, "max_length": 16}
"""
BUCKETS = [Bucket("exact", (("length", AxisRange(lo, hi, hi)),)) for lo, hi in ((1, 8), (9, 16))]


class Steps:
    """Keeps what is told of the progress."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def update(self, *told: Any) -> None:
        self.told.append(told)

    def note(self, text: str) -> None:
        raise AssertionError(text)


def compiled(work: Path, name: str, on: str, steps: Steps) -> CompiledModel:
    store = ExportStore(load_model(f"{work / 'models.py'}:{name}"), work / "exported")
    return compile_buckets(
        export_buckets(store, BUCKETS), BUCKETS, load_target("cpu-x86-64-v3"), work / on,
        CompileOptions(on=on.partition("-")[0]),
        keys=[str(number) for number in range(len(BUCKETS))], step=steps,
    )  # fmt: skip


def results(work: Path, on: str, steps: Steps) -> dict[str, Any]:
    """What is in the folder afterwards, and what was told."""
    made = compiled(work, "plain", on, steps).artifacts["x86-64-v3"]
    return {
        "libraries": [artifact.sha256 for artifact in made],
        "places": [str(artifact.library.relative_to(work / on)) for artifact in made],
        "tensors": sorted(path.name for path in (work / on / "tensors").iterdir()),
        "left": [path.name for path in (work / on).glob(".ray-*")],
        "told": steps.told,
    }


def failure(work: Path, on: str) -> list[str]:
    try:
        compiled(work, "exotic", on, Steps())
    except EdgecompileError as error:
        return [type(error).__name__, str(error)]
    return []


def hide(pack: Any) -> Any:
    """As on a machine that doesn't share the folder: what lies there is gone when a task begins."""

    def hidden(tasks: Sequence[Any], *rest: Any) -> Iterator[remote.Parcel]:
        for parcel in pack(tasks, *rest):
            parcel.task.exported.source.unlink()
            yield parcel

    return hidden


def other_versions(pack: Any) -> Any:
    def others(*arguments: Any) -> Iterator[remote.Parcel]:
        for parcel in pack(*arguments):
            parcel.like["torch"] = "0.1"
            yield parcel

    return others


def cancelled(folder: Path) -> list[str]:
    """The caller is interrupted while two tasks run and others wait; which of them began."""
    end = folder / "end"

    def wait(number: int) -> None:
        (folder / f"begun-{number}").touch()
        while number and not end.exists():
            time.sleep(0.05)

    with open_cluster() as cluster:
        mapped = cluster.map(wait, iter(range(9)), 2)
        next(mapped)
        while not (folder / "begun-1").exists():
            time.sleep(0.05)
        mapped.close()
        end.touch()  # Ray interrupts a running task if it can
        ray.get(ray.remote(wait).remote(9))
    return sorted(path.name for path in folder.iterdir())


def main(work: Path) -> dict[str, Any]:
    (work / "models.py").write_text(MODELS)
    outcomes: dict[str, Any] = {"local": results(work, "local", Steps())}
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    outcomes["ray"] = results(work, "ray", Steps())
    outcomes["again"] = results(work, "ray", Steps())
    outcomes["failures"] = [failure(work, "local-x"), failure(work, "ray-x")]
    pack = remote._pack
    remote._pack = hide(pack)
    outcomes["ray-apart"] = results(work, "ray-apart", Steps())
    outcomes["failures"].append(failure(work, "ray-x-apart"))
    remote._pack = other_versions(pack)
    try:
        results(work, "ray-others", Steps())
    except ClusterError as error:
        outcomes["others"] = str(error)
    remote._pack = pack
    (work / "cancelled").mkdir()
    outcomes["cancelled"] = cancelled(work / "cancelled")
    ray.shutdown()
    os.environ["RAY_ADDRESS"] = "127.0.0.1:9"
    try:
        results(work, "ray-nowhere", Steps())
    except ClusterError as error:
        outcomes["nowhere"] = str(error)
    return outcomes


if __name__ == "__main__":
    print("found " + json.dumps(main(Path(sys.argv[1]))), flush=True)
