"""Long prompts that come while other texts go on: who runs when, what fails and who goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import NativeError, open_bundle
from edgecompile.server.generation import Generator
from edgecompile.server.http.app import App
from tests.server.http.asgi import Reply, call, run, serving
from tests.server.http.generations import body, words

LONG = [1 + (i * 7) % 50 for i in range(150)]
#: Of the long prompt: the bundle's programs take up to 32 tokens.
CHUNKS = [32, 32, 32, 32, 22]


def watch(app: App, monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None]) -> list[int]:
    """The lengths of all runs from now on; ``before`` is called with each, in the thread that runs it."""
    model, lengths = app.repository.get("speaking").model, list[int]()
    run_bound = model.run_bound

    def noted(bound: Any, bucket: int, sizes: dict[str, int]) -> None:
        lengths.append(sizes["length"])
        before(sizes["length"])
        run_bound(bound, bucket, sizes)

    monkeypatch.setattr(model, "run_bound", noted)
    return lengths


def ask(app: App, prompt: list[int], count: int) -> asyncio.Task[Reply]:
    asked = body(prompt=prompt, max_tokens=count, stop=["never"])
    return asyncio.create_task(call(app, "POST", "/v1/completions", asked))


async def until(done: Callable[[], object]) -> None:
    while not done():
        await asyncio.sleep(0)


def generator_of(app: App) -> Generator:
    generator = app.repository.get("speaking").generator
    assert generator is not None
    return generator


def answer(bundle: Path, prompt: list[int], count: int) -> str:
    with open_bundle(bundle) as model:
        ids = model.generate(prompt, max_new_tokens=count, do_sample=False)
    return words(ids[:-1] if ids[-1] == 7 else ids)


def test_a_text_goes_on_between_the_chunks_of_a_prompt(
    speaking_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = answer(speaking_bundle, [3, 1, 4], 40), answer(speaking_bundle, LONG, 4)

    async def work() -> None:
        async with serving(speaking_bundle, token_ids=True) as app:
            lengths = watch(app, monkeypatch, lambda length: None)
            short = ask(app, [3, 1, 4], 40)
            await until(lambda: len(lengths) >= 3)
            long = ask(app, LONG, 4)
            replies = await asyncio.gather(short, long)
            texts = [reply.json["choices"][0]["text"] for reply in replies]
            assert texts == list(wanted)
            places = [at for at, length in enumerate(lengths) if length > 3]
            assert [lengths[at] for at in places] == CHUNKS
            # A token of the short text, which goes on, before each further chunk.
            assert [lengths[at] for at in range(places[0], places[-1])] == [
                length for chunk in CHUNKS[:-1] for length in (chunk, 1)
            ]

    run(work())


@pytest.mark.parametrize("ends", ["by an error", "by its client"])
def test_a_prompt_that_ends_half_read_harms_no_other_text(
    speaking_bundle: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    wanted = answer(speaking_bundle, [3, 1, 4], 40), answer(speaking_bundle, LONG, 4)

    async def work() -> None:
        async with serving(speaking_bundle, token_ids=True) as app:
            loop, chunks = asyncio.get_running_loop(), list[int]()

            def interrupt(length: int) -> None:
                if length > 3:
                    chunks.append(length)
                    if len(chunks) == 2 and ends == "by an error":
                        raise NativeError("broken")
                    if len(chunks) == 2:
                        loop.call_soon_threadsafe(long.cancel)

            lengths = watch(app, monkeypatch, interrupt)
            short = ask(app, [3, 1, 4], 40)
            await until(lambda: len(lengths) >= 3)
            long = ask(app, LONG, 4)
            if ends == "by an error":
                reply = await long
                assert reply.status == 500 and "broken" in reply.error
            else:
                with pytest.raises(asyncio.CancelledError):
                    await long
            assert (await short).json["choices"][0]["text"] == wanted[0]
            assert chunks == CHUNKS[:2], "the rest isn't run for nobody"
            generator = generator_of(app)
            assert (
                not generator._inside
                and not len(generator.steps._turns)
                and not generator.steps._busy
            )
            reply = await ask(app, LONG, 4)
            assert reply.json["choices"][0]["text"] == wanted[1]

    run(work())


def test_what_was_read_for_a_client_that_left_is_kept(
    speaking_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with serving(speaking_bundle, token_ids=True) as app:
            loop = asyncio.get_running_loop()

            def leave(length: int) -> None:
                if len(lengths) == 2:
                    loop.call_soon_threadsafe(first.cancel)

            lengths = watch(app, monkeypatch, leave)
            first = ask(app, LONG, 4)
            with pytest.raises(asyncio.CancelledError):
                await first
            await until(lambda: not generator_of(app).steps._busy)
            reply = await ask(app, LONG, 1)
            assert reply.status == 200 and lengths == CHUNKS

    run(work())
