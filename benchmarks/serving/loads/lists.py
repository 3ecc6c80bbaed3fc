"""Short queries beside clients who send long lists of texts without a pause, as both see it.

    benchmarks/run lists BUNDLE --lengths lengths.json [--costs costs.json] [--code FOLDER...] [--lists 0 1x600 3x256]

Queries come at random times, ``--rate`` a second; "3x256" are three clients who each send a list of 256 texts of those lengths,
and the next one once it is answered. Latencies count from when a query was due. Each embedding is compared with
that of its text alone. Rounds interleave the versions of the package (``--code``, a checkout each) and the lists.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.markdown import table
from benchmarks.serving.connections import connect, http_request
from benchmarks.serving.loads.arrivals import QUERIES, draw_times, read_lengths
from benchmarks.serving.loads.clients import Load
from benchmarks.serving.loads.goodput import serving
from benchmarks.serving.loads.rounds import tell
from edgecompile.runtime import open_bundle
from edgecompile.server.schedule.simulate import draw_trace

#: Texts that differ, of each of both kinds.
_DIFFERENT = 64
#: Connections of the queries.
_CONNECTIONS = 64


def draw_texts(lengths: Mapping[int, int], seed: int) -> list[list[int]]:
    """Token ids."""
    draws = np.random.default_rng(seed)
    trace = draw_trace(lengths, _DIFFERENT, seed=seed)
    return [draws.integers(1000, 30000, item.length).tolist() for item in trace]


def embed(texts: Sequence[Sequence[int]], name: str) -> bytes:
    """A request for the embeddings of texts."""
    body = {"model": name, "input": texts, "encoding_format": "base64"}
    return http_request("/v1/embeddings", json.dumps(body).encode())


def read(body: bytes) -> np.ndarray[Any, Any]:
    """The embeddings of an answer, a row each."""
    told = [base64.b64decode(item["embedding"]) for item in json.loads(body)["data"]]
    return np.stack([np.frombuffer(item, np.float32) for item in told])


async def ask_alone(port: int, requests: Sequence[bytes]) -> np.ndarray[Any, Any]:
    """The embeddings of texts that nothing runs beside."""
    connection = await connect(port)
    answers = [await connection.ask(request) for request in requests]
    connection.transport.close()
    return np.concatenate([read(body) for _, body in answers])


async def measure(
    port: int,
    name: str,
    lists: tuple[int, int],
    lengths: Mapping[int, int],
    options: Any,
    seed: int,
) -> dict[str, float]:
    """Queries beside so many clients with lists of so many texts.

    Raises:
        SystemExit: an answer has another status than 200, or isn't that of its text alone.
    """
    clients, size = lists
    queries, texts = draw_texts(QUERIES, 1), draw_texts(lengths, 2)
    asked = [embed([text], name) for text in queries]
    alone = [await ask_alone(port, asked)]
    alone.append(await ask_alone(port, [embed([text], name) for text in texts]))
    dues = draw_times("poisson", options.rate, options.seconds, seed)
    loads = [Load(asked, dues, options.seconds)]
    works = [loads[0].run(port, _CONNECTIONS)]
    order = [i % _DIFFERENT for i in range(size)]
    if clients:
        loads.append(Load([embed([texts[i] for i in order], name)], None, options.seconds))
        works.append(loads[1].run(port, clients))
    *_, took = await asyncio.gather(*works)
    expected = [[alone[0][[i]] for i in range(_DIFFERENT)], [alone[1][order]] if clients else []]
    for load, right in zip(loads, expected, strict=False):
        if set(load.statuses) != {200}:
            raise SystemExit(f"statuses: {dict(load.statuses)}")
        error = max(abs(read(body) - right[index]).max() for index, body in load.kept)
        if error > options.tolerance:
            raise SystemExit(f"an embedding differs by {error:.2g} from that of its text alone")
    ms = np.percentile(loads[0].latencies, [50, 99]) * 1e3
    texts_per_s = loads[1].statuses[200] * size / took if clients else 0.0
    return {"p50_ms": float(ms[0]), "p99_ms": float(ms[1]), "texts_per_s": texts_per_s}


def main() -> None:
    """Measures, prints a table, and writes every round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--lengths", required=True)
    parser.add_argument("--costs")
    parser.add_argument("--code", nargs="+", default=["."])
    parser.add_argument("--lists", nargs="+", default=["0", "1x600", "3x256"])
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--cores", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lengths = read_lengths(options.lengths)
    with open_bundle(options.bundle) as model:
        name = model.manifest.name
    rows: list[dict[str, Any]] = []
    for turn in range(options.rounds):
        for code in options.code:
            # Versions from before the option take ids without it.
            arguments = Path(code, "edgecompile/server/process/arguments.py").read_text()
            more = ["--token-ids"] if "--token-ids" in arguments else []
            with serving(options.bundle, options.costs, code, options, *more) as (port, _):
                for words in options.lists:
                    clients, _, size = words.partition("x")
                    lists = int(clients), int(size or 0)
                    told = asyncio.run(measure(port, name, lists, lengths, options, turn))
                    rows.append({"round": turn, "code": code, "lists": words, **told})
                    print(json.dumps(rows[-1]), flush=True)
    keys = ("p50_ms", "p99_ms", "texts_per_s")
    lines = [
        [words, code, *(tell([row[key] for row in rows if (row["lists"], row["code"]) == (words, code)], 1) for key in keys)]
        for words in options.lists
        for code in options.code
    ]  # fmt: skip
    print(table(["lists", "code", "queries, p50 ms", "p99 ms", "texts of lists/s"], lines))
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
