"""Others' load tools against the server: perf_analyzer over both protocols, and hey; their counts are the server's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving.outsiders import (
    count_requests,
    run_hey,
    run_perf_analyzer,
    run_tool,
    serving,
)
from tests.needs import need, need_variable

pytestmark = pytest.mark.slow

REQUESTS, CLIENTS = 240, 4
ROWS = [
    {"input_ids": [1 + (i + k) % 39 for k in range(9)], "attention_mask": [1] * 9}
    for i in range(16)
]


@pytest.fixture(scope="module")
def ports(tiny_bundle: Path) -> Iterator[tuple[int, int]]:
    with serving(tiny_bundle) as ports:
        yield ports


@pytest.mark.parametrize(
    ("protocol", "route"), [("http", "/v2/models/{model}/infer"), ("grpc", "grpc ModelInfer")]
)
def test_perf_analyzer(ports: tuple[int, int], protocol: str, route: str) -> None:
    python = need_variable("EDGECOMPILE_PERF_PYTHON")
    before = count_requests(ports[0])
    url = f"127.0.0.1:{ports[protocol == 'grpc']}"
    said = run_perf_analyzer(python, url, protocol, "it", ROWS, requests=REQUESTS, clients=CLIENTS)
    after = count_requests(ports[0])
    assert said.answered == REQUESTS == after[route, "200"] - before.get((route, "200"), 0)
    assert said.per_s > 0 and 0 < said.p50_ms <= said.p99_ms
    assert {status for _, status in after} == {"200"}


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/embed", {"inputs": "the cat sat"}),
        ("/v1/embeddings", {"model": "it", "input": ["the cat sat", "the"]}),
    ],
)
def test_hey(ports: tuple[int, int], route: str, body: Any) -> None:
    hey, url = need("hey", "hey"), f"http://127.0.0.1:{ports[0]}{route}"
    before = count_requests(ports[0]).get((route, "200"), 0)
    said = run_hey(hey, url, body, requests=REQUESTS, clients=CLIENTS)
    assert said.answered == REQUESTS == count_requests(ports[0])[route, "200"] - before
    assert said.per_s > 0 and 0 < said.p50_ms <= said.p99_ms


def test_refusals_are_no_answers(ports: tuple[int, int]) -> None:
    """hey ends with 0 whatever came: what isn't 200 doesn't count."""
    hey, url = need("hey", "hey"), f"http://127.0.0.1:{ports[0]}/embed"
    assert run_hey(hey, url, {"inputs": 7}, requests=REQUESTS, clients=CLIENTS).answered == 0
    with pytest.raises(RuntimeError, match="ended with"):
        run_tool([hey, "-n", "0", url])
