"""Answers within a deadline of our server and of peers around ONNX Runtime, at the same open loads.

    benchmarks/run open-load BUNDLE ONNX --lengths lengths.json --costs costs.json --paths ours=... ray=...

In each round our server goes first: so many connections that ask without a pause tell its capacity, and the loads of all
systems are parts of that one. Requests come at random times; latencies count from when a request was due. Ours is told
the deadline, the others have no such thing. A load is over where nothing can come in time any more, and the next one
begins when the system has done what it still had. Systems, settings and what is asked are those of ``peers.py``; instead
of environments it takes folders of packages for this Python (``--paths``). Every answer is compared with ``run``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving.connections import connect
from benchmarks.serving.loads.arrivals import QUERIES, draw_times, read_lengths
from benchmarks.serving.loads.clients import Load
from benchmarks.serving.peers.open_page import write_page
from benchmarks.serving.peers.peers import (
    NotServing,
    System,
    compare,
    draw_texts,
    make_request,
    serving,
)
from edgecompile.runtime import open_bundle

#: Settings that were the best for one of the traffics.
SETTINGS = {
    "mlserver": [(2, 1, 1), (2, 1, 8)],
    "triton": [(2, 1, 1), (2, 1, 8)],
    "ray": [(2, 1, 8), (1, 2, 8)],
}
#: Seconds in which a system has to do what it still has of a load that is over.
PATIENCE = 40.0
#: An answer that takes no longer came from a server that had nothing else to do.
IDLE = 0.2


def ask(
    port: int,
    requests: Sequence[bytes],
    dues: Sequence[float] | None,
    seconds: float,
    clients: int,
    slo: float,
) -> tuple[Load, float]:
    """A load, and the seconds until its last answer, or until nothing can come in time any more."""

    async def run() -> tuple[Load, float]:
        load = Load(requests, dues, seconds)
        limit = 20 * seconds if dues is None else max(seconds, dues[-1]) + 2 * slo
        return load, await load.run(port, clients, limit)

    return asyncio.run(run())


def wait_until_idle(port: int, request: bytes) -> None:
    """Until the system answers at once.

    Raises:
        TimeoutError: it doesn't.
    """

    async def wait() -> None:
        took = 2 * IDLE
        while took > IDLE:
            await asyncio.sleep(IDLE / 4)
            began = time.perf_counter()
            client = await connect(port)
            await client.ask(request)
            client.transport.close()
            took = time.perf_counter() - began

    asyncio.run(asyncio.wait_for(wait(), PATIENCE))


def describe(system: System, load: Load, took: float, options: Any, answers: Any) -> dict[str, Any]:
    """What a load's clients saw; ``wanted``: the texts' answers. A percentile is None where it never came."""
    unanswered = load.asked - sum(load.statuses.values())
    late = np.quantile(
        [*load.latencies, *[np.inf] * unanswered] or [0.0], (0.5, 0.99), method="higher"
    )
    p50, p99 = (float(x) * 1e3 if np.isfinite(x) else None for x in late)
    bodies, expected = [body for _, body in load.kept], [answers[i] for i, _ in load.kept]
    return {
        "system": str(system),
        "statuses": {str(status): n for status, n in sorted(load.statuses.items())},
        "unanswered": unanswered,
        "answered_per_s": load.statuses[200] / took,
        "in_time_per_s": sum(x <= options.slo for x in load.latencies) / took,
        "p50_ms": p50,
        "p99_ms": p99,
        "error": compare(bodies, system.name, expected) if bodies else None,
    }


def turn(
    system: System, drawn: Any, most: dict[str, float], options: Any, folder: Path, number: int
) -> Iterator[dict[str, Any]]:
    """A system's capacity and all loads; ours tells what they are parts of."""
    onnx, short = options.onnx.resolve(), drawn["queries"][0][0]
    python = options.pythons[system.name]
    with serving(system, short, python, options, onnx, folder) as port:
        for traffic, (texts, answers) in drawn.items():
            patient = [make_request(system.name, ids) for ids in texts]
            ask(port, patient, None, options.seconds / 2, 64, options.slo)
            load, took = ask(port, patient, None, options.seconds, 64, options.slo)
            rate = load.statuses[200] / took
            if system.name == "ours":
                most[traffic] = rate
            row = describe(system, load, took, options, answers)
            yield {"traffic": traffic, "load": None, **row}
            timed = [make_request(system.name, ids, options.slo) for ids in texts]
            for factor in options.factors:
                rate = factor * most[traffic]
                dues = draw_times("poisson", rate, options.seconds, 100 * number + 1)
                load, took = ask(port, timed, dues, options.seconds, 512, options.slo)
                # Answers after the last request was due are no sooner for coming in a longer time.
                row = describe(system, load, max(options.seconds, dues[-1]), options, answers)
                share = row["in_time_per_s"] / most[traffic]
                yield {"traffic": traffic, "load": factor, "share": share, **row}
                wait_until_idle(port, make_request(system.name, short))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("bundle", type=Path)
    add("onnx", type=Path, help="the same model")
    add("--lengths", type=Path, required=True, help="JSON histogram of the mixed traffic")
    add("--costs", type=Path, required=True, help="of bench --serving on these cores")
    add("--paths", nargs="+", required=True, help="NAME=FOLDER[:FOLDER] of each system's packages")
    add("--server-cores", default="0,1")
    add("--client-cores", default="2,3")
    add("--factors", nargs="+", type=float, default=[0.5, 1.0, 1.5], help="of our capacity")
    add("--slo", type=float, default=0.1, help="seconds")
    add("--seconds", type=float, default=3.0, help="of each load")
    add("--rounds", type=int, default=2)
    add("--output", type=Path, required=True, help="JSON; a page beside it")
    options = parser.parse_args()
    options.bundle, options.costs = options.bundle.resolve(), options.costs.resolve()
    options.cores = len(options.server_cores.split(","))
    os.sched_setaffinity(0, [int(core) for core in options.client_cores.split(",")])
    paths = dict(item.split("=", 1) for item in options.paths)
    mixed = read_lengths(options.lengths)
    with open_bundle(options.bundle, threads=1) as model:
        drawn = {
            "mixed": draw_texts(model, mixed, 400),
            "queries": draw_texts(model, QUERIES, 1600),
        }
    rows: list[dict[str, Any]] = []

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)
        told = {"load": os.getloadavg(), "seconds": options.seconds, "slo": options.slo}
        result = {**told, "systems": list(paths), "rows": rows}
        options.output.write_text(json.dumps(result, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options.pythons = {name: wrap(folder, name, path, options) for name, path in paths.items()}
        for number in range(options.rounds):
            order = [System(n, *how) for n in SETTINGS if n in paths for how in SETTINGS[n]]
            random.Random(number).shuffle(order)
            most: dict[str, float] = {}
            for system in [System("ours"), *order]:
                try:
                    for row in turn(system, drawn, most, options, folder, number):
                        keep({"round": number, **row})
                except (NotServing, TimeoutError, OSError) as error:
                    failed = f"{type(error).__name__}: {error}"[-2000:]
                    keep({"round": number, "system": str(system), "failed": failed})
    print(write_page(json.loads(options.output.read_text()), options.output))


def wrap(folder: Path, name: str, path: str, options: Any) -> str:
    """A program that is this Python with a system's packages alone, on the servers' cores.

    It is an environment, not a search path: Triton's own Python, which runs its models, takes packages from nowhere else.
    """
    place, folders = folder / name, path.split(os.pathsep)
    venv.create(place, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (place / "lib" / version / "site-packages" / "packages.pth").write_text(
        "\n".join(folders) + "\n"
    )
    program = place / "run"
    lines = [
        "#!/bin/sh",
        # pytriton runs a copy of its server that doesn't find the libraries it came with.
        f'export LD_LIBRARY_PATH="{folders[0]}/nvidia_pytriton.libs:$LD_LIBRARY_PATH"',
        f'exec taskset --cpu-list {options.server_cores} "{place}/bin/python" "$@"',
    ]
    program.write_text("\n".join(lines) + "\n")
    program.chmod(0o755)
    return str(program)


if __name__ == "__main__":
    main()
