"""The same requests, good and bad, to our server and to a real Triton: statuses and answers side by side.

    benchmarks/run triton --peer PYTHON [--bundle BUNDLE]

PYTHON has nvidia-pytriton (0.7.0 carries Triton 2.51), in an environment of its own; it needs no GPU. Triton
runs the same bundle by a model in Python. Without ``--bundle`` it builds the model of ours.py.
Prints each request with both statuses, and what differs in the answers.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.markdown import table
from benchmarks.serving.connections import free_ports
from benchmarks.serving.ours import build, running

MODEL = "mean"
PATH = f"/v2/models/{MODEL}"
IDS = [5, 6, 7]
PATIENCE_S = 5
LENGTH = "Inference-Header-Content-Length"
_MODULE = "benchmarks.serving.protocol.triton"


class Case(NamedTuple):
    """A request."""

    name: str
    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = {}


def entry(**changes: Any) -> dict[str, Any]:
    made = {"name": "input_ids", "shape": [1, 3], "datatype": "INT64", "data": IDS, **changes}
    return {key: value for key, value in made.items() if value is not None}


def infer(name: str, *entries: Any, **more: Any) -> Case:
    document = {"inputs": list(entries or [entry()]), **more}
    return Case(name, "POST", PATH + "/infer", json.dumps(document).encode())


def binary(name: str, size: Any, data: bytes, header: str | None = None, **more: Any) -> Case:
    item = entry(data=None, parameters={"binary_data_size": size})
    head = json.dumps({"inputs": [item], **more}).encode()
    headers = {LENGTH: str(len(head)) if header is None else header}
    return Case(name, "POST", PATH + "/infer", head + data, headers)


def cases() -> Iterator[Case]:
    """All requests."""
    for path in ("", "/health/live", "/health/ready", f"/models/{MODEL}", f"/models/{MODEL}/ready"):
        yield Case(f"GET /v2{path}", "GET", "/v2" + path)
    yield Case("metadata of an unknown model", "GET", "/v2/models/other")
    yield Case("ready, of an unknown model", "GET", "/v2/models/other/ready")
    yield Case("an unknown address", "GET", "/v2/nowhere")
    yield Case("GET …/infer", "GET", PATH + "/infer")
    yield infer("flat data")
    yield infer("nested data", entry(data=[IDS]))
    yield infer("an id", id="one")
    yield infer("an output by name", outputs=[{"name": "embedding"}])
    yield infer("an output twice", outputs=[{"name": "embedding"}] * 2)
    yield infer("an unknown output", outputs=[{"name": "x"}])
    yield infer("an empty list of outputs", outputs=[])
    yield infer("an unknown key", colour="red")
    yield infer("a priority", parameters={"priority": 1})
    yield infer("a timeout of an hour", parameters={"timeout": 3_600_000_000})
    yield infer("a timeout of 0", parameters={"timeout": 0})
    yield infer("a timeout that is a text", parameters={"timeout": "soon"})
    data = np.array(IDS, np.int64).tobytes()
    yield binary("a binary input", len(data), data)
    yield binary("binary in and out", len(data), data, parameters={"binary_data_output": True})
    yield binary("a binary size too small", len(data) - 8, data)
    yield binary("a binary size too large", len(data) + 8, data)
    yield binary("bytes behind the tensor", len(data), data + b"xyz")
    yield binary("a binary size that is negative", -8, data)
    yield binary("a binary size that is a text", "24", data)
    yield binary("a header length past the body", len(data), data, "99999")
    yield binary("a negative header length", len(data), data, "-1")
    yield binary("a header length of letters", len(data), data, "abc")
    yield binary("a header length of 0", len(data), data, "0")
    yield Case("an unknown model", "POST", "/v2/models/other/infer", infer("").body)
    yield Case("version 9", "POST", PATH + "/versions/9/infer", infer("").body)
    yield Case("version abc", "POST", PATH + "/versions/abc/infer", infer("").body)
    for name, body in (
        ("an empty body", b""),
        ("broken JSON", b'{"inputs": ['),
        ("a list", b"[]"),
        ("no inputs", b"{}"),
        ("an empty list of inputs", b'{"inputs": []}'),
        ("JSON in UTF-16", infer("").body.decode().encode("utf-16")),
        ("a byte order mark", b"\xef\xbb\xbf" + infer("").body),
        ("data behind the JSON", infer("").body + b"{}"),
        ("NaN", infer("").body.replace(b"[5,", b"[NaN,")),
    ):
        yield Case(name, "POST", PATH + "/infer", body)
    yield infer("an input twice", entry(), entry())
    yield infer("an unknown input", entry(), entry(name="x"))
    yield infer("another input instead", entry(name="x"))
    yield infer("no name", entry(name=None))
    yield infer("no shape", entry(shape=None))
    yield infer("no datatype", entry(datatype=None))
    yield infer("no data", entry(data=None))
    yield infer("another datatype", entry(datatype="FP32"))
    yield infer("a smaller datatype", entry(datatype="INT32"))
    yield infer("an unknown datatype", entry(datatype="INT7"))
    yield infer("a datatype in small letters", entry(datatype="int64"))
    yield infer("too little data", entry(data=[5]))
    yield infer("too much data", entry(data=[5] * 9))
    yield infer("ragged data", entry(data=[[5, 6], [7]]))
    yield infer("a number with a fraction", entry(data=[5.5, 6, 7]))
    yield infer("true", entry(data=[True, 6, 7]))
    yield infer("a text for a number", entry(data=["5", 6, 7]))
    yield infer("a number over 64 bits", entry(data=[2**64, 6, 7]))
    yield infer("a negative size", entry(shape=[1, -3]))
    yield infer("a size that is a text", entry(shape=[1, "3"]))
    yield infer("another rank", entry(shape=[3]))
    yield infer("a length of 0", entry(shape=[1, 0], data=[]))
    yield infer("a token out of the vocabulary", entry(data=[5, 6, 10**6]))
    # The last one: the process of Triton's model doesn't outlive it.
    yield infer("sizes that overflow", entry(shape=[2**62, 4]))


def ask(port: int, case: Case) -> tuple[int, Any]:
    """Status, and the answer's content as plain values; None where it isn't JSON. 0: no answer came."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request(case.method, case.path, case.body, dict(case.headers))
        try:
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException):
            return 0, None
        body = answer.read()
        length = answer.headers.get(LENGTH)
        try:
            document = json.loads(body[: int(length)] if length else body)
        except ValueError:
            return answer.status, None
        if length:
            tensor = np.frombuffer(body[int(length) :], np.float32)
            document["outputs"][0]["data"] = tensor.tolist()
        return answer.status, document
    finally:
        connection.close()


