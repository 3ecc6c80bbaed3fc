"""The models of a worker, on a real bundle: answers, refusals, cancelled requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import open_bundle
from edgecompile.server.errors import (
    BadRequest,
    DeadlineExceeded,
    Draining,
    NotReady,
    UnknownModel,
    Unprocessable,
)
from edgecompile.server.serving import Repository, ServedModel


@asynccontextmanager
async def serving(bundle: Path) -> AsyncIterator[ServedModel]:
    model = ServedModel(open_bundle(bundle))
    model.proven = True
    yield model
    await model.close()


def inputs(*ids: int) -> dict[str, Any]:
    array = np.array([ids], np.int64)
    return {"input_ids": array, "attention_mask": np.ones_like(array)}


def test_answers_are_those_of_run(tiny_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle) as model:
            requests = [inputs(*range(5, 5 + n)) for n in (3, 9, 20, 4)]
            answers = await asyncio.gather(*map(model.infer, requests))
            for request, answer in zip(requests, answers, strict=True):
                wanted = model.model.run(request)
                assert answer.outputs.keys() == wanted.keys()
                for name, array in wanted.items():
                    np.testing.assert_allclose(answer.outputs[name], array, atol=1e-5)
                assert answer.batch >= 1 and answer.queue_s >= 0 and answer.run_s > 0

    asyncio.run(ask())


def test_texts_are_those_of_encode_texts(tiny_bundle: Path) -> None:
    texts = ["the cat sat", "the", "the cat sat on the mat " * 40]

    async def ask() -> None:
        async with serving(tiny_bundle) as model:
            found = await model.encode(texts)
            wanted = model.model.encode_texts(texts)
            assert found.texts == list(wanted.texts)
            for name, arrays in wanted.items():
                for row, array in zip(found.outputs, arrays, strict=True):
                    np.testing.assert_allclose(row[name], array, atol=1e-5)
            with pytest.raises(BadRequest, match="1 of 3 texts have more than"):
                await model.encode(texts, truncate=False)
            assert (await model.encode([])).outputs == []

    asyncio.run(ask())


def test_what_is_wrong_is_told_and_the_next_request_runs(tiny_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle) as model:
            with pytest.raises(BadRequest, match="input_ids"):
                await model.infer({"attention_mask": np.ones((1, 4), np.int64)})
            with pytest.raises(BadRequest, match="no output 'x'"):
                await model.infer(inputs(1, 2, 3), outputs=["x"])
            with pytest.raises(DeadlineExceeded):
                await model.infer(inputs(1, 2, 3), deadline=model.clock() - 1)
            name = model.model.manifest.outputs[0].name
            assert (await model.infer(inputs(1, 2, 3), outputs=[name])).outputs.keys() == {name}
            model.proven = False
            with pytest.raises(NotReady):
                await model.infer(inputs(1, 2, 3))

    asyncio.run(ask())


def test_a_cancelled_request_does_not_run(tiny_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle) as model:
            before = model.model.stats["runs"]
            tasks = [asyncio.create_task(model.infer(inputs(1, 2, 3, 4))) for _ in range(40)]
            await asyncio.sleep(0)
            for task in tasks[20:]:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(item, asyncio.CancelledError) for item in done[20:])
            assert not any(isinstance(item, BaseException) for item in done[:20])
            assert model.model.stats["runs"] - before <= 20

    asyncio.run(ask())


def test_closing_answers_what_is_in_the_queue(tiny_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle) as model:
            tasks = [asyncio.create_task(model.infer(inputs(1, 2, 3, 4))) for _ in range(8)]
            await asyncio.sleep(0)
            await model.scheduler.close()
            assert all(answer.outputs for answer in await asyncio.gather(*tasks))
            with pytest.raises(Draining):
                await model.infer(inputs(1, 2, 3))

    asyncio.run(ask())


def test_models_are_found_by_name_and_version(tiny_bundle: Path, decoder_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle) as model, serving(decoder_bundle) as other:
            repository = Repository([model, other])
            assert repository.get(model.name) is model
            assert repository.get(other.name, other.version) is other
            assert len(repository) == 2 and repository.versions(model.name) == [model.version]
            with pytest.raises(UnknownModel, match="this server has"):
                repository.get("x")
            with pytest.raises(UnknownModel, match="no version '9'"):
                repository.get(model.name, "9")
            if other.model.manifest.text is None:
                with pytest.raises(Unprocessable):
                    await other.encode(["a"])

    asyncio.run(ask())
