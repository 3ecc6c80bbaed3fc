"""MiniLM behind our server, and in ONNX Runtime behind Triton, MLServer and Ray Serve: texts per second.

    benchmarks/run peers BUNDLE MODEL --lengths lengths.json [--rounds 3] [--cores 2]

BUNDLE was built from MODEL, a folder, with ``--profile server``. Each system runs in an environment of its own, made
where it is missing from the versions below, outside the tree. Every peer batches by its own rule, fills batches
up to the longest text, and is tried with each of SETTINGS; rounds interleave all of them, and one runs at a
time. So many connections ask without a pause; every answer is compared with ``run``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.markdown import table
from benchmarks.serving.connections import (
    Connection,
    binary_request,
    connect,
    free_ports,
    http_request,
)
from benchmarks.serving.loads.arrivals import QUERIES, read_lengths
from edgecompile.bench.bench import default_cache
from edgecompile.runtime import Model, open_bundle
from edgecompile.runtime.measure.serving import batch_axis
from edgecompile.server.schedule.simulate import draw_trace

ROOT = Path(__file__).resolve().parents[3]
SIZE = 384
ATTEMPTS = 8
ENGINE = "onnxruntime==1.32.0"
REQUIREMENTS = {
    "ours": (
        "numpy==2.4.6",
        "uvicorn==0.54.0",
        "httptools==0.9.0",
        "uvloop==0.23.0",
        "orjson==3.13.0",
    ),
    "triton": ("nvidia-pytriton==0.7.0", "numpy==1.26.4", ENGINE),
    # Its workers want a loop that later versions of uvloop no longer make.
    "mlserver": ("mlserver==1.7.1", "uvloop==0.21.0", "numpy==2.4.6", ENGINE),
    "ray": ("ray[serve]==2.60.0", "numpy==2.4.6", ENGINE),
}
#: Where the environment doesn't say otherwise. What Ray documents for throughput is its own proxy's part of it:
#: RAY_SERVE_ENABLE_HA_PROXY=1 takes HAProxy, which didn't start on a busy machine.
VARIABLES = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class NotServing(Exception):
    """A system ended, or never answered."""


class System(NamedTuple):
    """A server in one of its settings."""

    name: str
    instances: int = 1
    threads: int = 1
    batch: int = 1

    def __str__(self) -> str:
        return f"{self.name}, {self.instances} x {self.threads} threads, batches to {self.batch}"


def systems(cores: int, only: Sequence[str]) -> list[System]:
    """All of them: one thread each with and without batches, and one run at a time on all cores."""
    settings = [(cores, 1, 1), (cores, 1, 8), (1, cores, 8), (1, cores, 32)]
    peers = [System(name, *how) for name in REQUIREMENTS if name != "ours" for how in settings]
    return [System("ours"), *(item for item in peers if item.name in only)]


def make_environment(name: str, folder: Path, python: str) -> str:
    """The Python of a system, made if it is missing or its versions changed."""
    requirements = "\n".join(REQUIREMENTS[name])
    place = folder / f"{name}-{hashlib.sha256((python + requirements).encode()).hexdigest()[:8]}"
    binary = place / "bin" / "python"
    if not (place / "done").exists():
        subprocess.run([python, "-m", "venv", "--clear", str(place)], check=True)
        command = [str(binary), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*command, *REQUIREMENTS[name]], check=True)
        (place / "done").touch()
    return str(binary)


def make_request(system: str, ids: Any, timeout: float | None = None) -> bytes:
    """The request of a text in the system's own protocol; only ours takes a timeout, in seconds."""
    path = "/v2/models/minilm/infer"
    if system == "ray":
        return http_request("/", ids.tobytes())
    if system == "mlserver":
        data = " ".join(map(str, ids.tolist()))
        entry = {"name": "ids", "shape": [1, 1], "datatype": "BYTES", "data": [data]}
        content = json.dumps({"inputs": [entry]}).encode()
        return http_request(path, content, ["Content-Type: application/json"])
    data, timed = ids.tobytes(), {}
    if system == "triton":
        inputs = [("ids", [1, 1], "BYTES", len(data).to_bytes(4, "little") + data)]
    else:
        arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        inputs = [(key, [1, len(x)], "INT64", x.tobytes()) for key, x in arrays.items()]
        timed = {} if timeout is None else {"timeout": round(timeout * 1e6)}
    return binary_request(path, inputs, binary_data_output=True, **timed)


