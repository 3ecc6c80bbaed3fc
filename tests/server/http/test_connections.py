"""What comes over a socket: malformed, slow, oversized, cut off. Each has its answer, the next client too."""

from __future__ import annotations

import asyncio
import json
import select
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.server.http.asgi import tensor
from tests.server.http.sockets import (
    BODY,
    GOOD,
    HEAD,
    LIMITS,
    Served,
    counts,
    held,
    read_all,
    read_answer,
    wait_until,
    with_length,
)

BAD: dict[str, bytes] = {
    "negative length": with_length(b"-1"),
    "length that is no number": with_length(b"1x"),
    "length that is huge": with_length(b"9" * 40),
    "two lengths": HEAD + b"Content-Length: 3\r\nContent-Length: 5\r\n\r\n" + BODY,
    "length and chunks": HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two codings": HEAD
    + b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": HEAD.replace(b"1.1", b"1.0")
    + b"Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths of the JSON": HEAD
    + b"Inference-Header-Content-Length: 2\r\nInference-Header-Content-Length: 3\r\n"
    + b"Content-Length: 3\r\n\r\n{} ",
    "an unknown coding": HEAD + b"Transfer-Encoding: gzip\r\n\r\nabc",
    "a chunk that is no number": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /v2\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 30 + b"\r\n\r\n",
    "a space in a header's name": b"GET /v2 HTTP/1.1\r\nHost : x\r\n\r\n",
    "a zero byte in a header": b"GET /v2 HTTP/1.1\r\nHost: x\x00y\r\n\r\n",
    "a path with a raw byte": b"GET /v2/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
}


TWICE = "at most one each of authorization, content-length, host"
VERSION = "the version of HTTP must be 1.0 or 1.1"
CHUNKS = "HTTP/1.0 has no Transfer-Encoding"
#: What is said of those that a parser lets through. Of all others it says that they are no HTTP.
TOLD = {
    ("httptools", "two codings"): TWICE,
    ("httptools", "chunks in HTTP/1.0"): CHUNKS,
    ("httptools", "two lengths of the JSON"): TWICE,
    ("httptools", "HTTP/0.9"): VERSION,
    ("h11", "length and chunks"): "give a Content-Length or a Transfer-Encoding, not both",
    ("h11", "chunks in HTTP/1.0"): CHUNKS,
    ("h11", "two lengths of the JSON"): TWICE,
    ("h11", "HTTP/2"): VERSION,
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_requests_are_refused_and_the_connection_closed(
    served: Served, name: str
) -> None:
    head, _, body = served.ask(BAD[name]).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"\r\nconnection: close" in head.lower()
    told = TOLD.get((served.http, name), "no valid HTTP request")
    assert json.loads(body)["error"].startswith(told)
    served.check()


def test_a_request_without_a_length_has_no_body(served: Served) -> None:
    answer = served.ask(HEAD + b"Connection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ") and b"isn't JSON" in answer
    served.check()


def test_a_body_that_ends_early_is_no_request(served: Served) -> None:
    with served.connect() as client:
        client.sendall(GOOD[:-1])
        client.shutdown(socket.SHUT_WR)
        assert b"HTTP/1.1 200 " not in read_all(client)
    wait_until(lambda: not served.app.connections())
    served.check()


def test_headers_may_not_be_endless(served: Served) -> None:
    for flood in (b"X: " + b"y" * 10_000, b"".join(b"X-%d: y\r\n" % i for i in range(1000))):
        answer = served.ask(b"GET /v2 HTTP/1.1\r\nHost: x\r\n" + flood + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 431 ")
    with served.connect() as client, pytest.raises(OSError):
        for _ in range(10_000):
            client.sendall(b"G" * 1000)
    served.check()


def test_endless_headers_behind_a_request_leave_it_its_answer(served: Served) -> None:
    with held(served) as (gate, _), served.connect() as client:
        client.sendall(GOOD)
        wait_until(lambda: served.model.scheduler.running_since is not None)
        client.sendall(b"GET /v2 HTTP/1.1\r\nX: ")
        client.sendall(b"y" * 10_000)
        open_ones: set[Any] = served.listener._state.connections
        # Nothing more is read, or the connection was given up.
        wait_until(lambda: all(item.flow.read_paused for item in set(open_ones)))
        gate.set()
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 200 ")
    served.check()


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET /v2 HTTP/1.1\r\n"] + [b"X: y\r\n"] * 40,
        [with_length(b"%d" % len(BODY), b"")] + [b"{"] * 40,
        [HEAD + b"Transfer-Encoding: chunked\r\n\r\n"] + [b"1\r\n{\r\n"] * 40,
    ],
    ids=["headers", "body", "chunks"],
)
def test_slow_requests_are_ended(served: Served, pieces: list[bytes]) -> None:
    before = counts(served)
    with served.limited(header_s=0.4, body_s=0.4), served.connect() as client:
        for piece in pieces:
            client.sendall(piece)
            # What came behind the answer would take it away from the client.
            if select.select([client], [], [], 0.05)[0]:
                break
        head, _, body = read_all(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ") and b"\r\nconnection: close" in head.lower()
    assert json.loads(body) == {"error": "the request came too slowly"}
    wait_until(lambda: not served.app.metrics.in_flight)
    # Whose headers never came had no request.
    assert counts(served) - before == ({} if pieces[0].startswith(b"GET") else {"408": 1})
    served.check()


def test_idle_connections_are_closed(served: Served) -> None:
    with served.connect() as fresh, served.connect() as used:
        used.sendall(GOOD)
        assert read_answer(used)[0] == 200
        with served.limited(idle_s=0.2):
            assert read_all(fresh) == read_all(used) == b""
    served.check()


def test_a_large_body_is_told_so_whoever_sends_it_whole(served: Served) -> None:
    for size in (LIMITS.body_bytes + 1, 20 * LIMITS.body_bytes):
        answer = served.ask(
            with_length(b"%d" % size, b" " * size).replace(
                b"Host: x", b"Host: x\r\nConnection: close"
            )
        )
        assert answer.startswith(b"HTTP/1.1 413 ")
    served.check()


def test_a_body_without_room_is_told_so(served: Served) -> None:
    size = LIMITS.body_bytes
    with served.connect() as client:
        served.app.room.held += LIMITS.pending_bytes
        try:
            client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % size)
            status, answer = read_answer(client)
            assert status == 429 and b"no room" in answer
            served.check()  # small ones need none
        finally:
            served.app.room.held -= LIMITS.pending_bytes
    served.check()


