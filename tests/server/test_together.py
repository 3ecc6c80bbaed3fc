"""A server whose texts get their tokens together: what each says, what fails and who goes away."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import NativeError, open_bundle
from edgecompile.runtime.base.errors import ConstraintError
from edgecompile.runtime.generation.stream import TokenStream
from edgecompile.runtime.generation.together import Together
from edgecompile.server.generation import Generator
from edgecompile.server.generation_steps import Steps
from edgecompile.server.http.app import App
from edgecompile.server.schedule.pace import Pace
from tests.generative import replace_files
from tests.server.conftest import speak
from tests.server.http.asgi import Reply, call, run, serving
from tests.server.http.generations import body, words

NEW = 24
PROMPTS = [
    [1 + (i * step) % 50 for i in range(length)] for step, length in enumerate((3, 40, 9, 1), 5)
]


class Always(Pace):
    """Runs as many together as wait."""

    def choose(self, waiting: int, threads: int) -> int:
        return min(waiting, self.most)


@pytest.fixture(scope="module")
def bundle(together_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle with a tokenizer: token n is the word "wn"."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("together") / "speaking.ecb"
    shutil.copytree(together_bundle, folder, copy_function=os.link)
    document = json.loads((folder / "manifest.json").read_bytes())
    known = {f"w{index}": index for index in range(document["outputs"][0]["shape"][1])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="w1"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    document["name"] = "speaking"
    document["text"] = {
        "tokenizer": "tokenizer.json",
        "max_length": 24,
        "pad_id": 0,
        "inputs": {"input_ids": "ids"},
    }
    replace_files(folder, document, {"tokenizer.json": tokenizer.to_str().encode()})
    return folder


def say_alone(bundle: Path) -> list[str]:
    with open_bundle(bundle, warmup=False) as model:
        eos = model.manifest.generation.eos  # type: ignore[union-attr]
        made = [model.generate(p, max_new_tokens=NEW, do_sample=False) for p in PROMPTS]
    return [words(ids[:-1] if ids[-1] in eos else ids) for ids in made]


@pytest.fixture(scope="module")
def wanted(bundle: Path) -> list[str]:
    return say_alone(bundle)


def generator_of(app: App) -> Generator:
    generator = app.repository.get("speaking").generator
    assert generator is not None
    generator.steps.pace = Always(4)
    return generator


def ask(app: App, prompt: list[int]) -> asyncio.Task[Reply]:
    asked = body(prompt=prompt, max_tokens=NEW)
    return asyncio.create_task(call(app, "POST", "/v1/completions", asked))


def watch(monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None]) -> list[int]:
    """The numbers of texts of all runs of several; ``before`` is called with how many there were, in the thread."""
    sizes, run_texts = list[int](), Together.run

    def noted(self: Together, streams: Any) -> None:
        sizes.append(len(streams))
        before(len(sizes))
        run_texts(self, streams)

    monkeypatch.setattr(Together, "run", noted)
    return sizes


def test_texts_side_by_side_say_what_each_says_alone(
    bundle: Path, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        sizes = watch(monkeypatch, lambda count: None)
        async with serving(bundle, token_ids=True) as app:
            generator = generator_of(app)
            replies = await asyncio.gather(*(ask(app, prompt) for prompt in PROMPTS))
            assert [reply.json["choices"][0]["text"] for reply in replies] == wanted
            assert max(sizes) == 4, "all of them at once, as long as all go on"
            text = (await call(app, "GET", "/metrics")).body.decode()
            for texts in (2, 3, 4):
                name = f'edgecompile_token_runs_total{{model="speaking",texts="{texts}"}}'
                assert f"{name} {sizes.count(texts)}" in text
            assert not generator._inside and not len(generator.steps._turns)

    run(work())


def test_a_run_that_fails_harms_nobody(
    bundle: Path, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its texts are run alone; whose run fails there too has the error, and no other one."""

    def fail(count: int) -> None:
        if count == 3:
            raise NativeError("broken")

    async def work() -> None:
        sizes = watch(monkeypatch, fail)
        async with serving(bundle, token_ids=True) as app:
            generator_of(app)
            replies = await asyncio.gather(*(ask(app, prompt) for prompt in PROMPTS))
            assert [reply.json["choices"][0]["text"] for reply in replies] == wanted
            assert len(sizes) > 3

    run(work())


