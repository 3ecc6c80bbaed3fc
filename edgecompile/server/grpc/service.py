"""The service: what each of its methods answers, and with which code it refuses."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from edgecompile.server.answers import Answer, TextAnswer
from edgecompile.server.body_budget import SMALL, BodyBudget
from edgecompile.server.errors import (
    BadRequest,
    Overloaded,
    ServerError,
    UnknownModel,
    no_memory,
)
from edgecompile.server.grpc.messages import HEALTH_SERVICE, METHODS, SERVICE, message
from edgecompile.server.grpc.tensors import read_inputs, write_outputs
from edgecompile.server.keys import Keys
from edgecompile.server.protocol.datatypes import NAMES
from edgecompile.server.protocol.fields import Fields
from edgecompile.server.protocol.inference import infer
from edgecompile.server.protocol.triton import (
    describe_config,
    describe_index,
    describe_statistics,
)
from edgecompile.server.protocol.v2 import (
    EXTENSIONS,
    INPUT_PARAMETERS,
    OUTPUT_PARAMETERS,
    REQUEST_PARAMETERS,
    check_priority,
)
from edgecompile.server.serving import Repository, ServedModel
from edgecompile.server.settings import DEFAULT_LIMITS, Limits

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_log = logging.getLogger("edgecompile.server")
#: Characters of a message: clients take 8 KiB of metadata at most.
_LONGEST = 2000
#: Seconds in which no call comes, before a server ends; how often it is looked for them.
_QUIET_S, _MOST_LOOKS = 0.02, 10

#: Seconds between two looks at how the server is, for who watches its health.
_LOOK_S = 0.25
#: Seconds after which one more may try to watch it.
_LATER_S = 5.0
#: Calls of Health.Watch at once: anybody may make them, and each is one of ``start``'s calls for as long as it likes.
_MOST_WATCHERS = 256
#: The names under which the health of the whole server is asked for.
_SERVICES = ("", SERVICE, HEALTH_SERVICE)
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3


class InferenceService:
    """Answers requests from a worker's models.

    Args:
        repository: the models.
        version: the server's, as its metadata say it.
        live: whether the worker still gets anywhere.
        ready: whether it takes requests.
        keys: a request has to bring one of them as a bearer token, if there are any.
        limits: the limits of a request's elements and texts.
        slo: seconds that are the deadline of calls which bring none; None: they have none.
        room: the room for the messages of all calls under way; None: without a limit.
        count: a function that gets each call's method and status, as HTTP has it.
        see: a function that gets the model's name and the answer of each that ran.
    """

    def __init__(
        self,
        repository: Repository,
        *,
        version: str = "",
        live: Callable[[], bool] = lambda: True,
        ready: Callable[[], bool] = lambda: True,
        keys: Collection[bytes] = (),
        limits: Limits = DEFAULT_LIMITS,
        slo: float | None = None,
        room: BodyBudget | None = None,
        count: Callable[[str, int], None] = lambda method, status: None,
        see: Callable[[str, Answer | TextAnswer], None] = lambda model, answer: None,
    ) -> None:
        self._repository = repository
        self._version = version
        self._live = live
        self._ready = ready
        self._keys = Keys(keys)
        self._limits = limits
        self._slo = slo
        self._room = room or BodyBudget(math.inf)
        self._count, self._see = count, see
        self._came = 0  # calls
        self._watchers = 0
        self._may_answer = asyncio.Event()
        self._may_answer.set()

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """The methods for a server of grpcio. Messages are read here, so that what isn't one is the
        client's fault and not the server's."""
        own = {name: grpc.unary_unary_rpc_method_handler(self._method(name)) for name in METHODS}
        health = {
            "Check": grpc.unary_unary_rpc_method_handler(self._method("HealthCheck")),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        return (
            grpc.method_handlers_generic_handler(SERVICE, own),
            grpc.method_handlers_generic_handler(HEALTH_SERVICE, health),
        )

    def _method(self, name: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
        request_class, response_class = message(f"{name}Request"), message(f"{name}Response")
        answer: Callable[[Any, Any, Any], Awaitable[None]] = getattr(self, f"_{name}")

        async def call(data: bytes, context: Any) -> bytes:
            size = len(data) if len(data) > SMALL else 0
            self._came += 1
            try:
                if self._keys and name != "HealthCheck":  # probes bring none
                    self._keys.check(_authorization(context))
                self._room.take(size)
                try:
                    try:
                        request = request_class.FromString(data)
                    except DecodeError as error:
                        raise BadRequest(f"the message is no {name}Request ({error})") from None
                    response = response_class()
                    await answer(request, response, context)
                    self._count(name, 200)
                    await self._may_answer.wait()
                    return bytes(response.SerializeToString())
                finally:
                    self._room.held -= size
            except ServerError as error:
                refusal = error
            except MemoryError:
                refusal = no_memory()
            except Exception:  # what it says isn't for clients
                _log.exception("%s", name)
                refusal = ServerError("a bug in the server; see its log")
            self._count(name, refusal.status)
            await self._may_answer.wait()
            await _refuse(context, refusal)

        return call

    async def stop(self, server: grpc.aio.Server, grace: float) -> None:
        """Ends a server; calls that have begun may end within ``grace`` seconds.

        grpcio cancels every call that comes between its end and the moment at which the client has
        read of it (github.com/grpc/grpc/issues/41785). So nobody is answered for a moment: clients
        who wait for an answer ask nothing, and read of the end ahead of it.
        """
        self._may_answer.clear()
        try:
            for _ in range(_MOST_LOOKS):
                came = self._came
                await asyncio.sleep(_QUIET_S)
                if came == self._came:
                    break
            ending = asyncio.ensure_future(server.stop(grace))
            await asyncio.sleep(_QUIET_S)
        finally:
            self._may_answer.set()
        await ending

    async def _ServerLive(self, request: Any, response: Any, context: Any) -> None:
        response.live = self._live()

    async def _ServerReady(self, request: Any, response: Any, context: Any) -> None:
        response.ready = self._ready() and all(model.ready for model in self._repository)

    async def _ModelReady(self, request: Any, response: Any, context: Any) -> None:
        try:
            response.ready = self._ready() and self._find(request.name, request.version).ready
        except UnknownModel:
            response.ready = False

    async def _ServerMetadata(self, request: Any, response: Any, context: Any) -> None:
        response.name, response.version = "edgecompile", self._version
        response.extensions.extend(name for name in EXTENSIONS if name != "binary_tensor_data")

    async def _ModelMetadata(self, request: Any, response: Any, context: Any) -> None:
        model = self._find(request.name, request.version)
        manifest = model.model.manifest
        response.name, response.platform = model.name, "edgecompile"
        response.versions.extend(self._repository.versions(model.name))
        for target, specs in (
            (response.inputs, manifest.inputs),
            (response.outputs, manifest.outputs),
        ):
            for spec in specs:
                shape = [size if isinstance(size, int) else -1 for size in spec.shape]
                target.add(name=spec.name, datatype=NAMES[spec.dtype], shape=shape)

    async def _ModelConfig(self, request: Any, response: Any, context: Any) -> None:
        model = self._find(request.name, request.version)
        ParseDict({"config": describe_config(model.name, model.model.manifest)}, response)

    async def _ModelStatistics(self, request: Any, response: Any, context: Any) -> None:
        models = self._repository
        every = models.every(request.name, request.version) if request.name else models
        stats = [describe_statistics(item.name, item.version, item.scheduler) for item in every]
        ParseDict({"model_stats": stats}, response)

    async def _RepositoryIndex(self, request: Any, response: Any, context: Any) -> None:
        ParseDict({"models": describe_index(self._repository, request.ready)}, response)

    async def _HealthCheck(self, request: Any, response: Any, context: Any) -> None:
        if request.service not in _SERVICES:
            raise UnknownModel(f"there is no service {request.service!r:.100}")
        response.status = self._health(request.service)

    def _health(self, service: str) -> int:
        """The health of a service, as a number of ``HealthCheckResponse``; all services here are the server."""
        if service not in _SERVICES:
            return _SERVICE_UNKNOWN
        well = self._live() and self._ready() and all(model.ready for model in self._repository)
        return _SERVING if well else _NOT_SERVING

    async def _watch(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        """Health.Watch: how a service is, and again whenever that changes, until the server is about to end."""
        try:
            service = message("HealthCheckRequest").FromString(data).service
        except DecodeError as error:
            await _refuse(context, BadRequest(f"the message is no HealthCheckRequest ({error})"))
        if self._watchers >= _MOST_WATCHERS:
            text = f"{self._watchers} calls watch the health, that is the limit\nhint: Health.Check has none"
            await _refuse(context, Overloaded(text, _LATER_S))
        self._watchers += 1
        try:
            told, going_on = None, True
            while going_on:
                # A call that goes on would keep its connection, and with it the worker.
                going_on = self._ready()
                status = self._health(service)
                if status != told:
                    told = status
                    yield message("HealthCheckResponse")(status=status).SerializeToString()
                if going_on:
                    await asyncio.sleep(_LOOK_S)
        finally:
            self._watchers -= 1

    async def _ModelInfer(self, request: Any, response: Any, context: Any) -> None:
        # A server that is about to end isn't ready, and yet takes what still comes.
        model = self._find(request.model_name, request.model_version)
        _check(REQUEST_PARAMETERS, request.parameters, "the parameter ")
        for tensor in request.inputs:
            _check(INPUT_PARAMETERS, tensor.parameters, f"input {tensor.name!r:.80}: ")
        for output in request.outputs:
            _check(OUTPUT_PARAMETERS, output.parameters, f"output {output.name!r:.80}: ")
        names = [output.name for output in request.outputs] or None
        answer, outputs = await infer(
            model,
            read_inputs(request, self._limits.elements),
            names,
            deadline=_deadline(request, context, model, self._slo),
            priority=check_priority(_integer(request, "priority") or 0),
            most=self._limits.texts,
        )
        self._see(model.name, answer)
        response.model_name, response.model_version = model.name, model.version
        response.id = request.id
        write_outputs(response, outputs, raw=bool(request.raw_input_contents))

    def _find(self, name: str, version: str) -> ServedModel:
        return self._repository.get(name, version or None)


def _authorization(context: Any) -> bytes:
    """A call's, or nothing; of several the last one."""
    value = dict(context.invocation_metadata()).get("authorization", "")
    return value.encode() if isinstance(value, str) else b""