def read_answer(system: str, body: bytes) -> Any:
    """The floats of an answer: its last ones, but in MLServer's JSON."""
    if system == "mlserver":
        return np.array(json.loads(body)["outputs"][0]["data"], np.float32)
    return np.frombuffer(body[-4 * SIZE :], np.float32)


async def ask_all(port: int, requests: Sequence[bytes], clients: int) -> tuple[float, list[bytes]]:
    """Seconds until all are answered, and the bodies; an answer that isn't 200 ends it."""
    bodies, left = [b""] * len(requests), iter(enumerate(requests))

    async def run(client: Connection) -> None:
        for index, request in left:
            status, bodies[index] = await client.ask(request)
            if status != 200:
                raise RuntimeError(f"{status}: {bodies[index]!r:.300}")
        client.transport.close()

    opened = [await connect(port) for _ in range(clients)]
    began = time.perf_counter()
    await asyncio.gather(*map(run, opened))
    return time.perf_counter() - began, bodies


def wait_until_ready(port: int, request: bytes, process: subprocess.Popen[str], log: Path) -> None:
    """Asks until the first right answer.

    Raises:
        NotServing: there is none.
    """
    for _ in range(3000):
        if process.poll() is not None:
            break
        try:
            asyncio.run(asyncio.wait_for(ask_all(port, [request], 1), 10))
            return
        except (OSError, RuntimeError, ValueError, asyncio.TimeoutError):
            time.sleep(0.2)
    raise NotServing(log.read_text()[-2000:])


