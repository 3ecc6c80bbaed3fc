"""Measures which shapes of engines serve lengths best, on a device with TensorRT.

python benchmarks/engines/shapes.py build FOLDER RESULTS.jsonl PROCESSES [ENGINE...]
python benchmarks/engines/shapes.py measure FOLDER RESULTS.jsonl

Both write a JSON line per engine or cell. FOLDER has model.onnx with its weights and the axes batch
and length, float32.json with the values that stay float32, edges.json with the buckets' lengths (here 16, 32, 64 and
128), and cases.npz with the arrays BATCH:LENGTH:in:NAME and BATCH:LENGTH:out:NAME. Engines of one batch each:

- pad: one profile of length 128 alone
- range: one profile of 1 to 128
- buckets: a profile each of 1 to 16, 32, 64 and 128
- fixed: a profile each of 16, 32, 64 and 128 alone, as ``finish`` builds them
- own16, own32, own64: engines of that one length; own128 is pad
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from engine import Opened, Program, build, make_stream, named, time_call

from edgecompile.runtime.gpu.cuda import Cuda

BATCHES = (1, 8)
_LEVEL = 3


def read_edges(folder: Path) -> list[int]:
    """The buckets' lengths, ascending."""
    edges: list[int] = json.loads((folder / "edges.json").read_text())
    return edges


def engines(edges: list[int]) -> dict[str, list[tuple[int, int]]]:
    """Ranges of lengths of each engine's profiles."""
    longest = edges[-1]
    return {
        "pad": [(longest, longest)],
        "range": [(1, longest)],
        "buckets": [(1, edge) for edge in edges],
        "fixed": [(edge, edge) for edge in edges],
        **{f"own{edge}": [(edge, edge)] for edge in edges[:-1]},
    }


class Choice(NamedTuple):
    """The engine, profile and width that serve a length in one way of ``WAYS``."""

    engine: str
    profile: int
    width: int


def choose(way: str, length: int, edges: list[int]) -> Choice:
    """For ways pad, range, buckets, fixed and own."""
    number = next(index for index, edge in enumerate(edges) if length <= edge)
    edge = edges[number]
    if way == "pad":
        return Choice("pad", 0, edges[-1])
    if way == "range":
        return Choice("range", 0, length)
    if way == "own":
        return Choice("pad" if edge == edges[-1] else f"own{edge}", 0, edge)
    return Choice(way, number, edge)


WAYS = ("pad", "range", "buckets", "fixed", "own")


def build_one(folder: Path, name: str, batch: int) -> dict[str, Any]:
    """Builds FOLDER/NAME-bBATCH.plan."""
    with np.load(str(folder / "cases.npz")) as cases:
        inputs = sorted({key.split(":")[3] for key in cases.files if ":in:" in key})
    profiles = [
        {item: [(batch, low), (batch, high), (batch, high)] for item in inputs}
        for low, high in engines(read_edges(folder))[name]
    ]
    line = {"step": "build", "engine": name, "batch": batch, "level": _LEVEL}
    with named(line):
        begun = time.monotonic()
        output = folder / f"{name}-b{batch}.plan"
        float32 = json.loads((folder / "float32.json").read_text())
        made = build(folder / "model.onnx", profiles, output, _LEVEL, float32)
        line.update(seconds=time.monotonic() - begun, bytes=made["size"])
    return line


def build_all(folder: Path, results: Path, processes: int, chosen: list[str]) -> None:
    """All engines, or those that are wanted; those of several profiles first: they take longest."""
    profiles = engines(read_edges(folder))
    names = sorted(chosen or profiles, key=lambda name: -len(profiles[name]))
    pairs = [(name, str(batch)) for name in names for batch in BATCHES]

    def start(pair: tuple[str, str]) -> None:
        subprocess.run([sys.executable, __file__, "one", str(folder), str(results), *pair])

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(start, pairs))


def measure(folder: Path, results: Path) -> None:
    """All cells, the whole GPU first; what isn't built is left out."""
    opened: dict[str, Opened] = {}
    cases, edges = dict(np.load(str(folder / "cases.npz"))), read_edges(folder)
    for batch in BATCHES:
        for name in engines(edges):
            path = folder / f"{name}-b{batch}.plan"
            if path.exists():
                line = {"step": "open", "engine": name, "batch": batch}
                with named(line):
                    engine = opened[f"{name} {batch}"] = Opened(path)
                    line.update(memory=engine.memory_bytes, scratch=engine.scratch_bytes)
                add(results, line)
    add(results, {"step": "device", **Cuda.load().device().to_json()})
    for multiprocessors in (0, 8, 16):
        line = {"step": "stream", "multiprocessors": multiprocessors}
        stream = -1
        with named(line):
            stream = make_stream(multiprocessors)
        add(results, line)
        if stream < 0:
            continue
        for line in cells(opened, cases, edges, stream):
            add(results, {**line, "multiprocessors": multiprocessors})


def cells(
    opened: dict[str, Opened], cases: dict[str, Any], edges: list[int], stream: int
) -> Iterator[dict[str, Any]]:
    """Times of every way at every length, with and without a graph."""
    lengths = sorted({int(key.split(":")[1]) for key in cases})
    for batch in BATCHES:
        for way in WAYS:
            for length in lengths:
                choice = choose(way, length, edges)
                engine = opened.get(f"{choice.engine} {batch}")
                if engine is None:
                    continue
                line = {"step": "run", "way": way, "batch": batch, "length": length}
                with named(line):
                    yield from _cell(line, engine, choice, cases, stream)
                if "error" in line:
                    yield line


def _cell(
    line: dict[str, Any], engine: Opened, choice: Choice, cases: dict[str, Any], stream: int
) -> Iterator[dict[str, Any]]:
    prefix = "{}:{}:".format(line["batch"], line["length"])
    inputs = {}
    for key, array in cases.items():
        if key.startswith(prefix + "in:"):
            widened = [(0, 0), (0, choice.width - line["length"])]
            inputs[key.split(":")[3]] = np.pad(array, widened)
    largest = {name: array.shape for name, array in inputs.items()}
    program = Program(engine, choice.profile, stream, largest)
    outputs = program.run(inputs)
    apart = 0.0
    for name, got in outputs.items():
        want = cases[f"{prefix}out:{name}"]
        got = got[tuple(slice(size) for size in want.shape)]  # without what fills it up
        apart = max(apart, float(np.abs(got - want).max() / np.abs(want).max()))
    for graph in (True, False):
        times = time_call(lambda graph=graph: program.run(inputs, graph))
        yield {**line, "graph": graph, "relative_error": apart, **times}
    if choice.engine == "range":
        # A new length at every call: setting shapes costs, and no graph fits.
        other = {name: array[:, : array.shape[1] - 1] for name, array in inputs.items()}
        turns = [inputs, other]

        def alternate() -> None:
            turns.reverse()
            program.run(turns[0])

        yield {**line, "graph": False, "reshaped": True, **time_call(alternate)}
    program.close()


def add(results: Path, line: dict[str, Any]) -> None:
    """Appends a line, at once: the device may be taken away."""
    with results.open("a") as stream:
        stream.write(json.dumps(line) + "\n")


def main(arguments: list[str]) -> None:
    """One of the three tasks."""
    task, folder, results = arguments[0], Path(arguments[1]), Path(arguments[2])
    if task == "one":
        add(results, build_one(folder, arguments[3], int(arguments[4])))
    elif task == "build":
        build_all(folder, results, int(arguments[3]), arguments[4:])
    else:
        measure(folder, results)


if __name__ == "__main__":
    main(sys.argv[1:])
