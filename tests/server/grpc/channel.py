"""A model behind an address of gRPC, and what asks it there and reads its answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest

from edgecompile.runtime import open_bundle
from edgecompile.server.grpc.messages import SERVICE, message
from edgecompile.server.grpc.service import InferenceService, start
from edgecompile.server.grpc.tensors import read_inputs
from edgecompile.server.serving import Repository, ServedModel

Call = Callable[..., Any]


@asynccontextmanager
async def serving(
    bundle: Path,
    kind: type[ServedModel] = ServedModel,
    sizes: dict[str, int] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[ServedModel, Call]]:
    """A model behind an address, and what calls a method there."""
    model = kind(open_bundle(bundle), "tiny")
    model.proven = True
    service = InferenceService(Repository([model]), version="1", **options)
    server, port = await start(service, "127.0.0.1:0", **(sizes or {}))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

        def call(method: str, request: Any = None, **more: Any) -> Any:
            data = request if isinstance(request, bytes) else (
                request or message(f"{method}Request")()
            ).SerializeToString()  # fmt: skip
            read = message(f"{method}Response").FromString
            return channel.unary_unary(f"/{SERVICE}/{method}", response_deserializer=read)(
                data, **more
            )

        yield model, call
    await server.stop(0)
    await model.close()


def ask(bundle: Path, talk: Callable[[ServedModel, Call], Any], **options: Any) -> None:
    async def run() -> None:
        async with serving(bundle, **options) as (model, call):
            await talk(model, call)

    asyncio.run(run())


def infer(*ids: int, raw: bool = True, **more: Any) -> Any:
    request = message("ModelInferRequest")(model_name="tiny", **more)
    for name, row in (("input_ids", ids), ("attention_mask", (1,) * len(ids))):
        tensor = request.inputs.add(name=name, datatype="INT64", shape=[1, len(ids)])
        if raw:
            request.raw_input_contents.append(np.array(row, np.int64).tobytes())
        else:
            tensor.contents.int64_contents.extend(row)
    return request


def outputs_of(response: Any) -> dict[str, Any]:
    request = message("ModelInferRequest")(raw_input_contents=response.raw_output_contents)
    for tensor in response.outputs:
        request.inputs.add().ParseFromString(tensor.SerializeToString())
    return read_inputs(request)


async def refusal(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, caught.value.details()
