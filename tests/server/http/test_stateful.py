"""Requests of all kinds in any order, against a model of the server that knows what each gets and what is counted."""

from __future__ import annotations

import http.client
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from edgecompile.runtime import open_bundle
from tests.draws import examples
from tests.server.http.asgi import tensor
from tests.server.http.sockets import GOOD, LIMITS, Served, wait_until
from tests.server.http.test_bad_bodies import INFER, bad_bodies, texts_of
from tests.server.http.test_connections import BAD, TOLD
from tests.server.test_batches import write_request

COUNTED = "/v2/models/{model}/infer"
TEXTS = ["the cat sat", "the", "a mat, a mat"]
PROMPT = [3, 1, 4, 1, 5]
PARSER = "httptools" if find_spec("httptools") else "h11"
#: Connections that stay.
LINES = 3


@dataclass(frozen=True)
class Case:
    """A request: the address that it is counted under, the status that it gets, and what its answer has to be."""

    name: str
    method: str
    path: str
    route: str
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    check: Callable[[bytes], None] = lambda body: None

    def __repr__(self) -> str:
        return self.name


def close_to(wanted: Any, find: Callable[[Any], Any]) -> Callable[[bytes], None]:
    """Compares numbers that ``find`` takes out of an answer's JSON."""

    def check(body: bytes) -> None:
        np.testing.assert_allclose(np.ravel(find(json.loads(body))), np.ravel(wanted), atol=1e-5)

    return check


def has_error(body: bytes) -> None:
    assert json.loads(body)["error"]


def embedding_cases(bundle: Path) -> Iterator[Case]:
    """Valid requests with tensors and with texts."""
    draws = np.random.default_rng(11)
    with open_bundle(bundle) as model:
        for index in range(16):
            ids = draws.integers(1, 39, 3 + index * 5 % 29).tolist()
            wanted = model.run({"input_ids": np.array([ids])})["pooler_output"]
            body, headers = write_request(ids, False)
            check = close_to(wanted, lambda found: found["outputs"][0]["data"])
            yield Case(f"json {index}", "POST", INFER, COUNTED, 200, body, headers, check)
            body, headers = write_request(ids, True)

            def same(body: bytes, data: bytes = wanted.tobytes()) -> None:
                found = np.frombuffer(body[-len(data) :], np.float32)
                np.testing.assert_allclose(found, np.frombuffer(data, np.float32), atol=1e-5)

            yield Case(f"binary {index}", "POST", INFER, COUNTED, 200, body, headers, same)
        pooled = np.asarray(model.encode_texts(TEXTS)["pooler_output"])
    unit = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    finds: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        INFER: (pooled, lambda found: found["outputs"][0]["data"]),
        "/embed": (unit, lambda found: found),
        "/v1/embeddings": (pooled, lambda found: [item["embedding"] for item in found["data"]]),
    }
    for path, (wanted, find) in finds.items():
        body = json.dumps(texts_of(path, TEXTS)).encode()
        route = COUNTED if path == INFER else path
        yield Case(f"texts {path}", "POST", path, route, body=body, check=close_to(wanted, find))


def completion_case(bundle: Path) -> Case:
    with open_bundle(bundle) as model:
        ids = model.generate(PROMPT, max_new_tokens=4, do_sample=False)
    wanted = "".join(f" w{item}" for item in ids if item != 7)  # 7 ends a text

    def check(body: bytes) -> None:
        assert json.loads(body)["choices"][0]["text"] == wanted

    prompt = " ".join(f"w{item}" for item in PROMPT)
    asked = {"model": "speaking", "prompt": prompt, "temperature": 0, "max_tokens": 4}
    path = "/v1/completions"
    return Case("completion", "POST", path, path, body=json.dumps(asked).encode(), check=check)