def test_a_client_that_asks_first_sends_no_large_body(served: Served) -> None:
    size = LIMITS.body_bytes + 1
    with served.connect() as client:
        client.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % size)
        assert read_answer(client)[0] == 413
        assert client.recv(1) == b""  # another request would be read as the body
    with served.connect() as client:
        client.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY))
        assert client.recv(65536).startswith(b"HTTP/1.1 100 ")
        client.sendall(BODY)
        assert read_answer(client)[0] == 200


def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    bodies = [json.dumps({**tensor(1, 2, 3), "id": str(index)}).encode() for index in range(5)]
    with served.connect() as client:
        client.sendall(b"".join(with_length(b"%d" % len(body), body) for body in bodies))
        found, seen = b"", []
        while len(seen) < 5:
            data = client.recv(65536)
            assert data
            found += data
            seen = [part.partition(b'"')[0] for part in found.split(b'"id":"')[1:]]
    assert seen == [b"0", b"1", b"2", b"3", b"4"]


def test_a_body_that_came_with_its_question_is_read(served: Served) -> None:
    with served.connect() as client:
        client.sendall(GOOD.replace(b"Host: x", b"Host: x\r\nExpect: 100-continue"))
        found = b""
        while b'"pooler_output"' not in found:
            data = client.recv(65536)
            assert data, found
            found += data
    assert found.count(b"HTTP/1.1 200 ") == 1


def test_requests_in_one_segment_end_with_the_one_that_says_so(served: Served) -> None:
    last = GOOD.replace(b"Host: x", b"Host: x\r\nConnection: close")
    answer = served.ask(GOOD + GOOD + last + GOOD)
    assert answer.count(b"HTTP/1.1 200 ") == answer.count(b'"pooler_output"') == 3