def differences(ours: Any, theirs: Any, at: str = "") -> list[str]:
    """Where two answers differ; texts of errors, names of programs and versions may."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        lines = [f"{at}{key}: ours alone" for key in ours if key not in theirs]
        lines += [f"{at}{key}: Triton's alone" for key in theirs if key not in ours]
        free = {"error", "name", "version", "versions", "model_version", "platform", "extensions"}
        for key in ours.keys() & theirs.keys() - (free if not at else set()):
            lines += differences(ours[key], theirs[key], f"{at}{key}.")
        return lines
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        if all(isinstance(item, int | float) for item in ours + theirs):
            same = np.allclose(ours, theirs, atol=1e-6)
            return [] if same else [f"{at[:-1]}: other numbers"]
        pairs = zip(ours, theirs, strict=True)
        return [text for x, y in pairs for text in differences(x, y, at)]
    return [] if ours == theirs else [f"{at[:-1]}: {ours!r:.60} and {theirs!r:.60}"]


def compare(ports: tuple[int, int]) -> None:
    """Prints the table."""
    rows = []
    for case in cases():
        (ours, one), (theirs, other) = (ask(port, case) for port in ports)
        told = "; ".join(differences(one, other)) if ours == theirs else ""
        if ours != theirs and isinstance(other, dict) and "error" in other:
            told = f"Triton: {other['error']:.90}"
        rows.append([case.name, str(ours), str(theirs), told.replace("|", "/").replace("\n", " ")])
    rows.sort(key=lambda row: row[1] == row[2])
    print(table(["request", "ours", "Triton", "differs"], rows))
    equal = sum(row[1] == row[2] for row in rows)
    print(f"\n{equal} of {len(rows)} statuses are equal.")


def serve_peer(bundle: str) -> None:
    """Runs in Triton's environment: prints its port once it serves, and ends with its stdin."""
    from pytriton.model_config import ModelConfig, Tensor
    from pytriton.triton import Triton, TritonConfig

    from edgecompile.runtime import open_bundle

    model = open_bundle(bundle, threads=1)

    def dims(item: Any) -> tuple[int, ...]:
        return tuple(size if isinstance(size, int) else -1 for size in item.shape)

    (ids,), (embedding,) = model.manifest.inputs, model.manifest.outputs

    def run(requests: Any) -> Any:
        return [model.run({"input_ids": item["input_ids"]}) for item in requests]

    ports = [int(item) for item in os.environ["PORTS"].split(",")]
    config = TritonConfig(
        http_address="127.0.0.1", http_port=ports[0], grpc_port=ports[1], metrics_port=ports[2]
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name=MODEL,
            infer_func=run,
            inputs=[Tensor(name="input_ids", dtype=np.int64, shape=dims(ids))],
            outputs=[Tensor(name="embedding", dtype=np.float32, shape=dims(embedding))],
            config=ModelConfig(batching=False),
        )
        triton.run()
        print(json.dumps({"port": ports[0]}), flush=True)
        sys.stdin.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peer", metavar="PYTHON", help="a Python with nvidia-pytriton")
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--serve-peer", metavar="BUNDLE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_peer:
        serve_peer(options.serve_peer)
        return
    if not options.peer:
        parser.error("--peer is missing")
    with tempfile.TemporaryDirectory() as folder:
        bundle = options.bundle or build(Path(folder))
        with Servers(bundle, options.peer) as servers:
            compare((servers.ours, servers.theirs))