def refused_cases() -> Iterator[Case]:
    """Each with its status."""
    for index, bad in enumerate(bad_bodies()):
        told = bad.json_length
        headers = {} if told is None else {"Inference-Header-Content-Length": told.decode()}
        yield Case(f"bad {index}", "POST", INFER, COUNTED, bad.status, bad.body, headers, has_error)
    texts = ("/embed", "/rerank", "/predict", "/v1/embeddings")
    for path in (*texts, "/v1/completions", "/v1/chat/completions"):
        yield Case(f"no JSON {path}", "POST", path, path, 400, b"{", check=has_error)
    for name, path, status, asked in (
        ("no scores", "/predict", 422, {"inputs": "a"}),
        ("no ranks", "/rerank", 422, {"query": "a", "texts": ["b"]}),
        ("no texts", "/embed", 400, {"inputs": []}),
        ("no such model", "/v1/embeddings", 404, {"model": "x", "input": "a"}),
        ("not generative", "/v1/completions", 422, {"model": "tiny", "prompt": "a"}),
    ):
        body = json.dumps(asked).encode()
        yield Case(name, "POST", path, path, status, body, check=has_error)
    for name, asked in (("vocabulary", tensor(1, 400)), ("too long", tensor(*[1] * 33))):
        body = json.dumps(asked).encode()
        yield Case(name, "POST", INFER, COUNTED, 400, body, check=has_error)
    yield Case("another method", "DELETE", "/v2/models/tiny", "unknown", 405, check=has_error)
    yield Case("nowhere", "GET", "/v2/../v2", "unknown", 404, check=has_error)
    model = "/v2/models/{model}"
    yield Case("no model", "GET", "/v2/models/x", model, 404, check=has_error)
    listed = "/v1/models/{model}"
    yield Case("none listed", "GET", "/v1/models/x", listed, 404, check=has_error)
    yield Case("no version", "GET", "/v2/models/tiny/versions/9", model, 404, check=has_error)


def own_cases() -> Iterator[Case]:
    """What the server says of itself and of its models."""
    for path in (
        "/v2", "/v2/health/live", "/v2/health/ready", "/health", "/openapi.json", "/v1/models",
        "/info", "/v2/models/stats",
    ):  # fmt: skip
        yield Case(path, "GET", path, path)
        yield Case(f"HEAD {path}", "HEAD", path, path)
    for name in ("tiny", "speaking"):
        yield Case(f"listed {name}", "GET", f"/v1/models/{name}", "/v1/models/{model}")
    for tail in ("", "/ready", "/config", "/stats"):
        for name in ("tiny", "speaking"):
            route = "/v2/models/{model}" + tail
            yield Case(f"{name}{tail}", "GET", f"/v2/models/{name}{tail}", route)


def count_malformed(name: str) -> tuple[str, int] | None:
    """What one of BAD is counted as; None: its parser refuses its head, and there was no request."""
    if name == "a chunk that is no number":
        return COUNTED, 400
    own = (PARSER, name) in TOLD or (PARSER, name) == ("httptools", "an unknown coding")
    return ("unknown", 400) if own else None


class World:
    """A server whose worker may be another one later, and what it has to have counted.

    Attributes:
        served: the worker of now.
        wanted: requests by address and status.
        left: clients that sent a whole request and went: it counts as answered or as gone.
    """

    def __init__(self, bundles: Sequence[Path]) -> None:
        self._bundles = bundles
        self._limits = replace(LIMITS, connections=200)
        self.served = self._start()
        self._before = Counter[tuple[str, int]]()  # by former workers
        self.begin()

    def begin(self) -> None:
        """What was counted until now is right."""
        metrics = self.served.app.metrics
        wait_until(lambda: not metrics.in_flight)
        self.wanted, self.left = self._before + Counter(metrics.requests), 0

    def _start(self, **how: Any) -> Served:
        first, *others = self._bundles
        return Served(first, PARSER, others, self._limits, **how)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.served.port)

    def swap(self, meanwhile: Callable[[], None]) -> None:
        """Another worker accepts on the same socket; the old one answers what it has, and ends."""
        old = self.served
        self.served = self._start(listening=old.socket.dup())
        old.app.draining = True
        old.loop.call_soon_threadsafe(old.listener.stop_listening)
        meanwhile()
        old.close()
        assert old.whole
        self._before.update(old.app.metrics.requests)

    def expect(self, case: Case) -> None:
        self.wanted[case.route, case.status] += 1

    def check(self) -> None:
        """/metrics of the worker of now, and what former ones counted, are what is wanted."""
        metrics = self.served.app.metrics
        total = self.wanted.total() + self.left - self._before.total()
        wait_until(lambda: sum(metrics.requests.values()) >= total)
        client = self.connect()
        client.request("GET", "/metrics")
        text = client.getresponse().read().decode()
        client.close()
        pattern = r'^edgecompile_requests_total\{route="(.*)",status="(\d+)"\} (\d+)$'
        found = self._before.copy()
        for route, status, count in re.findall(pattern, text, re.M):
            found[route, int(status)] += int(count)
        wanted = self.wanted.copy()
        gone = found[COUNTED, 499] - wanted[COUNTED, 499]
        assert 0 <= gone <= self.left
        wanted[COUNTED, 499] += gone
        wanted[COUNTED, 200] += self.left - gone
        assert not found - wanted and not wanted - found
        assert "\nedgecompile_requests_in_flight 1\n" in text
        self.wanted["/metrics", 200] += 1