def test_who_goes_away_before_the_first_turn_leaves_the_queue() -> None:
    """A request began without a task, and is cancelled before its task had a turn."""
    fast = pytest.importorskip("edgecompile.server.http.fast")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        waits: asyncio.Future[None] = loop.create_future()
        ended = []

        async def work() -> None:
            try:
                await waits
            finally:
                ended.append(True)

        begun = work()
        task = loop.create_task(fast._Begun(begun, begun.send(None)))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended and waits.cancelled()

    asyncio.run(main())


def test_an_answer_is_one_segment(served: Served) -> None:
    with served.connect() as client:
        for _ in range(20):
            client.sendall(GOOD)
            head, _, body = client.recv(65536).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ") and b"content-length: %d" % len(body) in head


def test_chunked_bodies_are_read(served: Served) -> None:
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY)
    with served.connect() as client:
        client.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        assert read_answer(client)[0] == 200


def test_too_many_connections(served: Served) -> None:
    clients = [served.connect() for _ in range(LIMITS.connections + 5)]
    try:
        refused = 0
        for client in clients[LIMITS.connections :]:
            answer = read_all(client)
            assert answer.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in answer
            refused += 1
        assert refused == 5
        clients[0].sendall(GOOD)
        assert read_answer(clients[0])[0] == 200
    finally:
        for client in clients:
            client.close()
    wait_until(lambda: not served.app.connections())
    served.check()


def test_a_client_that_goes_away_costs_no_run(served: Served) -> None:
    gone = counts(served)["499"]
    body = json.dumps(tensor(*range(1, 18))).encode()
    with held(served) as (gate, ran):
        clients = [served.connect() for _ in range(6)]
        for client in clients:
            client.sendall(with_length(b"%d" % len(body), body))
        wait_until(lambda: served.app.metrics.in_flight == 6)
        for client in clients[1:]:
            client.close()
        # The first one runs, or its client is one of those that went away.
        wait_until(lambda: served.app.metrics.in_flight <= 1)
        gate.set()
        clients[0].close()
        wait_until(lambda: served.app.metrics.in_flight == 0)
    assert len(ran) <= 2
    assert 5 <= counts(served)["499"] - gone <= 6
    served.check()


def test_a_client_that_closes_its_sending_side_has_gone(served: Served) -> None:
    """Behind a whole request, too: its connection is closed while the model still runs."""
    gone = counts(served)["499"]
    body = json.dumps(tensor(*range(1, 20))).encode()
    with held(served), served.connect() as client:
        client.sendall(with_length(b"%d" % len(body), body))
        wait_until(lambda: served.model.scheduler.running_since is not None)
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b""
    assert counts(served)["499"] - gone == 1
    served.check()


def test_a_client_that_reads_nothing_is_cut_off(served: Served) -> None:
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        client.connect(("127.0.0.1", served.port))
        with served.limited(write_s=0.2), pytest.raises(OSError):
            while True:
                client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
    wait_until(lambda: not served.app.connections())
    served.check()


UPGRADES = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n",
    "websocket": b"Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n",
    "several": b"Upgrade: h2c\r\nupgrade: TLS/1.0\r\nConnection: close\r\nConnection: upgrade\r\n",
}


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("whole", [True, False], ids=["at once", "byte by byte"])
def test_upgrades_are_left_alone(served: Served, upgrade: str, whole: bool) -> None:
    """Java's client asks for HTTP/2 with each of its requests; the body is of the same request."""
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    head = HEAD + UPGRADES[upgrade]
    requests = [
        b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n" + UPGRADES[upgrade] + b"\r\n",
        head + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
        head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks,
        GOOD.replace(b"Host: x", b"Host: x\r\nConnection: close"),
    ]
    if b"Connection: close" in UPGRADES[upgrade]:
        requests = requests[1:2]
    data = b"".join(requests)
    with served.connect() as client:
        for piece in [data] if whole else (data[at : at + 1] for at in range(len(data))):
            client.sendall(piece)
        found = read_all(client)
    assert found.count(b"HTTP/1.1 ") == found.count(b"HTTP/1.1 200 ") == len(requests)
    assert found.count(b'"pooler_output"') == min(len(requests), 3)