def test_a_client_that_leaves_ends_its_text_alone(
    bundle: Path, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[Reply]] = []

        def leave(count: int) -> None:
            if count == 4:
                loop.call_soon_threadsafe(tasks[1].cancel)

        sizes = watch(monkeypatch, leave)
        async with serving(bundle, token_ids=True) as app:
            generator = generator_of(app)
            tasks += [ask(app, prompt) for prompt in PROMPTS]
            replies = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(replies[1], asyncio.CancelledError)
            texts = [r.json["choices"][0]["text"] for r in replies if isinstance(r, Reply)]
            assert texts == [wanted[0], *wanted[2:]]
            assert 4 not in sizes[5:] and not generator._inside
            assert (await ask(app, PROMPTS[1])).json["choices"][0]["text"] == wanted[1]

    run(work())


def test_one_text_s_error_is_its_own(
    bundle: Path, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits that are no numbers are seen where its token is chosen."""

    async def work() -> None:
        async with serving(bundle, token_ids=True) as app:
            generator_of(app)
            run_texts, broken = Together.run, list[int]()

            def spoil(self: Together, streams: Any) -> None:
                run_texts(self, streams)
                for stream in streams:
                    if stream.prompt == PROMPTS[2] and len(stream.tokens) >= 3:
                        stream.logits[:] = float("nan")
                        broken.append(len(streams))

            monkeypatch.setattr(Together, "run", spoil)
            replies = await asyncio.gather(*(ask(app, prompt) for prompt in PROMPTS))
            assert len(broken) == 1 and replies[2].status == 500
            texts = [r.json["choices"][0]["text"] for r in (*replies[:2], replies[3])]
            assert texts == [*wanted[:2], wanted[3]]

    run(work())


def test_texts_with_states_say_what_each_says_alone(
    states_together: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With lookup as well: a text whose states went back runs alone first."""
    speaking = speak(states_together, tmp_path / "speaking.ecb", 97)
    alone = say_alone(speaking)

    async def work() -> None:
        sizes = watch(monkeypatch, lambda count: None)
        for lookup in (False, True):
            async with serving(speaking, token_ids=True, lookup=lookup) as app:
                generator_of(app)
                replies = await asyncio.gather(*(ask(app, prompt) for prompt in PROMPTS))
                assert [reply.json["choices"][0]["text"] for reply in replies] == alone
        assert max(sizes) == 4

    run(work())


def test_a_run_that_loses_states_is_the_server_s_fault_and_the_last_one(
    states_together: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its texts end with its error, another one goes on, and the same prompts are answered afterwards."""
    speaking = speak(states_together, tmp_path / "speaking.ecb", 97)
    alone = say_alone(speaking)

    async def work() -> None:
        async with serving(speaking, token_ids=True) as app:
            model: Any = generator_of(app)._model
            run_bound = model.run_bound

            def fail(*given: Any) -> None:
                model.run_bound = run_bound
                raise NativeError("broken")

            def break_run(count: int) -> None:
                if count == 3:
                    model.run_bound = fail

            sizes = watch(monkeypatch, break_run)
            replies = await asyncio.gather(*(ask(app, prompt) for prompt in PROMPTS))
            assert [reply.status for reply in replies].count(500) == sizes[2]
            for reply, text in zip(replies, alone, strict=True):
                if reply.status == 500:
                    assert b"broken" in reply.body
                else:
                    assert reply.json["choices"][0]["text"] == text
            replies = await asyncio.gather(*(ask(app, prompt) for prompt in PROMPTS))
            assert [reply.json["choices"][0]["text"] for reply in replies] == alone
            assert len(sizes) == 3

    run(work())


def test_nothing_runs_together_before_it_is_known_to_be_faster(bundle: Path) -> None:
    async def work() -> None:
        async with serving(bundle, token_ids=True) as app:
            generator = app.repository.get("speaking").generator
            assert generator is not None
            generator.steps.pace = pace = Pace(4)
            pace.measure = lambda threads, seconds_of: None  # type: ignore[method-assign]
            await asyncio.gather(*(ask(app, prompt) for prompt in PROMPTS))
            assert pace.runs[1] > 0 and not any(pace.runs[texts] for texts in (2, 3, 4))

    run(work())


def test_a_constraint_that_fails_ends_its_text_alone(
    bundle: Path, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A constraint says what it forces before its token is run, so that may fail there."""
    single, failed = TokenStream.single, list[TokenStream]()

    def fail(self: TokenStream) -> int | None:
        if self.prompt == PROMPTS[2] and len(self.tokens) >= 3 and not failed:
            failed.append(self)
            self.close()
            raise ConstraintError("broken")
        return single(self)

    async def work() -> None:
        monkeypatch.setattr(TokenStream, "single", fail)
        async with serving(bundle, token_ids=True) as app:
            generator_of(app)
            replies = await asyncio.gather(*(ask(app, prompt) for prompt in PROMPTS))
            texts = [r.json["choices"][0]["text"] for r in (*replies[:2], replies[3])]
            assert len(failed) == 1 and texts == [*wanted[:2], wanted[3]]
            assert replies[2].status == 400 and b"broken" in replies[2].body

    run(work())


def test_a_program_that_cannot_be_tried_is_not_used(
    bundle: Path, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[int]()

    def fail(self: Together, texts: int) -> None:
        tried.append(texts)
        raise NativeError("broken")

    async def work() -> None:
        monkeypatch.setattr(Together, "run_nothing", fail)
        sizes = watch(monkeypatch, lambda count: None)
        async with serving(bundle, token_ids=True) as app:
            replies = await asyncio.gather(*(ask(app, prompt) for prompt in PROMPTS))
            assert [reply.json["choices"][0]["text"] for reply in replies] == wanted
            assert tried == [2] and not sizes

    run(work())


def test_trial_runs_are_spread_over_the_steps(
    bundle: Path, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is watched as a run of its own, and all sizes are tried, whichever is chosen meanwhile."""
    steps, since = list[list[int]](), list[float | None]()
    run_steps, run_nothing = Steps._run_steps, Together.run_nothing

    async def work() -> None:
        async with serving(bundle, token_ids=True) as app:
            generator = app.repository.get("speaking").generator
            assert generator is not None

            def begin(self: Steps, *given: Any) -> Any:
                steps.append([])
                return run_steps(self, *given)

            def note(self: Together, texts: int) -> None:
                steps[-1].append(texts)
                since.append(generator.steps.running_since)
                run_nothing(self, texts)

            monkeypatch.setattr(Steps, "_run_steps", begin)
            monkeypatch.setattr(Together, "run_nothing", note)
            replies = await asyncio.gather(*(ask(app, prompt) for prompt in PROMPTS))
            assert [reply.json["choices"][0]["text"] for reply in replies] == wanted
            assert [tried for tried in steps if tried] == [[2, 2], [3, 3], [4, 4]]
            assert len(set(since)) == 6 and None not in since

    run(work())


def test_a_text_that_tries_tokens_faster_runs_alone(
    bundle: Path, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    joined, run_texts = list[list[int]](), Together.run

    def tries(self: TokenStream) -> tuple[float, float] | None:
        return (1e-9, 3.0) if self.prompt == PROMPTS[1] else None

    def noted(self: Together, streams: Any) -> None:
        joined.extend(stream.prompt for stream in streams)
        run_texts(self, streams)

    async def work() -> None:
        monkeypatch.setattr(TokenStream, "tries", tries)
        monkeypatch.setattr(Together, "run", noted)
        async with serving(bundle, token_ids=True) as app:
            generator = generator_of(app)
            for texts in range(1, 5):
                generator.steps.pace.saw(texts, generator.steps._cpus, 1.0)
            replies = await asyncio.gather(*(ask(app, prompt) for prompt in PROMPTS))
            assert [reply.json["choices"][0]["text"] for reply in replies] == wanted
            assert all(prompt in joined for prompt in (PROMPTS[0], *PROMPTS[2:]))
            assert PROMPTS[1] not in joined

    run(work())