def start(system: System, port: int, python: str, options: Any, onnx: Path, log: Path) -> Any:
    """The system's process."""
    if system.name == "ours":
        rest = ["edgecompile.server", f"minilm={options.bundle}", "--port", str(port)]
        rest += ["--threads", str(options.cores)]
        rest += ["--costs", str(options.costs)] if options.costs else []
    else:
        module = f"benchmarks.serving.peers.on_{system.name}"
        rest = [module, str(onnx), *map(str, (*system[1:], port))]
    with log.open("w") as out:
        return subprocess.Popen(
            [python, "-m", *rest],
            cwd=log.parent,
            env={**VARIABLES, **os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
        )


@contextlib.contextmanager
def serving(
    system: System, text: Any, python: str, options: Any, onnx: Path, folder: Path
) -> Iterator[int]:
    """The port of a system that answers. On a busy machine pytriton's second instance often misses the
    second in which the first one has to be there: a system may start so often."""
    for attempt in range(ATTEMPTS):
        (port,), log = free_ports(1), folder / "log.txt"
        process = start(system, port, python, options, onnx, log)
        try:
            wait_until_ready(port, make_request(system.name, text), process, log)
            yield port
            return
        except NotServing:
            if attempt == ATTEMPTS - 1:
                raise
        finally:
            if system.name == "ours":
                process.terminate()
            process.communicate()


def compare(bodies: Sequence[bytes], system: str, expected: Sequence[Any]) -> float:
    """The largest difference from ``run``, of the largest magnitude of its answer."""
    answers = (read_answer(system, body) for body in bodies)
    pairs = zip(answers, expected, strict=True)
    return max(float(abs(one - other).max() / abs(other).max()) for one, other in pairs)


def draw_texts(model: Model, lengths: dict[int, int], count: int) -> tuple[list[Any], list[Any]]:
    """Token ids that differ, and their answers by ``run``, one by one."""
    draws = np.random.default_rng(5)
    texts = [
        draws.integers(1000, 30000, item.length) for item in draw_trace(lengths, count, seed=1)
    ]
    answers = []
    for ids in texts:
        inputs = {"input_ids": ids[None], "attention_mask": np.ones_like(ids[None])}
        answers.append(next(iter(model.run(inputs).values())).ravel().copy())
    return texts, answers


def render(rows: Sequence[dict[str, Any]], traffics: Sequence[str]) -> str:
    """A table for each traffic, the fastest first."""
    parts = []
    for traffic in traffics:
        by: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            if row["traffic"] == traffic:
                by.setdefault(row["system"], []).append(row)
        rates = {name: [row["texts_per_s"] for row in group] for name, group in by.items()}
        ours = rates.get(str(System("ours")), [])
        lines = []
        for name, per_s in sorted(rates.items(), key=lambda pair: -statistics.median(pair[1])):
            # Of one round each: the machine may have been another in the next one.
            ratios = [a / b for a, b in zip(ours, per_s, strict=False)]
            lines.append(
                [
                    name.partition(",")[0] if per_s is ours else name,
                    f"{statistics.median(per_s):.0f}",
                    ", ".join(f"{rate:.0f}" for rate in per_s),
                    f"{statistics.median(ratios):.2f}" if ratios else "",
                    f"{max(row['error'] for row in by[name]):.1e}",
                ]
            )
        heads = ["system", "texts/s", "rounds", "ours / it", "largest difference from `run`"]
        parts.append(f"## {traffic}\n\n" + table(heads, lines))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("bundle", type=Path, help="of MODEL, built with --profile server")
    add("model", type=Path, help="the folder, for the ONNX file")
    add("--lengths", type=Path, required=True, help="JSON histogram of the mixed traffic")
    add("--costs", type=Path, help="of bench --serving on this machine; default: measured now")
    add("--cores", type=int, default=2, help="run on so many (default: 2)")
    add("--rounds", type=int, default=3)
    add("--mixed", type=int, default=400, help="texts of a round")
    add("--queries", type=int, default=1600)
    add("--clients", type=int, default=64, help="connections")
    add("--only", nargs="*", default=list(REQUIREMENTS), help="these peers")
    add("--python", default="/usr/bin/python3", help="of the environments; Triton needs 3.11.2")
    add("--environments", type=Path, default=default_cache() / "peers")
    add("--output", type=Path, help="JSON")
    options = parser.parse_args()
    options.bundle = options.bundle.resolve()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    pythons = {
        name: make_environment(name, options.environments, options.python)
        for name in REQUIREMENTS
        if name in (*options.only, "ours")
    }
    with tempfile.TemporaryDirectory() as folder:
        print(measure(options, pythons, Path(folder)))


def measure(options: Any, pythons: dict[str, str], folder: Path) -> str:
    """Runs all rounds."""
    from benchmarks.baselines.onnx_file import make_onnx
    from benchmarks.baselines.workshop import Workshop
    from edgecompile.runtime.measure.serving import measure_serving

    spec = str(options.model)
    shop = Workshop.of_bundle(options.bundle, spec, options.cores, default_cache())
    onnx = make_onnx(shop)
    if options.costs is None:
        options.costs = folder / "costs.json"
        measure_serving(str(options.bundle), str(options.costs), cpus=options.cores)
    options.costs = options.costs.resolve()
    mixed = read_lengths(options.lengths)
    traffics = {"mixed": (mixed, options.mixed), "queries": (QUERIES, options.queries)}
    with open_bundle(options.bundle, threads=options.cores) as model:
        batch_axis(model.manifest)  # refuses a bundle for single runs
        drawn = {name: draw_texts(model, *how) for name, how in traffics.items()}
    rows: list[dict[str, Any]] = []
    result = {"cores": options.cores, "clients": options.clients, "rows": rows, "load": []}
    for number in range(options.rounds):
        order = systems(options.cores, options.only)
        random.Random(number).shuffle(order)
        for system in order:
            result["load"].append(os.getloadavg()[0])
            for row in turn(system, drawn, pythons[system.name], options, onnx, folder):
                rows.append({"round": number, **row})
                print(number, row, flush=True)
            if options.output:
                options.output.write_text(json.dumps(result, indent=1) + "\n")
    load = f"Load average from {min(result['load']):.1f} to {max(result['load']):.1f}."
    return render(rows, list(traffics)) + f"\n\n{load}"


def turn(
    system: System, drawn: Any, python: str, options: Any, onnx: Path, folder: Path
) -> list[dict[str, Any]]:
    """Starts a system, asks all of each traffic, and ends it."""
    rows = []
    with serving(system, drawn["queries"][0][0], python, options, onnx, folder) as port:
        for traffic, (texts, expected) in drawn.items():
            requests = [make_request(system.name, ids) for ids in texts]
            asyncio.run(ask_all(port, requests[: len(requests) // 4], options.clients))
            seconds, bodies = asyncio.run(ask_all(port, requests, options.clients))
            rows.append(
                {
                    "system": str(system),
                    "traffic": traffic,
                    "texts_per_s": round(len(texts) / seconds, 1),
                    "error": compare(bodies, system.name, expected),
                }
            )
    return rows


if __name__ == "__main__":
    main()