def _deadline(request: Any, context: Any, model: ServedModel, slo: float | None) -> float | None:
    """The earlier one of the call's own and of the parameter ``timeout``, in microseconds; with
    neither, after ``slo`` seconds."""
    limits = [context.time_remaining()]
    timeout = _integer(request, "timeout")
    if timeout is not None:
        if timeout <= 0:
            raise BadRequest(
                f"the parameter timeout is {timeout}, not a number of microseconds above 0"
            )
        limits.append(timeout / 1e6)
    seconds = [limit for limit in limits if limit is not None] or [slo] * (slo is not None)
    return model.clock() + min(seconds) if seconds else None


def _check(known: Fields, parameters: Any, where: str) -> None:
    """Raises Unprocessable where a parameter, or its value, isn't among those that are known."""
    if parameters:
        known.check({name: _value(item) for name, item in parameters.items()}, where)


def _value(parameter: Any) -> Any:
    kind = parameter.WhichOneof("parameter_choice")
    return None if kind is None else getattr(parameter, kind)


def _integer(request: Any, name: str) -> int | None:
    if name not in request.parameters:
        return None
    parameter = request.parameters[name]
    kind = parameter.WhichOneof("parameter_choice")
    if kind not in ("int64_param", "uint64_param"):
        raise BadRequest(f"the parameter {name} isn't an integer")
    return int(getattr(parameter, kind))


