"""The service on a loopback address: answers, codes, deadlines, cancelled calls, limits.

The client is grpcio with our own messages; tests/server/grpc/test_tritonclient.py has another's.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest

from edgecompile.runtime import Model, open_bundle
from edgecompile.server.answers import Answer
from edgecompile.server.body_budget import BodyBudget
from edgecompile.server.errors import Overloaded
from edgecompile.server.grpc import service as grpc_service
from edgecompile.server.grpc.messages import SERVICE, message
from edgecompile.server.grpc.service import InferenceService, start
from edgecompile.server.serving import Repository, ServedModel
from edgecompile.server.settings import Limits
from tests.server.grpc.channel import Call, ask, infer, outputs_of, refusal


def run_it(model: Model, *ids: int) -> dict[str, Any]:
    row = np.array([ids], np.int64)
    return model.run({"input_ids": row, "attention_mask": np.ones_like(row)})


@pytest.mark.parametrize("raw", [True, False])
def test_answers_are_those_of_run(tiny_bundle: Path, raw: bool) -> None:
    seen: list[tuple[str, Any]] = []

    async def talk(model: ServedModel, call: Call) -> None:
        rows = [range(5, 5 + n) for n in (3, 9, 20, 4)]
        answers = await asyncio.gather(
            *(call("ModelInfer", infer(*row, raw=raw, id=str(len(row)))) for row in rows)
        )
        for row, answer in zip(rows, answers, strict=True):
            assert (answer.model_name, answer.model_version) == ("tiny", model.version)
            assert answer.id == str(len(row)) and bool(answer.raw_output_contents) == raw
            found, wanted = outputs_of(answer), run_it(model.model, *row)
            assert found.keys() == wanted.keys()
            for name, array in wanted.items():
                np.testing.assert_allclose(found[name], array, atol=1e-5)
        assert [(name, answer.batch) for name, answer in seen] == [("tiny", 1)] * 4

    ask(tiny_bundle, talk, see=lambda *told: seen.append(told))


def infer_texts(texts: Sequence[bytes], raw: bool) -> Any:
    request = message("ModelInferRequest")(model_name="tiny")
    tensor = request.inputs.add(name="text", datatype="BYTES", shape=[len(texts)])
    if raw:
        data = b"".join(struct.pack("<I", len(text)) + text for text in texts)
        request.raw_input_contents.append(data)
    else:
        tensor.contents.bytes_contents.extend(texts)
    request.outputs.add(name="pooler_output")
    return request


@pytest.mark.parametrize("raw", [True, False])
def test_texts_are_encoded(tiny_bundle: Path, raw: bool) -> None:
    texts = ["the cat sat", "the", "a mat, a mat", "\U0001f408"]

    async def talk(model: ServedModel, call: Call) -> None:
        answer = await call("ModelInfer", infer_texts([text.encode() for text in texts], raw))
        assert bool(answer.raw_output_contents) == raw
        wanted = model.model.encode_texts(texts)["pooler_output"]
        np.testing.assert_allclose(outputs_of(answer)["pooler_output"], wanted, atol=1e-5)
        beside = infer(1, 2)
        beside.inputs[0].CopyFrom(infer_texts([b"a"], raw=False).inputs[0])
        del beside.raw_input_contents[:]
        beside.inputs[1].contents.int64_contents.extend([1, 1])
        every = infer_texts([b"the cat", b"the"], raw)
        del every.outputs[:]
        for request, words in (
            (beside, "texts are one input"),
            (infer_texts([b"\xff"], raw), "isn't UTF-8"),
            (infer_texts([], raw), "no text"),
            (every, "a size of its own for each text"),
        ):
            code, told = await refusal(call("ModelInfer", request))
            assert code == "INVALID_ARGUMENT" and words in told
        code, told = await refusal(call("ModelInfer", infer_texts([b"a"] * 5, raw)))
        assert code == "RESOURCE_EXHAUSTED" and told == "5 texts, the limit is 4"

    ask(tiny_bundle, talk, limits=Limits(texts=4))


def test_outputs_are_those_that_were_asked_for(tiny_bundle: Path) -> None:
    async def talk(model: ServedModel, call: Call) -> None:
        names = [item.name for item in model.model.manifest.outputs]
        request = infer(1, 2, 3)
        request.outputs.add(name=names[-1])
        assert [*outputs_of(await call("ModelInfer", request))] == names[-1:]
        request.outputs.add(name="x")
        code, words = await refusal(call("ModelInfer", request))
        assert code == "INVALID_ARGUMENT" and "no output 'x'" in words
        request.outputs[-1].parameters["classification"].int64_param = 1
        code, words = await refusal(call("ModelInfer", request))
        assert code == "INVALID_ARGUMENT" and "classification isn't supported" in words
        request = infer(1, 2, 3)
        request.inputs[0].parameters["binary_data_size"].int64_param = 24  # KServe's client's
        request.parameters["sequence_id"].uint64_param = 3
        assert (await call("ModelInfer", request)).outputs
        request.inputs[0].parameters["shared_memory_region"].string_param = "r"
        code, words = await refusal(call("ModelInfer", request))
        assert (
            code == "INVALID_ARGUMENT" and "input 'input_ids': shared_memory_region isn't" in words
        )
        request = infer(1, 2, 3)
        request.parameters["temperature"].double_param = 0.5
        code, words = await refusal(call("ModelInfer", request))
        assert code == "INVALID_ARGUMENT" and "the parameter temperature isn't supported" in words

    ask(tiny_bundle, talk)


def test_what_it_says_of_itself(tiny_bundle: Path) -> None:
    async def talk(model: ServedModel, call: Call) -> None:
        assert (await call("ServerLive")).live and (await call("ServerReady")).ready
        metadata = await call("ServerMetadata")
        assert (metadata.name, metadata.version) == ("edgecompile", "1")
        asked = message("ModelReadyRequest")
        assert (await call("ModelReady", asked(name="tiny"))).ready
        assert not (await call("ModelReady", asked(name="other"))).ready
        assert not (await call("ModelReady", asked(name="tiny", version="9"))).ready
        told = await call("ModelMetadata", message("ModelMetadataRequest")(name="tiny"))
        assert list(told.versions) == [model.version]
        assert [(i.name, i.datatype, list(i.shape)) for i in told.inputs] == [
            ("input_ids", "INT64", [-1, -1]), ("attention_mask", "INT64", [-1, -1])
        ]  # fmt: skip
        asked = message("ModelConfigRequest")
        config = (await call("ModelConfig", asked(name="tiny"))).config
        assert config.max_batch_size == 0 and list(config.input[0].dims) == [-1, -1]
        await call("ModelInfer", infer(1, 2))
        asked = message("ModelStatisticsRequest")
        for request in (asked(name="tiny"), asked()):
            (found,) = (await call("ModelStatistics", request)).model_stats
            assert found.inference_count == found.inference_stats.success.count == 1
        model.proven = False
        assert not (await call("ServerReady")).ready
        assert not (await call("ModelReady", asked(name="tiny"))).ready
        assert (await refusal(call("ModelInfer", infer(1))))[0] == "UNAVAILABLE"

    ask(tiny_bundle, talk)


def test_what_is_wrong_is_told_and_the_next_request_runs(tiny_bundle: Path) -> None:
    async def talk(model: ServedModel, call: Call) -> None:
        unknown, version = infer(1), infer(1, model_version="9")
        unknown.model_name = "other"
        short, timeout, words, priority = infer(1), infer(1), infer(1), infer(1)
        short.raw_input_contents[0] = b"1234"
        timeout.parameters["timeout"].int64_param = 0
        words.parameters["timeout"].string_param = "soon"
        priority.parameters["priority"].int64_param = -1
        vocabulary = infer(1, 10**9)
        for request, code, part in (
            (unknown, "NOT_FOUND", "no model 'other'; this server has tiny"),
            (version, "NOT_FOUND", "no version '9'"),
            (short, "INVALID_ARGUMENT", "has 4 bytes"),
            (timeout, "INVALID_ARGUMENT", "timeout is 0"),
            (words, "INVALID_ARGUMENT", "timeout isn't an integer"),
            (priority, "INVALID_ARGUMENT", "priority must be an integer from 0 on"),
            (vocabulary, "INVALID_ARGUMENT", "1000000000"),
            (infer(), "INVALID_ARGUMENT", "length 0"),
            (infer(*range(33)), "INVALID_ARGUMENT", "33"),
            (b"\xff\xff\xff", "INVALID_ARGUMENT", "no ModelInferRequest"),
            (b"\x0a\x02\xff\xfe", "INVALID_ARGUMENT", "no ModelInferRequest"),
        ):
            assert (await refusal(call("ModelInfer", request)))[0] == code, part
            assert part in (await refusal(call("ModelInfer", request)))[1]
        assert (await call("ModelInfer", infer(1, 2, 3))).outputs

    ask(tiny_bundle, talk)


def test_an_unknown_method_is_refused(tiny_bundle: Path) -> None:
    async def run() -> None:
        server, port = await start(InferenceService(Repository()), "127.0.0.1:0")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(f"/{SERVICE}/ModelStreamInfer")(b"")
            assert (await refusal(call))[0] == "UNIMPLEMENTED"
        await server.stop(0)

    asyncio.run(run())


def test_a_message_over_the_limit_is_refused(tiny_bundle: Path) -> None:
    async def talk(model: ServedModel, call: Call) -> None:
        assert (await refusal(call("ModelInfer", bytes(5000))))[0] == "RESOURCE_EXHAUSTED"
        assert (await call("ModelInfer", infer(1, 2))).outputs

    ask(tiny_bundle, talk, sizes={"max_bytes": 4096})


def test_a_message_without_room_beside_others_is_refused(tiny_bundle: Path) -> None:
    room = BodyBudget(80_000)

    async def talk(model: ServedModel, call: Call) -> None:
        large = message("ModelInferRequest")(id="x" * 70_000)
        assert (await refusal(call("ModelInfer", large)))[0] == "NOT_FOUND" and room.held == 0
        room.take(20_000)
        code, text = await refusal(call("ModelInfer", large))
        assert code == "RESOURCE_EXHAUSTED" and "no room" in text
        assert (await call("ModelInfer", infer(1, 2))).outputs and room.held == 20_000

    ask(tiny_bundle, talk, room=room)


def test_keys_are_asked_for(tiny_bundle: Path) -> None:
    async def talk(model: ServedModel, call: Call) -> None:
        for given in (None, "Bearer x", "Bearer ", "one", "Basic one", " one"):
            headers = () if given is None else (("authorization", given),)
            code, _ = await refusal(call("ServerLive", metadata=headers))
            assert code == "UNAUTHENTICATED"
        for given in ("Bearer one", "Bearer two", "bearer  two "):
            assert (await call("ServerLive", metadata=(("authorization", given),))).live

    ask(tiny_bundle, talk, keys=(b"one", b"two"))


class Stuck(ServedModel):
    """A model that never answers, and says what became of the requests."""

    deadlines: list[float | None]
    cancelled: asyncio.Event

    async def infer(self, inputs: Any, *, deadline: float | None = None, **more: Any) -> Answer:
        self.deadlines = [*getattr(self, "deadlines", []), deadline]
        self.cancelled = asyncio.Event()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        raise AssertionError


def test_a_cancelled_call_takes_its_request_back(tiny_bundle: Path) -> None:
    async def talk(model: Any, call: Call) -> None:
        waiting = call("ModelInfer", infer(1))
        while not getattr(model, "deadlines", None):
            await asyncio.sleep(0.01)
        waiting.cancel()
        await model.cancelled.wait()

    ask(tiny_bundle, talk, kind=Stuck)


def test_the_earlier_deadline_counts(tiny_bundle: Path) -> None:
    async def talk(model: Any, call: Call) -> None:
        began = model.clock()
        request = infer(1)
        request.parameters["timeout"].int64_param = 10_000_000
        waiting = [
            call("ModelInfer", request, timeout=1000),
            call("ModelInfer", request, timeout=3),
        ]
        waiting.append(call("ModelInfer", infer(1)))
        while len(getattr(model, "deadlines", ())) < 3:
            await asyncio.sleep(0.01)
        known = sorted(d - began for d in model.deadlines if d is not None)
        assert len(known) == 2 and known[0] <= known[1] - 5
        assert (await refusal(waiting[1]))[0] == "DEADLINE_EXCEEDED"
        for call_ in waiting:
            call_.cancel()

    ask(tiny_bundle, talk, kind=Stuck)


class Full(ServedModel):
    """A model whose queue is always full."""

    async def infer(self, inputs: Any, **more: Any) -> Answer:
        raise Overloaded("would end in 230 ms, deadline 100 ms" + "!" * 10_000, 0.13)


def test_an_overload_says_when_to_come_again(tiny_bundle: Path) -> None:
    async def talk(model: ServedModel, call: Call) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call("ModelInfer", infer(1))
        assert caught.value.code().name == "RESOURCE_EXHAUSTED"
        assert caught.value.details().startswith("would end in 230 ms")
        assert dict(caught.value.trailing_metadata())["grpc-retry-pushback-ms"] == "130"

    ask(tiny_bundle, talk, kind=Full)


class Broken(ServedModel):
    """A model with a bug."""

    async def infer(self, inputs: Any, **more: Any) -> Answer:
        raise ZeroDivisionError("/secret/path")


def test_a_bug_says_nothing_of_the_server(tiny_bundle: Path) -> None:
    async def talk(model: ServedModel, call: Call) -> None:
        code, words = await refusal(call("ModelInfer", infer(1)))
        assert code == "INTERNAL" and "secret" not in words

    ask(tiny_bundle, talk, kind=Broken)


class Counting(ServedModel):
    """A model that counts the requests that have come in."""

    begun = 0

    async def infer(self, inputs: Any, **more: Any) -> Answer:
        self.begun += 1
        return await super().infer(inputs, **more)


def test_a_server_that_ends_answers_what_has_begun(tiny_bundle: Path) -> None:
    async def run() -> None:
        model = Counting(open_bundle(tiny_bundle), "tiny")
        model.proven = True
        server, port = await start(InferenceService(Repository([model])), "127.0.0.1:0")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            method = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            calls = [method(infer(1, 2, n).SerializeToString()) for n in range(20)]
            answers = asyncio.gather(*calls)
            while model.begun < 20:
                await asyncio.sleep(0)
            await server.stop(600)
            assert len(await answers) == 20
        await model.close()

    asyncio.run(run())


def test_nobody_is_answered_before_a_server_has_said_that_it_ends() -> None:
    """Whoever has an answer asks again, on a connection whose calls grpcio cancels."""
    steps: list[str] = []

    async def run() -> None:
        service = InferenceService(Repository())
        live = service._method("ServerLive")

        async def ask() -> None:
            await live(b"", None)
            steps.append("answer")

        class Server:
            async def stop(self, grace: float) -> None:
                steps.append("end")
                await asyncio.sleep(0.1)
                steps.append("ended")

        server: Any = Server()
        ending = asyncio.ensure_future(service.stop(server, 1.0))
        await asyncio.sleep(0)
        await asyncio.gather(ask(), ending)
        await ask()

    asyncio.run(run())
    assert steps == ["end", "answer", "ended", "answer"]


def test_a_server_that_is_about_to_end_takes_what_still_comes(tiny_bundle: Path) -> None:
    async def talk(model: ServedModel, call: Call) -> None:
        assert not (await call("ServerReady")).ready
        assert (await call("ModelInfer", infer(1, 2, 3))).outputs

    ask(tiny_bundle, talk, ready=lambda: False)


def test_an_address_that_is_taken_is_told(tiny_bundle: Path) -> None:
    async def run() -> None:
        service = InferenceService(Repository())
        with pytest.raises(OSError, match=r"nothing can listen on 203\.0\.113\.1:1"):
            await start(service, "203.0.113.1:1")

    asyncio.run(run())


def test_calls_without_a_deadline_have_that_of_the_server(tiny_bundle: Path) -> None:
    async def talk(model: ServedModel, call: Call) -> None:
        code, _ = await refusal(call("ModelInfer", infer(1, 2, 3)))
        assert code == "DEADLINE_EXCEEDED"
        assert (await call("ModelInfer", infer(1, 2, 3), timeout=1000)).outputs
        far = infer(1, 2, 3)
        far.parameters["timeout"].int64_param = 2**63 - 1
        assert (await call("ModelInfer", far)).outputs

    ask(tiny_bundle, talk, slo=1e-9)


def test_the_index_lists_the_models(tiny_bundle: Path) -> None:
    async def talk(model: ServedModel, call: Call) -> None:
        (found,) = (await call("RepositoryIndex")).models
        assert (found.name, found.version) == ("tiny", model.version)
        assert (found.state, found.reason) == ("READY", "")
        model.proven = False
        (found,) = (await call("RepositoryIndex")).models
        assert (found.state, found.reason) == ("UNAVAILABLE", "it isn't ready")
        ready = message("RepositoryIndexRequest")(ready=True)
        assert not (await call("RepositoryIndex", ready)).models

    ask(tiny_bundle, talk)


#: A HealthCheckResponse as it is sent; health.proto has SERVING 1, NOT_SERVING 2, SERVICE_UNKNOWN 3.
SERVING, NOT_SERVING, SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"


def of_service(name: str) -> bytes:
    """A HealthCheckRequest."""
    return b"\x0a%c%b" % (len(name), name.encode()) if name else b""


def test_watchers_of_health_leave_room_for_calls(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need no key, and stay for as long as they like: so many at once, then others may."""
    monkeypatch.setattr(grpc_service, "_MOST_WATCHERS", 2)

    async def talk() -> None:
        model = ServedModel(open_bundle(tiny_bundle))
        model.proven = True
        service = InferenceService(Repository([model]), keys=(b"12345678",))
        server, port = await start(service, "127.0.0.1:0")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
            watching = [watch(b""), watch(of_service("other"))]
            for each in watching:
                assert await each.read() in (SERVING, SERVICE_UNKNOWN)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await watch(b"").read()
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "2 calls watch the health, that is the limit" in refused.value.details()
            assert await channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == SERVING
            watching[1].cancel()
            while service._watchers == 2:
                await asyncio.sleep(0)
            assert await watch(b"").read() == SERVING
        await server.stop(0)
        while service._watchers:
            await asyncio.sleep(0)
        await model.close()

    asyncio.run(talk())