def make_machine(world: World, cases: list[Case]) -> type[RuleBasedStateMachine]:
    """The rules, over these requests."""
    any_case = st.sampled_from(cases)

    class Machine(RuleBasedStateMachine):
        """Clients of all kinds."""

        def __init__(self) -> None:
            super().__init__()
            world.begin()
            self.right = True
            self.lines = [world.connect() for _ in range(LINES)]

        def send(self, client: http.client.HTTPConnection, case: Case) -> None:
            client.request(case.method, case.path, case.body or None, case.headers)
            world.expect(case)

        def receive(self, client: http.client.HTTPConnection, case: Case) -> None:
            answer = client.getresponse()
            body = answer.read()
            self.right = False
            assert answer.status == case.status, (answer.status, body)
            if case.method != "HEAD":
                case.check(body)
            self.right = True

        @rule(case=any_case, line=st.integers(0, LINES - 1))
        def ask(self, case: Case, line: int) -> None:
            self.send(self.lines[line], case)
            self.receive(self.lines[line], case)

        @rule(chosen=st.lists(any_case, min_size=2, max_size=12))
        def ask_at_once(self, chosen: list[Case]) -> None:
            clients = [world.connect() for _ in chosen]
            for client, case in zip(clients, chosen, strict=True):
                self.send(client, case)
            for client, case in zip(clients, chosen, strict=True):
                self.receive(client, case)
                client.close()

        @rule(chosen=st.lists(any_case, max_size=8))
        def swap(self, chosen: list[Case]) -> None:
            for line in self.lines:
                line.close()  # and is opened again when it asks
            clients = [world.connect() for _ in chosen]
            for client, case in zip(clients, chosen, strict=True):
                self.send(client, case)

            def read() -> None:
                for client, case in zip(clients, chosen, strict=True):
                    self.receive(client, case)
                    client.close()

            world.swap(read)

        @rule(name=st.sampled_from(list(BAD)))
        def send_malformed(self, name: str) -> None:
            assert world.served.ask(BAD[name]).startswith(b"HTTP/1.1 400 ")
            if (counted := count_malformed(name)) is not None:
                world.wanted[counted] += 1

        @rule(size=st.integers(1, len(GOOD)))
        def go_away(self, size: int) -> None:
            """In the head, in the body, or behind the whole."""
            begins = size >= GOOD.index(b"\r\n\r\n") + 4
            with world.served.connect() as client:
                client.sendall(GOOD[:size])
            if size == len(GOOD):
                world.left += 1
            elif begins:
                world.wanted[COUNTED, 499] += 1

        @rule()
        def count(self) -> None:
            world.check()

        def teardown(self) -> None:
            for line in self.lines:
                line.close()
            # After a wrong answer others may not have been read, and nobody can wait for their count.
            if self.right:
                world.check()

    return Machine


@pytest.mark.hypothesis
def test_whatever_comes_is_answered_and_counted(tiny_bundle: Path, speaking_bundle: Path) -> None:
    cases = [*embedding_cases(tiny_bundle), completion_case(speaking_bundle), *refused_cases()]
    cases += own_cases()
    world = World([tiny_bundle, speaking_bundle])
    try:
        run_state_machine_as_test(
            make_machine(world, cases),
            settings=settings(max_examples=examples(15), stateful_step_count=40),
        )
    finally:
        world.served.close()