async def _refuse(context: Any, error: ServerError) -> NoReturn:
    after = error.retry_after
    # What clients of gRPC that retry by themselves wait for.
    pushback = () if after is None else (("grpc-retry-pushback-ms", str(math.ceil(1e3 * after))),)
    code = _CODES.get(error.status, grpc.StatusCode.INTERNAL)
    await context.abort(code, error.message[:_LONGEST], pushback)
    raise AssertionError("abort raises")


async def start(
    service: InferenceService,
    address: str,
    *,
    max_bytes: int = 32 << 20,
    max_calls: int = 1024,
    max_age_s: float | None = None,
) -> tuple[grpc.aio.Server, int]:
    """Starts a server on the running event loop; end it with ``await service.stop(server, grace)``.

    Args:
        service: the service that answers.
        address: ``HOST:PORT`` or ``unix:PATH``; several processes may have the same port.
        max_bytes: the longest message that is taken.
        max_calls: the largest number of calls at a time; further ones are refused with
            RESOURCE_EXHAUSTED.
        max_age_s: seconds, a tenth more or less, after which a client is asked to take another connection;
            calls of this one end as they would have. None: never.

    Returns:
        The server and its port.

    Raises:
        OSError: nothing can listen there.
    """
    age = [] if max_age_s is None else [("grpc.max_connection_age_ms", round(1e3 * max_age_s))]
    server = grpc.aio.server(
        options=[
            *age,
            ("grpc.max_receive_message_length", max_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", 16 << 10),
            ("grpc.absolute_max_metadata_size", 16 << 10),
            ("grpc.max_concurrent_streams", max_calls),
            ("grpc.max_connection_idle_ms", 300_000),
            ("grpc.so_reuseport", 1),
        ],
        maximum_concurrent_rpcs=max_calls,
    )
    server.add_generic_rpc_handlers(service.handlers())
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"nothing can listen on {address}: {error}") from error
    await server.start()
    return server, port