def test_health_is_as_grpc_has_it(tiny_bundle: Path) -> None:
    """No key is asked for, as probes bring none; what comes of it is told in bytes."""
    state = {"live": True, "ready": True}

    async def talk() -> None:
        model = ServedModel(open_bundle(tiny_bundle))
        service = InferenceService(
            Repository([model]),
            live=lambda: state["live"],
            ready=lambda: state["ready"],
            keys=(b"12345678",),
        )
        server, port = await start(service, "127.0.0.1:0")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
            seen, unknown = watch(of_service("")), watch(of_service("other"))
            assert await seen.read() == NOT_SERVING
            assert await unknown.read() == SERVICE_UNKNOWN
            model.proven = True
            assert await seen.read() == SERVING
            for name in ("", SERVICE, "grpc.health.v1.Health"):
                assert await check(of_service(name)) == SERVING
            state["live"] = False
            assert await check(b"") == await seen.read() == NOT_SERVING
            for data, code in (
                (of_service("other"), grpc.StatusCode.NOT_FOUND),
                (b"\x0a\x05x", grpc.StatusCode.INVALID_ARGUMENT),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await check(data)
                assert refused.value.code() == code
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await watch(b"\x0a\x05x").read()
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            state["live"] = True
            assert await seen.read() == SERVING
            # A server that ends doesn't wait for those who watch it.
            state["ready"] = False
            assert await seen.read() == NOT_SERVING
            assert await seen.read() is grpc.aio.EOF and await unknown.read() is grpc.aio.EOF
        await server.stop(0)
        await model.close()

    asyncio.run(talk())
