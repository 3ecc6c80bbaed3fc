"""Requests over HTTP that run together: each is answered with its own rows, whatever ran beside them."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgecompile.runtime import open_bundle
from tests.server.http.asgi import tensor
from tests.server.processes import INFER, Server, customized, freeze, serving, write_costs
from tests.server.schedule.schedulers import COSTS

#: Connections, each with a request under way, and how often all of them ask.
CLIENTS, TURNS = 32, 6
#: How far an answer may be from that of ``run``.
CLOSE = 1e-5
OUTPUT = "pooler_output"
#: Keeps the event loop from running requests itself, alone, as it does with short ones: these take 0.1 ms.
NONE_IS_SHORT = """
from edgecompile.server.schedule.threads import ShortSizes

ShortSizes.get = lambda self, sizes: None
"""


@pytest.fixture(scope="module")
def server(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for which two rows cost hardly more than one."""
    folder = tmp_path_factory.mktemp("costs")
    write_costs(folder / "costs.json", tiny_bundle, COSTS)
    environment = customized(folder, NONE_IS_SHORT)
    with serving(tiny_bundle, "--costs", folder / "costs.json", env=environment) as server:
        yield server


def draw_texts(lengths: list[int]) -> list[list[int]]:
    """Token ids of these lengths, no two alike."""
    random = np.random.default_rng(7)
    return [random.integers(1, 39, length).tolist() for length in lengths]


def run_alone(bundle: Path, texts: list[list[int]]) -> NDArray[Any]:
    """What each gets alone, [texts, size]; no two are so near that one passed for the other."""
    with open_bundle(bundle) as model:
        found = np.concatenate([model.run({"input_ids": np.array([ids])})[OUTPUT] for ids in texts])
    apart = np.abs(found[:, None] - found).max(-1) + np.eye(len(texts))
    assert apart.min() > 10 * CLOSE
    return found


def write_request(ids: list[int], binary: bool) -> tuple[bytes, dict[str, str]]:
    """A body of …/infer and its headers."""
    outputs = {"outputs": [{"name": OUTPUT, "parameters": {"binary_data": binary}}]}
    if not binary:
        return json.dumps({**tensor(*ids), **outputs}).encode(), {}
    data = np.array(ids, "<i8").tobytes()
    given = {"name": "input_ids", "shape": [1, len(ids)], "datatype": "INT64"}
    given["parameters"] = {"binary_data_size": len(data)}
    head = json.dumps({"inputs": [given], **outputs}).encode()
    return head + data, {"Inference-Header-Content-Length": str(len(head))}


def read_output(answer: http.client.HTTPResponse, binary: bool) -> NDArray[Any]:
    """The numbers of the one output."""
    assert answer.status == 200
    body = answer.read()
    if not binary:
        return np.array(json.loads(body)["outputs"][0]["data"], np.float32)
    cut = int(answer.headers["Inference-Header-Content-Length"])
    (output,) = json.loads(body[:cut])["outputs"]
    assert output["parameters"]["binary_data_size"] == len(body) - cut
    return np.frombuffer(body[cut:], "<f4")


def count_rows(server: Server) -> tuple[int, int]:
    """How many requests ran, and how many of them beside others."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = dict(re.findall(r'^edgecompile_batch_rows_bucket\{.*le="(\S+)"\} (\d+)$', text, re.M))
    ran = int(found.get("+Inf", 0))  # there is nothing before the first
    return ran, ran - int(found.get("1", 0))


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize(
    "lengths", [[9] * 64, [3 + n * 7 % 29 for n in range(64)]], ids=["one-length", "mixed"]
)
def test_requests_that_run_together_have_their_own_answers(
    server: Server, tiny_bundle: Path, lengths: list[int], binary: bool
) -> None:
    texts = draw_texts(lengths)
    wanted = run_alone(tiny_bundle, texts)
    requests = [write_request(ids, binary) for ids in texts]
    order = np.random.default_rng(3)
    before = count_rows(server)
    (worker,) = server.workers()
    clients = [http.client.HTTPConnection("127.0.0.1", server.port) for _ in range(CLIENTS)]
    try:
        for _ in range(TURNS):
            chosen = order.permutation(len(texts))[:CLIENTS].tolist()
            # All are there when it looks: else a fast one answers each before the next comes.
            freeze(worker)
            for client, index in zip(clients, chosen, strict=True):
                client.request("POST", INFER, *requests[index])
            os.kill(worker, signal.SIGCONT)
            for client, index in zip(clients, chosen, strict=True):
                found = read_output(client.getresponse(), binary)
                np.testing.assert_allclose(found, wanted[index], atol=CLOSE)
    finally:
        for client in clients:
            client.close()
    ran, beside = (now - then for now, then in zip(count_rows(server), before, strict=True))
    assert ran == CLIENTS * TURNS and beside >= ran // 2
