"""Completions, plain and as events, of a real generative bundle with a tokenizer put into it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import open_bundle
from edgecompile.server.http.app import App
from edgecompile.server.schedule.streams import Cores
from edgecompile.server.serving import Repository, ServedModel
from edgecompile.server.settings import Limits, Settings
from tests.server.http.asgi import call, run, serving
from tests.server.http.generations import body, events, expected, words


def test_completions_are_those_of_generate(speaking_bundle: Path) -> None:
    ids = expected(speaking_bundle, 8)
    ended = ids[-1] == 7
    wanted = words(ids[:-1] if ended else ids)

    async def ask() -> None:
        async with serving(speaking_bundle, token_ids=True) as app:
            path = "/v1/completions"
            reply = await call(app, "POST", path, body())
            (choice,) = reply.json["choices"]
            assert choice["text"] == wanted
            assert choice["finish_reason"] == ("stop" if ended else "length")
            assert reply.json["usage"] == {
                "prompt_tokens": 5,
                "completion_tokens": len(ids),
                "total_tokens": 5 + len(ids),
            }
            reply = await call(app, "POST", path, body(prompt=[3, 1, 4, 1, 5]))
            assert reply.json["choices"][0]["text"] == wanted
            asked = body(stream=True, stream_options={"include_usage": True})
            reply = await call(app, "POST", path, asked)
            assert reply.headers["content-type"] == "text/event-stream"
            *pieces, last = events(reply)
            assert "".join(piece["choices"][0]["text"] for piece in pieces) == wanted
            reasons = [piece["choices"][0]["finish_reason"] for piece in pieces]
            assert reasons == [None] * (len(reasons) - 1) + [choice["finish_reason"]]
            assert last["choices"] == [] and last["usage"]["completion_tokens"] == len(ids)
            text = (await call(app, "GET", "/metrics")).body.decode()
            name = 'edgecompile_generated_tokens_total{model="speaking"}'
            assert f"{name} {3 * len(ids)}" in text

    run(ask())


def test_a_text_ends_before_a_stop(speaking_bundle: Path) -> None:
    ids = expected(speaking_bundle, 8)
    whole = words(ids)
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]

    async def ask() -> None:
        async with serving(speaking_bundle) as app:
            for stream in (False, True):
                asked = body(stop=["never", stop], stream=stream)
                reply = await call(app, "POST", "/v1/completions", asked)
                found = [reply.json] if not stream else events(reply)
                text = "".join(item["choices"][0]["text"] for item in found)
                assert text == whole.partition(stop)[0]
                assert found[-1]["choices"][0]["finish_reason"] == "stop"

    run(ask())


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"temperature": 50, "top_k": 1}, {"do_sample": False}),
        ({"temperature": 50, "top_k": 3, "seed": 5}, {"temperature": 50, "top_k": 3, "seed": 5}),
        ({"temperature": 50, "top_k": -1, "seed": 5}, {"temperature": 50, "top_k": 0, "seed": 5}),
        ({"repetition_penalty": 0.02}, {"do_sample": False, "repetition_penalty": 0.02}),
        ({"max_completion_tokens": 3}, {"do_sample": False, "max_new_tokens": 3}),
        ({"max_completion_tokens": None}, {"do_sample": False}),
    ],
    ids=["best", "top_k", "all", "penalty", "length", "old length"],
)
def test_tokens_are_chosen_as_generate_does(
    speaking_bundle: Path, change: dict[str, Any], options: dict[str, Any]
) -> None:
    with open_bundle(speaking_bundle) as model:
        ids = model.generate([3, 1, 4, 1, 5], **{"max_new_tokens": 8, **options})
    wanted = words(ids[:-1] if ids[-1] == 7 else ids)

    async def ask() -> None:
        async with serving(speaking_bundle) as app:
            reply = await call(app, "POST", "/v1/completions", body(**change))
            assert reply.json["choices"][0]["text"] == wanted
            greedy = words(expected(speaking_bundle, 8))
            plain = change.get("top_k") == 1 or change == {"max_completion_tokens": None}
            assert greedy.startswith(wanted) == (plain or "max_completion_tokens" in change)

    run(ask())


def test_texts_side_by_side_do_not_mix(speaking_bundle: Path) -> None:
    prompts = [[1 + i, 2 + i, 3 + i] for i in range(6)]
    with open_bundle(speaking_bundle) as model:
        wanted = [model.generate(p, max_new_tokens=10, do_sample=False, eos=()) for p in prompts]

    async def ask() -> None:
        async with serving(speaking_bundle, token_ids=True) as app:
            asked = [body(prompt=prompt, max_tokens=10) for prompt in prompts]
            calls = [call(app, "POST", "/v1/completions", item) for item in asked]
            for reply, ids in zip(await asyncio.gather(*calls), wanted, strict=True):
                text = reply.json["choices"][0]["text"]
                assert words(ids).startswith(text)

    run(ask())


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"prompt": ""}, 400, "no tokens"),
        ({"prompt": None}, 400, "prompt is missing"),
        ({"prompt": 5}, 400, "prompt must be"),
        ({"prompt": [99]}, 400, "99"),
        ({"prompt": ["a", "b"]}, 422, "one text a request"),
        ({"prompt": [1] * 500}, 400, "context"),
        ({"max_tokens": 0}, 400, "max_tokens is 0"),
        ({"max_tokens": 10_000}, 400, "context"),
        ({"temperature": -1}, 400, "temperature is -1"),
        ({"temperature": "hot"}, 400, 'temperature is "hot", must be a number'),
        ({"top_p": 0}, 400, "top_p is 0"),
        ({"stop": [""]}, 400, "stop must be"),
        ({"stop": ["x"] * 17}, 400, "stop must be"),
        ({"max_completion_tokens": 0}, 400, "max_completion_tokens is 0"),
        ({"top_k": -2}, 400, "top_k is -2"),
        ({"top_k": 1.5}, 400, "top_k is 1.5, must be an integer"),
        ({"top_k": True}, 400, "top_k is true"),
        ({"repetition_penalty": 0}, 400, "repetition_penalty is 0"),
        ({"repetition_penalty": "1"}, 400, 'repetition_penalty is "1", must be a number'),
        ({"seed": 1 << 63}, 400, "seed is 9223372036854775808"),
        ({"max_tokens": -2}, 400, "max_tokens is -2, must be an integer in 1..2147483647, or -1"),
        (
            {"max_tokens": 1 << 31},
            400,
            "max_tokens is 2147483648, must be an integer in 1..2147483647",
        ),
        ({"stream_options": []}, 400, "stream_options must be an object, not a list"),
        ({"stream_options": ""}, 400, "stream_options must be an object, not a string"),
        ({"stream_options": {"include_usage": "yes"}}, 400, "include_usage must be true or false"),
        ({"n": 2}, 422, "n isn't supported"),
        ({"min_p": 0.1}, 422, "min_p isn't supported"),
        ({"min_tokens": 3}, 422, "min_tokens isn't supported"),
        ({"ignore_eos": True}, 422, "ignore_eos isn't supported"),
        ({"stop_token_ids": [7]}, 422, "stop_token_ids isn't supported"),
        ({"suffix": "w1"}, 422, "suffix isn't supported"),
        ({"tool_choice": "required"}, 422, "tool_choice isn't supported"),
        ({"function_call": {"name": "f"}}, 422, "function_call isn't supported"),
        ({"modalities": ["text", "audio"]}, 422, "modalities isn't supported"),
        ({"audio": {"voice": "a", "format": "wav"}}, 422, "audio isn't supported"),
        ({"web_search_options": {}}, 422, "web_search_options isn't supported"),
        ({"reasoning_effort": "high"}, 422, "reasoning_effort isn't supported"),
        ({"verbosity": "low"}, 422, "verbosity isn't supported"),
        ({"top_logprobs": 2}, 422, "top_logprobs isn't supported"),
        ({"logprobs": 0}, 422, "logprobs isn't"),
        ({"logprobs": True}, 422, "logprobs isn't"),
        ({"frequency_penalty": 0.5}, 422, "frequency_penalty isn't"),
        ({"presence_penalty": -1}, 422, "presence_penalty isn't"),
        ({"logit_bias": {"5": -100}}, 422, "logit_bias isn't"),
        ({"response_format": {"type": "grammar"}}, 422, "response_format.type 'grammar' isn't"),
        ({"logprobs": 3}, 422, "logprobs"),
        ({"stream_options": {"strange": 1}}, 422, "stream_options.strange isn't"),
        ({"guided_json": {}}, 422, "doesn't write its tokens as bytes"),
        ({"guided_grammar": "root ::= 1"}, 422, "guided_grammar isn't"),
        ({"grammar": "root ::= 1"}, 422, "grammar isn't supported except as"),
        ({"repeat_penalty": 1.1}, 422, "repeat_penalty isn't supported except as 1"),
        ({"add_generation_prompt": False}, 422, "add_generation_prompt isn't"),
        ({"chat_template": "{{ 1 }}"}, 422, "chat_template isn't"),
        ({"add_special_tokens": False}, 422, "add_special_tokens isn't"),
        ({"messages": [{}]}, 422, "messages isn't"),
        ({"max_token": 3}, 422, "max_token isn't"),
        ({"stream": "yes"}, 400, "stream must be true or false"),
        ({"stream": 0}, 400, "stream must be true or false"),
        ({"stream": []}, 400, "stream must be true or false"),
        ({"model": "other"}, 404, "no model"),
    ],
)
def test_refusals(speaking_bundle: Path, change: dict[str, Any], status: int, message: str) -> None:
    async def ask() -> None:
        async with serving(speaking_bundle, token_ids=True) as app:
            for stream in (False, True):
                asked = {**body(stream=stream), **change}
                reply = await call(app, "POST", "/v1/completions", asked)
                assert (reply.status, message in reply.error) == (status, True), reply.body
            assert (await call(app, "POST", "/v1/completions", body())).status == 200

    run(ask())


def test_what_asks_for_nothing_special_is_taken(speaking_bundle: Path) -> None:
    plain = {
        "frequency_penalty": 0.0,
        "presence_penalty": 0,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "functions": None,
        "function_call": "none",
        "tools": [],
        "tool_choice": "auto",
        "modalities": ["text"],
        "suffix": "",
        "logprobs": False,
        "min_p": 0.0,
        "ignore_eos": False,
        "use_beam_search": False,
        "repeat_penalty": 1.0,
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "bad_words": [],
        "length_penalty": 1.0,
        "continue_final_message": False,
        "add_generation_prompt": True,
        "grammar": "",
        "stream_options": {"include_obfuscation": True},
        "unknown": None,
        # What says nothing of the text.
        "user": "me",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "flex",
        "parallel_tool_calls": False,
        "prediction": {"type": "content", "content": "w1"},
    }

    async def ask() -> None:
        async with serving(speaking_bundle) as app:
            asked = {**body(), **plain}
            assert (await call(app, "POST", "/v1/completions", asked)).status == 200

    run(ask())


def test_settings_of_other_servers_clients(speaking_bundle: Path) -> None:
    with open_bundle(speaking_bundle) as model:
        room = model.info["generation"]["max_context"] - 5

    async def ask() -> None:
        async with serving(speaking_bundle) as app:

            async def text(**changes: Any) -> tuple[str, dict[str, int]]:
                reply = await call(app, "POST", "/v1/completions", body(model=None, **changes))
                return reply.json["choices"][0]["text"], reply.json["usage"]

            # The only model needs no name. A count of -1 is all that there is room for.
            assert (await text(max_tokens=-1)) == await text(max_tokens=room)
            assert (await text(max_completion_tokens=-1)) == await text(max_tokens=room)
            warm = {"temperature": 30, "max_tokens": 12}
            assert await text(**warm, seed=-1) != await text(**warm, seed=-1)
            texts = [
                [(await text(**warm, seed=seed))[0] for _ in range(2)]
                for seed in (1, -2, 1 << 32, (1 << 32) + 1, (1 << 63) - 1, -(1 << 63))
            ]
            assert all(first == second for first, second in texts)
            assert len({first for first, _ in texts}) == len(texts)

    run(ask())


def test_ids_of_no_known_vocabulary_are_refused(speaking_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(speaking_bundle) as app:
            for prompt in ([3, 1, 4], [[3, 1, 4]]):
                reply = await call(app, "POST", "/v1/completions", body(prompt=prompt))
                assert reply.status == 422 and "--token-ids" in reply.error

    run(ask())


def test_a_client_that_goes_away_ends_its_text(speaking_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(speaking_bundle) as app:
            generator = app.repository.get("speaking").generator
            assert generator is not None
            asked = body(stream=True, max_tokens=150, temperature=1.0)
            task = asyncio.create_task(call(app, "POST", "/v1/completions", asked))
            while not generator._inside:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not generator._inside
            assert (await call(app, "POST", "/v1/completions", body())).status == 200

    run(ask())


def test_a_full_house_says_when_a_text_ends(speaking_bundle: Path) -> None:
    """By the time that texts took; nothing is known before the first one."""
    limits = Limits(generations=1, queue=0)

    async def ask() -> None:
        now = [0.0]
        model = ServedModel(open_bundle(speaking_bundle), limits=limits, clock=lambda: now[0])
        model.proven, app = True, App(Repository([model]), Settings())
        generator = model.generator
        assert generator is not None

        async def wait_for_room() -> str:
            task = asyncio.create_task(call(app, "POST", "/v1/completions", body()))
            while not generator.steps._turns and not generator.steps._busy:
                await asyncio.sleep(0)
            reply = await call(app, "POST", "/v1/completions", body())
            assert reply.status == 429 and "1 texts are generated or wait" in reply.error
            now[0] += 40
            assert (await task).status == 200
            return reply.headers["retry-after"]

        assert [await wait_for_room(), await wait_for_room()] == ["1", "40"]
        await model.close()

    run(ask())


def test_tokens_take_their_turn_on_the_cpus(
    speaking_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = words(expected(speaking_bundle, 8))

    async def ask() -> None:
        cores = Cores(2)
        model = ServedModel(open_bundle(speaking_bundle, threads=2), cores=cores)
        generator = model.generator
        assert generator is not None
        model.proven, app = True, App(Repository([model]), Settings())
        free, threads = list[int](), list[int]()
        steps = generator.steps
        step, part = steps._run_steps, model.model.with_threads

        def run_step(*given: Any) -> Any:
            free.append(cores.free)
            return step(*given)

        def with_threads(count: int, *given: Any) -> Any:
            threads.append(count)
            return part(count, *given)

        monkeypatch.setattr(steps, "_run_steps", run_step)
        monkeypatch.setattr(model.model, "with_threads", with_threads)
        cores.free = 0  # other models run
        task = asyncio.create_task(call(app, "POST", "/v1/completions", body()))
        while not steps._turns:
            await asyncio.sleep(0)
        assert not free
        for count in (1, 2):
            cores.free = count
            cores.freed(steps._begin)
            reply = await task
            assert wanted.startswith(reply.json["choices"][0]["text"]) and cores.free == count
            assert {*free} == {0} and {*threads} == {1}, "the rest of the CPUs"
            task = asyncio.create_task(call(app, "POST", "/v1/completions", body()))
        await task
        await model.close()

    run(ask())


def test_prompts_of_too_many_characters_are_not_tokenized(speaking_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(speaking_bundle, limits=Limits(characters=100)) as app:
            reply = await call(app, "POST", "/v1/completions", body(prompt="w3 " * 34))
            assert reply.status == 413 and "102 characters, the limit is 100" in reply.error
            assert (await call(app, "POST", "/v1/completions", body())).status == 200

    run(ask())


def test_long_prompts_are_tokenized_beside_the_event_loop(speaking_bundle: Path) -> None:
    """A text of megabytes takes longer than a worker may be silent."""

    async def ask() -> None:
        async with serving(speaking_bundle) as app:
            (model,) = app.repository
            assert model.generator is not None
            prompts, threads = model.generator.prompts(), list[threading.Thread]()
            tokenizer = prompts.tokenizer

            class Watched:
                def encode_batch(self, texts: list[str], **options: Any) -> Any:
                    threads.append(threading.current_thread())
                    return tokenizer.encode_batch(texts, **options)

            prompts.tokenizer = Watched()
            reply = await call(app, "POST", "/v1/completions", body(prompt="w3 " * 1000))
            assert reply.status == 400 and "1000 tokens" in reply.error
            assert threads and threading.current_thread() not in threads

    run(ask())