class Servers:
    """Ours and Triton around one bundle, as a context.

    Attributes:
        ours, theirs: their ports of HTTP.
    """

    def __init__(self, bundle: Path, python: str) -> None:
        self._bundle, self._python = bundle, python
        self._running = running(f"{MODEL}={bundle}", "--threads", "1")
        self._peer: subprocess.Popen[str] | None = None

    def __enter__(self) -> Servers:
        self.ours = self._running.__enter__().port
        self.restart_peer()
        return self

    def restart_peer(self) -> None:
        """Starts Triton, instead of the one that runs."""
        self._end_peer()
        root = str(Path(__file__).resolve().parents[3])
        ports = ",".join(map(str, free_ports(3)))
        self._peer = subprocess.Popen(
            [self._python, "-m", _MODULE, "--serve-peer", str(self._bundle)],
            cwd=root,
            env={**os.environ, "PYTHONPATH": root, "PORTS": ports},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._peer.stdout is not None
        line = ""
        while not line.startswith('{"port"'):
            line = self._peer.stdout.readline()
            assert line, "Triton ended"
        self.theirs = int(json.loads(line)["port"])

    def _end_peer(self) -> None:
        if self._peer is not None:
            self._peer.communicate()  # it ends with its stdin
            self._peer = None

    def __exit__(self, *_: object) -> None:
        self._end_peer()
        self._running.__exit__(None, None, None)


if __name__ == "__main__":
    main()