def test_many_upgrades_in_one_segment_cost_as_much_as_they_have_bytes(served: Served) -> None:
    one = b"GET /v2 HTTP/1.1\r\nHost: x\r\n" + UPGRADES["h2c"] + b"\r\n"
    last = one.replace(b"Upgrade, HTTP2-Settings", b"Upgrade, close")
    assert served.ask(one * 500 + last).count(b"HTTP/1.1 200 ") == 501


@pytest.mark.parametrize(
    "behind",
    [b"", b"upgrade", b"chunks", GOOD, GOOD * 100, b"no HTTP" * 9, b"\r\n"],
    ids=["nothing", "an upgrade", "chunks", "a request", "many", "garbage", "a line"],
)
@pytest.mark.parametrize("size", [2_000, 65_600, 99_000])
def test_who_goes_away_leaves_the_queue_however_much_was_sent(
    served: Served, size: int, behind: bytes
) -> None:
    """Whatever lies unread behind the request, and with a body over what is read ahead."""
    gone = counts(served)["499"]
    body = json.dumps({**tensor(*range(1, 22)), "id": "x" * size}).encode()
    head = HEAD
    if behind == b"chunks":
        pieces = [b"%x\r\n%b\r\n" % (len(p), p) for p in (body[:-9], body[-9:], b"")]
        head, behind, data = HEAD + b"Transfer-Encoding: chunked\r\n", b"", b"".join(pieces)
    else:
        head = HEAD + b"Content-Length: %d\r\n" % len(body)
        data = body
    if behind == b"upgrade":
        head, behind = head + UPGRADES["h2c"], b""
    with held(served):
        with served.connect() as client:
            client.sendall(head + b"\r\n" + data + behind)
            wait_until(lambda: served.model.scheduler.running_since is not None)
        wait_until(lambda: not served.app.metrics.in_flight and not served.app.connections())
        assert not served.app.room.held
    assert counts(served)["499"] - gone == 1
    served.check()


def test_who_goes_away_takes_all_texts_out_of_the_queue(served: Served) -> None:
    document = {"model": "tiny", "input": ["a b c d"] * 60, "user": "x" * 70_000}
    body = json.dumps(document).encode()
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with held(served) as (gate, ran):
        with served.connect() as client:
            client.sendall(head + body)
            wait_until(lambda: served.model.scheduler.waiting > 50)
        wait_until(lambda: not served.model.scheduler.waiting)
        gate.set()
    assert len(ran) < 10  # those that ran, and those that would have begun at once behind them
    served.check()


def test_a_slow_request_behind_another_ends_after_it(served: Served) -> None:
    """The part of a request that came behind one that runs isn't waited for before that is answered."""
    body = json.dumps(tensor(*range(1, 23))).encode()
    request = with_length(b"%d" % len(body), body) + GOOD[:-1]
    slow = served.limited(header_s=1e-3, body_s=1e-3)
    with held(served) as (gate, _), slow, served.connect() as client:
        client.sendall(request)
        wait_until(lambda: served.model.scheduler.running_since is not None)
        served.wait_for_sweeps(4)
        gate.set()
        found = read_all(client)
    assert found.startswith(b"HTTP/1.1 200 ") and b"HTTP/1.1 408 " in found
    served.check()


def test_a_connection_that_has_just_come_is_answered_before_the_end(
    served: Served, tiny_bundle: Path
) -> None:
    ending = Served(tiny_bundle, served.http)
    with ending.connect() as new, ending.connect() as kept, ending.connect() as silent:
        kept.sendall(GOOD)
        assert read_answer(kept)[0] == 200
        wait_until(lambda: ending.app.connections() == 3)
        ending.loop.call_soon_threadsafe(ending.loop.create_task, ending.listener.close(5))
        assert read_all(kept) == b""
        new.sendall(GOOD)
        assert read_all(new).startswith(b"HTTP/1.1 200 ")
        assert read_all(silent) == b""
    ending.close()
    assert ending.whole
