"""The ASGI application: addresses, keys, limits, and every failure as an answer."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from edgecompile.server.errors import (
    HeadersTooLarge,
    MalformedHead,
    ServerError,
    Unauthorized,
    UnknownModel,
    WrongMedia,
    WrongMethod,
    no_memory,
)
from edgecompile.server.http.coding import TAKEN
from edgecompile.server.http.cors import Cors
from edgecompile.server.http.messages import (
    Gone,
    Handler,
    HttpRequest,
    Receive,
    Response,
    Scope,
    Send,
    openai_error,
    plain_error,
    split,
    tei_error,
)
from edgecompile.server.http.routes import make_routes
from edgecompile.server.http.state import State
from edgecompile.server.keys import Keys
from edgecompile.server.serving import Repository
from edgecompile.server.settings import Settings

_log = logging.getLogger("edgecompile.server")

#: Headers of a request at most.
_MAX_HEADERS = 128
#: Headers that may not come twice, as each reader would take another one.
_ONCE = frozenset(
    (
        b"authorization",
        b"content-length",
        b"host",
        b"inference-header-content-length",
        b"transfer-encoding",
    )
)
#: Addresses that are looked up once.
_KEPT_PATHS = 1024
#: Statuses that say nothing of a client: it went away.
GONE = 499
#: Addresses that anybody may ask, as probes bring no keys.
_OPEN = frozenset(
    ("/", "/v2/health/live", "/v2/health/ready", "/health", "/healthz", "/ping", "/metrics")
)


class App(State):
    """Serves a repository's models; an ASGI application without a framework."""

    def __init__(self, repository: Repository, settings: Settings) -> None:
        super().__init__(repository, settings)
        self._keys = Keys(settings.keys)
        self._cors = Cors(settings.cors_origins)
        self._routes = make_routes(self)
        self._by_path: dict[bytes, tuple[str, Mapping[str, Handler], list[str]]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the application's life where the server speaks of it."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        # Whoever owns the connection cancels it when the client goes away.
        scope["edgecompile.task"] = asyncio.current_task()
        request = HttpRequest(scope, receive, self.room)
        name = "unknown"
        self.metrics.in_flight += 1
        status = GONE
        try:
            try:
                self._check_head(scope, request)
                name, handler = self._find(request, scope)
                response = await handler(request)
            except ServerError as error:
                response = self._refuse(request, error)
            except (asyncio.CancelledError, Gone):
                raise
            except MemoryError:
                response = self._refuse(request, no_memory())
            except Exception:
                _log.exception("%s %s", request.method, request.path)
                response = self._refuse(request, ServerError("a bug in the server; see its log"))
            status = response.status
            if self._cors:
                response.headers += self._cors.headers(request.headers)
            try:
                await self._send(response, scope, send)
            finally:
                if response.stream is not None:
                    await response.stream.aclose()  # type: ignore[attr-defined]
        except Gone:
            status = scope.get("edgecompile.refused", GONE)
        except asyncio.CancelledError:
            status = scope.get("edgecompile.refused", GONE)
            if not scope.get("edgecompile.gone"):
                raise
        finally:
            if request.held:
                request.release()
            self.metrics.in_flight -= 1
            self.metrics.request(name, status)

    async def _send(self, response: Response, scope: Scope, send: Send) -> None:
        # Our own listener's way, which costs less; any other server has its own. Taken out, as it refers
        # to the scope again: nothing of a request waits for Python's collector.
        answer = scope.pop("edgecompile.answer", None)
        headers = [(b"content-type", response.media), *response.headers]
        if self.draining:
            headers.append((b"connection", b"close"))
        if response.stream is None:
            headers.append((b"content-length", b"%d" % len(response.body)))
            if answer is not None and answer(response.status, headers, response.body):
                return
        start = {"type": "http.response.start", "status": response.status, "headers": headers}
        await send(start)
        if response.stream is not None:
            async for piece in response.stream:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": response.body})

    def _find(self, request: HttpRequest, scope: Scope) -> tuple[str, Handler]:
        path = request.path
        raw = scope.get("raw_path") or path.encode()
        route = self._by_path.get(raw)
        if route is None:
            route = self._look_up(path, raw)
            if len(self._by_path) < _KEPT_PATHS:
                self._by_path[raw] = route
        name, methods, request.parts = route
        if self._cors and request.method == "OPTIONS":
            return name, partial(self._preflight, methods)
        if self._keys and not (path in _OPEN and request.method in ("GET", "HEAD")):
            self._keys.check(request.headers.get(b"authorization", b""))
        handler = methods.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            if request.parts:  # of a model that isn't here nothing takes any method
                self.repository.get(*request.parts)
            error = WrongMethod(f"{path} takes {', '.join(methods)}")
            error.allow = ", ".join(methods)
            raise error
        return name, handler

    async def _preflight(self, methods: Iterable[str], request: HttpRequest) -> Response:
        """OPTIONS: a browser asks, without a key, whether a page's request may be sent."""
        return Response(headers=self._cors.preflight(request.headers, methods))

    def _look_up(self, path: str, raw: bytes) -> tuple[str, Mapping[str, Handler], list[str]]:
        """The address as it is counted, its handlers by method, and what stands in its places."""
        if path == "/v2/":  # as the protocol's OpenAPI document writes it
            path = "/v2"
        if path in self._routes and "{" not in path:
            return path, self._routes[path], []
        parts = split(raw)
        served = {model.name for model in self.repository}
        places = [
            (name, found, several)
            for name, found, several in _places(parts)
            if name in self._routes and found[0] and (found[0] in served or not several)
        ]
        if places:  # a served one rather than another
            name, found, _ = next((x for x in places if x[1][0] in served), places[0])
            return name, self._routes[name], found
        meant = f"/v1{path}"
        other = f"did you mean {meant}?" if meant in self._routes else "see /openapi.json"
        raise UnknownModel(f"there is nothing at {path!r:.200}; {other}")

    def _check_head(self, scope: Scope, request: HttpRequest) -> None:
        """Refuses heads that another parser in front of this one may have read otherwise."""
        headers = scope["headers"]
        size = sum(map(len, chain.from_iterable(headers)))
        # Only then one of them has come twice.
        twice = len(request.headers) < len(headers) and any(
            count > 1
            for name, count in Counter(name for name, _ in headers).items()
            if name in _ONCE
        )
        most = self.settings.limits.header_bytes
        if len(headers) > _MAX_HEADERS or size > most:
            raise HeadersTooLarge(f"at most {_MAX_HEADERS} headers, together of {most} bytes")
        if scope.get("http_version", "1.1") not in ("1.0", "1.1", "2", "3"):
            raise MalformedHead("the version of HTTP must be 1.0 or 1.1")
        if twice:
            raise MalformedHead(f"at most one each of {b', '.join(sorted(_ONCE)).decode()}")
        coding = request.headers.get(b"transfer-encoding")
        if coding is not None:
            if scope.get("http_version") == "1.0":
                raise MalformedHead("HTTP/1.0 has no Transfer-Encoding")
            if coding.lower() != b"chunked":
                raise MalformedHead(f"Transfer-Encoding {coding!r:.50} must be chunked")
            if b"content-length" in request.headers:
                raise MalformedHead("give a Content-Length or a Transfer-Encoding, not both")

    def _refuse(self, request: HttpRequest, error: ServerError) -> Response:
        path = request.path
        openai = (
            path.startswith("/v1/") and not path.endswith(":predict")
        ) or path == "/embeddings"
        form = openai_error if openai else plain_error
        if path in ("/", "/embed", "/rerank", "/predict", "/info", "/health"):
            form = tei_error
        headers: list[tuple[bytes, bytes]] = []
        if error.retry_after is not None:
            headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after))))
        if isinstance(error, WrongMethod):
            headers.append((b"allow", error.allow.encode()))
        # Who asked first needn't send the body that the length has announced.
        if isinstance(error, (HeadersTooLarge, MalformedHead)) or b"expect" in request.headers:
            headers.append((b"connection", b"close"))
        if isinstance(error, WrongMedia):
            headers.append((b"accept-encoding", TAKEN))
        if isinstance(error, Unauthorized):
            headers.append((b"www-authenticate", b"Bearer"))
        return Response(error.status, form(error), headers=headers)


def _places(parts: Sequence[str]) -> Iterator[tuple[str, list[str], bool]]:
    """The possible meanings of a path's parts: an address, a model's name and perhaps its version, and whether the
    name is several parts, as a client leaves it that doesn't write / as %2F."""
    if parts[:2] == ["v1", "models"]:
        name = "/".join(parts[2:])
        verb = ":predict" if name.endswith(":predict") else ""
        yield "/v1/models/{model}" + verb, [name.removesuffix(verb)], len(parts) > 3
    if parts[:2] == ["v2", "models"]:
        # /v2/models/NAME[/versions/VERSION][/VERB]
        for end in range(len(parts) - 1, len(parts) + 1):
            address = "".join(["/v2/models/{model}", *(f"/{verb}" for verb in parts[end:])])
            named = parts[2:end]
            if len(named) > 2 and named[-2] == "versions":
                yield address, ["/".join(named[:-2]), named[-1]], len(named) > 3
            yield address, ["/".join(named), ""], len(named) > 1


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message: dict[str, Any] = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
