"""Answers within a deadline of our server and of peers around ONNX Runtime, at the same open loads.

    benchmarks/run open-load BUNDLE ONNX --lengths lengths.json --costs costs.json --paths ours=... ray=...

In each round our server goes first: so many connections that ask without a pause tell its capacity, and the loads of all
systems are parts of that one. Requests come at random times; latencies count from when a request was due. Ours is told
the deadline, the others have no such thing. Systems, settings and what is asked are those of ``measure``; instead of
environments it takes folders of packages for this Python (``--paths``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.markdown import table
from benchmarks.policies import QUERIES
from benchmarks.serving.arrivals import draw_times
from benchmarks.serving.clients import Load
from benchmarks.serving.peers.measure import (
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


def ask(
    port: int, requests: Sequence[bytes], dues: Sequence[float] | None, seconds: float, clients: int
) -> tuple[Load, float]:
    """A load, and the seconds until its last answer."""

    async def run() -> tuple[Load, float]:
        load = Load(requests, dues, seconds)
        return load, await asyncio.wait_for(load.run(port, clients), 20 * seconds)

    return asyncio.run(run())


def describe(system: System, load: Load, took: float, options: Any, wanted: Any) -> dict[str, Any]:
    """What a load's clients saw; ``wanted``: the texts' answers."""
    late = np.quantile(load.latencies or [0.0], (0.5, 0.99)) * 1e3
    bodies, expected = [body for _, body in load.kept], [wanted[i] for i, _ in load.kept]
    return {
        "system": str(system),
        "statuses": {str(status): n for status, n in sorted(load.statuses.items())},
        "answered_per_s": load.statuses[200] / took,
        "in_time_per_s": sum(x <= options.slo for x in load.latencies) / took,
        "p50_ms": float(late[0]),
        "p99_ms": float(late[1]),
        "error": compare(bodies, system.name, expected) if bodies else None,
    }


def turn(
    system: System, drawn: Any, most: dict[str, float], options: Any, folder: Path, number: int
) -> list[dict[str, Any]]:
    """A system's capacity and all loads; ours tells what they are parts of."""
    rows, onnx = [], options.onnx.resolve()
    python = options.pythons[system.name]
    with serving(system, drawn["queries"][0][0], python, options, onnx, folder) as port:
        for traffic, (texts, wanted) in drawn.items():
            patient = [make_request(system.name, ids) for ids in texts]
            ask(port, patient, None, options.seconds / 2, 64)
            load, took = ask(port, patient, None, options.seconds, 64)
            rate = load.statuses[200] / took
            if system.name == "ours":
                most[traffic] = rate
            rows.append(
                {
                    "traffic": traffic,
                    "load": None,
                    **describe(system, load, took, options, wanted),
                }
            )
            timed = [make_request(system.name, ids, options.slo) for ids in texts]
            for factor in options.factors:
                dues = draw_times(
                    "poisson", factor * most[traffic], options.seconds, 100 * number + 1
                )
                load, took = ask(port, timed, dues, options.seconds, 512)
                # Answers after the last request was due are no sooner for coming in a longer time.
                row = describe(system, load, max(options.seconds, dues[-1]), options, wanted)
                share = row["in_time_per_s"] / most[traffic]
                rows.append({"traffic": traffic, "load": factor, "share": share, **row})
    return rows


def render(rows: Sequence[dict[str, Any]], factors: Sequence[float]) -> str:
    """Rounds side by side."""
    parts = []
    for traffic in dict.fromkeys(row["traffic"] for row in rows):
        lines = []
        for system in dict.fromkeys(row["system"] for row in rows):
            own = [row for row in rows if (row["system"], row["traffic"]) == (system, traffic)]
            line = [
                system,
                ", ".join(f"{r['answered_per_s']:.0f}" for r in own if r["load"] is None),
            ]
            for factor in factors:
                at = [row for row in own if row["load"] == factor]
                line.append(", ".join(f"{row['share']:.2f}" for row in at))
                line.append(", ".join(f"{row['p99_ms']:.0f}" for row in at))
            lines.append(line)
        heads = ["system", "without a pause, texts/s"]
        heads += [head for f in factors for head in (f"in time at {f}", f"p99 at {f}, ms")]
        parts.append(f"## {traffic}\n\n" + table(heads, lines))
    return "\n\n".join(parts) + "\n"


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
    add("--factors", nargs="+", type=float, default=[0.5, 1.0], help="of our capacity")
    add("--slo", type=float, default=0.1, help="seconds")
    add("--seconds", type=float, default=3.0, help="of each load")
    add("--rounds", type=int, default=2)
    add("--output", type=Path, required=True, help="JSON; a page beside it")
    options = parser.parse_args()
    options.bundle, options.costs = options.bundle.resolve(), options.costs.resolve()
    options.cores = len(options.server_cores.split(","))
    os.sched_setaffinity(0, [int(core) for core in options.client_cores.split(",")])
    paths = dict(item.split("=", 1) for item in options.paths)
    document = json.loads(options.lengths.read_text())
    mixed = dict(zip(document["lengths"], document["counts"], strict=True))
    with open_bundle(options.bundle, threads=1) as model:
        drawn = {
            "mixed": draw_texts(model, mixed, 400),
            "queries": draw_texts(model, QUERIES, 1600),
        }
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options.pythons = {name: wrap(folder, name, path, options) for name, path in paths.items()}
        for number in range(options.rounds):
            order = [System(n, *how) for n in SETTINGS if n in paths for how in SETTINGS[n]]
            random.Random(number).shuffle(order)
            most: dict[str, float] = {}
            for system in [System("ours"), *order]:
                try:
                    found = turn(system, drawn, most, options, folder, number)
                except (NotServing, TimeoutError, OSError) as error:
                    found = [
                        {
                            "system": str(system),
                            "failed": f"{type(error).__name__}: {error}"[-2000:],
                        }
                    ]
                for row in found:
                    print(json.dumps({"round": number, **row}), flush=True)
                rows += [{"round": number, **row} for row in found]
                result = {"load": os.getloadavg(), "seconds": options.seconds, "rows": rows}
                options.output.write_text(json.dumps(result, indent=1) + "\n")
    page = render([row for row in rows if "failed" not in row], options.factors)
    options.output.with_suffix(".md").write_text(page)
    print(page)


def wrap(folder: Path, name: str, path: str, options: Any) -> str:
    """A program that is this Python with a system's packages, on the servers' cores."""
    program = folder / name
    lines = [
        "#!/bin/sh",
        f'export PYTHONPATH="$PYTHONPATH:{path}"',
        # pytriton runs a copy of its server that doesn't find the libraries it came with.
        f'export LD_LIBRARY_PATH="{path.partition(":")[0]}/nvidia_pytriton.libs:$LD_LIBRARY_PATH"',
        f'exec taskset --cpu-list {options.server_cores} "{sys.executable}" "$@"',
    ]
    program.write_text("\n".join(lines) + "\n")
    program.chmod(0o755)
    return str(program)


if __name__ == "__main__":
    main()
