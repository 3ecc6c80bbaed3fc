"""Lookup behind the server: the texts are the same, and what doesn't pay ends for all of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime.generation.cached_text import CachedText
from edgecompile.runtime.generation.lookup import Costs, Draft, Worth
from edgecompile.server.http.app import App
from tests.server.conftest import speak
from tests.server.http.asgi import call, run, serving
from tests.server.http.generations import body

find = Draft.find


@pytest.fixture(scope="module")
def bundle(lookup_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speak(lookup_bundle, tmp_path_factory.mktemp("lookup") / "speaking.ecb", 97)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of each run that tries some; where nothing is found, any are tried."""
    runs: list[int] = []
    try_tokens = CachedText.try_tokens

    def noted(text: CachedText, tokens: Any) -> Any:
        runs.append(len(tokens))
        return try_tokens(text, tokens)

    monkeypatch.setattr(CachedText, "try_tokens", noted)
    monkeypatch.setattr(Draft, "find", lambda draft, most: find(draft, most) or [5] * most)
    return runs


async def ask(app: App, seed: int) -> list[str]:
    """The answers to texts at the same time, each of which says something twice."""
    random, asked = np.random.default_rng(seed), []
    for number in range(6):
        part = random.integers(3, 97, 7).tolist()
        how = {"temperature": 0.3, "seed": number} if number % 2 else {}
        asked.append(body(prompt=[*part, 4, *part], max_tokens=12, **how))
    replies = await asyncio.gather(*(call(app, "POST", "/v1/completions", x) for x in asked))
    assert all(reply.status == 200 for reply in replies)
    return [reply.json["choices"][0]["text"] for reply in replies]


def test_texts_are_those_without(
    bundle: Path, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worth, "choose", lambda worth, most, *_: most)

    async def answers(**settings: Any) -> list[str]:
        async with serving(bundle, token_ids=True, **settings) as app:
            return await ask(app, 1)

    want = run(answers())
    assert len(set(want)) > 1 and not tried
    assert run(answers(lookup=True)) == want
    assert len(set(tried)) > 1


def test_what_does_not_pay_ends_for_all_texts(
    bundle: Path, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    note = Costs.note

    def slow(costs: Costs, tokens: int, ns: float) -> None:
        note(costs, tokens, 1.0 if tokens == 1 else 1e9)

    monkeypatch.setattr(Costs, "note", slow)

    async def work() -> None:
        async with serving(bundle, token_ids=True, lookup=True) as app:
            for seed in range(8):  # the longest is tried until it was measured
                before = len(tried)
                await ask(app, seed)
            assert before == len(tried) and 8 in tried

    run(work())


def test_a_bundle_without_the_program_is_served_as_ever(
    speaking_bundle: Path, tried: list[int]
) -> None:
    async def work() -> None:
        async with serving(speaking_bundle, token_ids=True, lookup=True) as app:
            reply = await call(app, "POST", "/v1/completions", body())
            assert reply.status == 200

    run(work())
    assert not tried
