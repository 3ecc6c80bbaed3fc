"""Load tools of others against our server: Triton's perf_analyzer over HTTP and gRPC, and hey.

    benchmarks/run outsiders BUNDLE [--rounds 3]

BUNDLE is of an encoder of texts. Each round asks in all four ways, one after the other: so many clients that ask without a
pause. What the tools count is compared with what the server counts; a difference ends it. perf_analyzer takes whole
seconds where it is given a number of requests, so texts per second are told of hey alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import statistics
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.markdown import table
from benchmarks.serving.connections import free_ports
from benchmarks.serving.ours import running
from edgecompile.runtime import open_bundle

#: Token ids of a query, and a text of about as many.
LENGTH, TEXT = 9, "what does a bucket of lengths hold"


class Said(NamedTuple):
    """What a tool says: requests that were answered well, how many a second, and milliseconds until they were."""

    answered: int
    per_s: float
    p50_ms: float
    p99_ms: float


def run_tool(command: Sequence[str], **variables: str) -> str:
    """What a tool prints.

    Raises:
        RuntimeError: it ended with another code than 0; the message has what it printed.
    """
    environment = {**os.environ, "NO_PROXY": "*", "no_proxy": "*", **variables}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def run_perf_analyzer(
    python: str,
    url: str,
    protocol: str,
    model: str,
    inputs: Sequence[Mapping[str, Sequence[int]]],
    *,
    requests: int,
    clients: int,
) -> Said:
    """Asks for one row with each of ``inputs`` in turn, all of one length.

    Args:
        python: of the environment with tritonclient and CUDA's runtime, which the tool is linked with.
        url: HOST:PORT.
        protocol: http or grpc.
        model: its name.
        inputs: token ids and such, by name.
        requests: how many.
        clients: that ask without a pause.
    """
    root = Path(python).parents[1]
    (libraries,) = {str(path.parent) for path in root.glob("lib/**/libcudart.so.*")}
    shapes = [f"--shape={name}:1,{len(row)}" for name, row in inputs[0].items()]
    with tempfile.TemporaryDirectory() as folder:
        data, report = Path(folder, "inputs.json"), Path(folder, "report.csv")
        data.write_text(json.dumps({"data": list(inputs)}))
        command = [str(root / "bin" / "perf_analyzer"), "-m", model, "-u", url, "-i", protocol]
        command += [*shapes, f"--input-data={data}", f"--request-count={requests}"]
        command += [f"--concurrency-range={clients}", "-f", str(report)]
        said = run_tool(command, LD_LIBRARY_PATH=libraries)
        (row,) = csv.DictReader(report.read_text().splitlines())
    (answered,) = re.findall(r"^ +Request count: (\d+)$", said, re.MULTILINE)
    marks = [float(row[f"p{percent} latency"]) / 1e3 for percent in (50, 99)]
    return Said(int(answered), float(row["Inferences/Second"]), *marks)


def run_hey(hey: str, url: str, body: Any, *, requests: int, clients: int) -> Said:
    """Posts one JSON body again and again. Answers with another status than 200 don't count."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(body, file)
        file.flush()
        command = [hey, "-n", str(requests), "-c", str(clients), "-m", "POST"]
        said = run_tool([*command, "-T", "application/json", "-D", file.name, url])
    counts = dict(re.findall(r"^ +\[(\d+)\]\s+(\d+) responses$", said, re.MULTILINE))
    (per_s,) = re.findall(r"Requests/sec:\s+([\d.]+)", said)
    marks = [re.findall(rf" {percent}% in ([\d.]+) secs", said) for percent in (50, 99)]
    return Said(int(counts.get("200", 0)), float(per_s), *(float(mark) * 1e3 for (mark,) in marks))


def count_requests(port: int) -> dict[tuple[str, str], int]:
    """What the server counts, by route and status."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    pattern = r'edgecompile_requests_total\{route="(.*)",status="(\d+)"\} (\d+)'
    return {(route, status): int(count) for route, status, count in re.findall(pattern, text)}


@contextmanager
def serving(bundle: Path) -> Iterator[tuple[int, int]]:
    """A server's port, and that of gRPC."""
    (grpc,) = free_ports(1)
    with running(f"it={bundle}", "--grpc-port", str(grpc)) as server:
        yield server.port, grpc


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=2000, help="of each way and round")
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    how = {"requests": options.requests, "clients": options.clients}
    python, hey = os.environ["EDGECOMPILE_PERF_PYTHON"], os.environ.get("HEY", "hey")
    with open_bundle(options.bundle) as model:
        names = [item.name for item in model.manifest.inputs]
    rows = [
        {name: [1 if "mask" in name else 1000 + 7 * i + k for k in range(LENGTH)] for name in names}
        for i in range(64)
    ]
    with serving(options.bundle) as (port, grpc):
        base = f"http://127.0.0.1:{port}"
        embedding = {"model": "it", "input": TEXT}
        ways = {
            ("perf_analyzer, HTTP", "/v2/models/{model}/infer"): lambda: run_perf_analyzer(
                python, f"127.0.0.1:{port}", "http", "it", rows, **how
            ),
            ("perf_analyzer, gRPC", "grpc ModelInfer"): lambda: run_perf_analyzer(
                python, f"127.0.0.1:{grpc}", "grpc", "it", rows, **how
            ),
            ("hey, /embed", "/embed"): lambda: run_hey(
                hey, f"{base}/embed", {"inputs": TEXT}, **how
            ),
            ("hey, /v1/embeddings", "/v1/embeddings"): lambda: run_hey(
                hey, f"{base}/v1/embeddings", embedding, **how
            ),
        }
        results: dict[tuple[str, str], list[Said]] = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way, ask in ways.items():
                before = count_requests(port).get((way[1], "200"), 0)
                results[way].append(ask())
                counted = count_requests(port)[way[1], "200"] - before
                if not counted == results[way][-1].answered == options.requests:
                    raise SystemExit(f"{way[0]}: the server counts {counted}, {results[way][-1]}")
        refused = {key: n for key, n in count_requests(port).items() if key[1] != "200"}
    print(render(results))
    print(f"\n{options.clients} clients; not answered with 200: {refused or 'none'}.")
    print(f"Load average {os.getloadavg()[0]:.1f}.")


def render(results: Mapping[tuple[str, str], Sequence[Said]]) -> str:
    """Medians of the rounds."""

    def middle(said: Sequence[Said], key: str) -> float:
        return statistics.median(getattr(item, key) for item in said)

    lines = [
        [
            name,
            f"{sum(item.answered for item in said)}",
            f"{middle(said, 'per_s'):.0f}" if name.startswith("hey") else "",
            f"{middle(said, 'p50_ms'):.2f}",
            f"{middle(said, 'p99_ms'):.2f}",
        ]
        for (name, _), said in results.items()
    ]
    return table(["way", "answered", "per second", "p50, ms", "p99, ms"], lines)


if __name__ == "__main__":
    main()
