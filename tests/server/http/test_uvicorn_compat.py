"""The private parts of uvicorn that edgecompile relies on; fails loudly when uvicorn changes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import pytest
from uvicorn.protocols.http import flow_control, h11_impl
from uvicorn.protocols.http.h11_impl import H11Protocol

CYCLE = {"scope", "transport", "flow", "logger", "default_headers", "on_response", "disconnected"} | {
    "keep_alive", "waiting_for_100_continue", "body", "more_body", "response_started", "response_complete",
    "message_event",
}  # fmt: skip
CONNECTION = {
    "transport",
    "flow",
    "connections",
    "tasks",
    "loop",
    "app",
    "headers",
    "scope",
    "cycle",
} | {"server_state"}
#: The methods that are replaced, or called, with their arguments.
METHODS = {
    "connection_made": ["transport"],
    "connection_lost": ["exc"],
    "data_received": ["data"],
    "send_400_response": ["msg"],
    "on_response_complete": [],
    "shutdown": [],
}


def assigned(*functions: Any) -> set[str]:
    """Names that the code of these functions puts into an object or takes out of it."""
    return {name for function in functions for name in function.__code__.co_names}


def check_methods(kind: type[Any], methods: dict[str, list[str]]) -> None:
    for name, arguments in methods.items():
        found = list(inspect.signature(getattr(kind, name)).parameters)
        assert found == ["self", *arguments], f"{kind.__name__}.{name} takes {found}"


def check_names(kind: type[Any], wanted: Iterable[str]) -> None:
    missing = set(wanted) - assigned(kind.__init__, kind.connection_made)
    assert not missing, f"{kind.__name__} has no {sorted(missing)} any more"


def test_what_both_protocols_share() -> None:
    flow = flow_control.FlowControl
    check_methods(flow, {"pause_reading": [], "resume_reading": [], "drain": []})
    assert {"read_paused", "write_paused"} <= assigned(flow.__init__)


def test_h11() -> None:
    check_methods(H11Protocol, {**METHODS, "handle_events": []})
    check_names(H11Protocol, CONNECTION | {"conn"})
    # It goes on with what came while a request was answered by this method.
    assert {"handle_events"} <= assigned(
        H11Protocol.data_received, H11Protocol.on_response_complete
    )
    cycle = h11_impl.RequestResponseCycle
    assert CYCLE - {"keep_alive"} <= assigned(cycle.__init__)


def test_httptools() -> None:
    httptools = pytest.importorskip("uvicorn.protocols.http.httptools_impl")
    kind, cycle = httptools.HttpToolsProtocol, httptools.RequestResponseCycle
    check_methods(kind, {**METHODS, "_start_asgi_task": ["cycle", "app"]})
    check_methods(kind, {"on_body": ["body"], "on_url": ["url"], "on_header": ["name", "value"]})
    check_methods(
        kind, {"on_message_begin": [], "on_headers_complete": [], "on_message_complete": []}
    )
    check_names(kind, CONNECTION | {"parser", "pipeline", "expect_100_continue"})
    assert assigned(cycle.__init__) >= CYCLE
    check_methods(cycle, {"run_asgi": ["app"], "send": ["message"], "receive": []})
    assert httptools.HIGH_WATER_LIMIT > 0 and httptools.STATUS_LINE[200].startswith(
        b"HTTP/1.1 200 "
    )
    # Its constructor isn't called: what its methods read of the object must be what ours has. The log of
    # accesses is off.
    ours = pytest.importorskip("edgecompile.server.http.fast")._Cycle
    read = assigned(cycle.send, cycle.receive, cycle.run_asgi) & assigned(cycle.__init__)
    assert read - {"bytearray", "access_logger"} <= assigned(ours.__init__) | set(vars(ours))
