"""Heads of which a run multiplies nothing but panels with allowed tokens: same bits, same texts, nothing kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import Model, NativeError, open_bundle
from edgecompile.runtime.cpu.library import BoundRun
from edgecompile.runtime.generation.golden import replay_generations
from edgecompile.runtime.generation.options import Options
from edgecompile.runtime.generation.stream import TokenStream
from tests.conftest import family_once
from tests.runtime.generation.test_constraints import Rule

pytest.importorskip("torch")

PANEL = 32
VOCABULARY = 1001  # 32 panels, the last one of nine tokens
PANELS = 32
TEXT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="session")
def wide_bundle(shared_folder: Path) -> Path:
    """A family in fp32, with runs that give several rows of logits."""
    return family_once(shared_folder, "wide", "llama", {"lookup": 4, "vocabulary": VOCABULARY})


@pytest.fixture(scope="session")
def capped_bundle(shared_folder: Path) -> Path:
    """A family whose logits are soft-capped to 30, in int8."""
    load = {"calm": True, "vocabulary": VOCABULARY}
    return family_once(shared_folder, "capped", "gemma2", load, precision="int8")


@pytest.fixture(scope="session")
def nibbles_bundle(shared_folder: Path) -> Path:
    """A family with its weights in int4."""
    load = {"calm": True, "vocabulary": VOCABULARY}
    return family_once(shared_folder, "nibbles", "llama", load, precision="int4")


@pytest.fixture(scope="module", params=["wide_bundle", "capped_bundle", "nibbles_bundle"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    with open_bundle(request.getfixturevalue(request.param), threads=2) as opened:
        yield opened


def draw(seed: int, most: int = 8) -> Any:
    """A mask of tokens in a few panels, some of which follow each other."""
    random = np.random.RandomState(seed)
    mask = np.zeros(VOCABULARY, bool)
    for panel in random.choice(PANELS, random.randint(1, most + 1), replace=False):
        mask[panel * PANEL + random.choice(9, random.randint(1, 9))] = True
    return mask


def logits_of(model: Model, tokens: list[int], wanted: Any = None) -> Any:
    """The logits behind tokens that are run together behind the text, each time anew."""
    session = model.session()
    request = session.request(TEXT, None, Options(max_new_tokens=30, eos=()))
    stream = TokenStream(session, request, lambda logits: 0)
    next(stream)
    with session.lent(stream) as held:
        if len(tokens) == 1:
            return held.advance(tokens[0], wanted).copy()
        runs = held.advance_by(len(TEXT), tokens, wanted)
        while True:
            try:
                next(runs)
            except StopIteration as end:
                return end.value.copy()


@pytest.mark.parametrize("count", [1, 2, 5, 20], ids=str)
def test_allowed_tokens_have_the_bits_of_a_whole_run(model: Model, count: int) -> None:
    assert model.masks_logits
    tokens = [7 + index % 50 for index in range(count)]
    whole = logits_of(model, tokens)
    left_out = -30.0 if model.manifest.name == "capped" else -np.inf
    for seed in range(40):
        wanted = draw(seed, PANELS if seed % 2 else 8)
        got = logits_of(model, tokens, wanted)
        assert got[wanted].tobytes() == whole[wanted].tobytes()
        for begin in range(0, VOCABULARY, PANEL):
            panel = slice(begin, begin + PANEL)
            if wanted[panel].any():
                assert got[panel].tobytes() == whole[panel].tobytes()
            elif seed % 2 == 0:
                assert (got[panel] == left_out).all()
            else:  # where few are left out, all may be computed, but nothing is of an earlier run
                assert (got[panel] == left_out).all() or got.tobytes() == whole.tobytes()
    everything, nothing = np.ones(VOCABULARY, bool), np.zeros(VOCABULARY, bool)
    assert logits_of(model, tokens, everything).tobytes() == whole.tobytes()
    assert (logits_of(model, tokens, nothing) == left_out).all()


@pytest.mark.parametrize(
    "asked", [{}, {"seed": 4, "temperature": 2.0}, {"repetition_penalty": 1.5}], ids=str
)
def test_texts_are_those_of_whole_runs(
    model: Model, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    forced = {0: [9, 8], 4: [1], 9: [2] * 5}

    def generate() -> list[int]:
        rule = Rule(draw, forced)
        got: list[int] = model.generate(TEXT, max_new_tokens=24, eos=(), constraint=rule, **asked)
        assert got == rule.accepted and len(got) == 24
        return got

    masked = generate()
    monkeypatch.setattr(model._runtime, "_lacks", {"ec_program_run_masked"})  # an older library
    assert not model.masks_logits
    assert generate() == masked


def test_masks_are_asked_before_the_run_and_once(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, run = list[str](), model.run_bound

    def noted(bound: Any, *given: Any) -> Any:
        events.append("masked" if hasattr(bound, "args") else "whole")
        return run(bound, *given)

    monkeypatch.setattr(model, "run_bound", noted)
    asked = Rule(lambda made: events.append("mask") or draw(made), {2: [5, 6]})
    model.generate(TEXT, max_new_tokens=5, eos=(), constraint=asked)
    # The prompt's logits may be kept, so all are computed. Forced tokens cost no run.
    assert events == ["whole", "mask", "mask", "masked", "mask", "masked"]


def test_what_was_left_out_is_neither_told_nor_kept(model: Model, tmp_path: Path) -> None:
    session = model.session()
    stream = session.stream(TEXT, max_new_tokens=6, eos=(), constraint=Rule(draw))
    next(stream)
    while stream.run():
        pass
    assert stream.logits is None and len(session.tokens) == len(TEXT) + 1
    session.save(tmp_path / "text")
    got = [*stream.tokens, *stream]
    again = [*TEXT, *got]
    for going_on, text in (
        (session, again),
        (model.session(load=tmp_path / "text"), again[: len(TEXT) + 1]),
    ):
        for prompt in (text, [*text, 9]):
            want = model.generate(prompt, max_new_tokens=6, eos=())
            for lookup in {False, model.manifest.generation.lookup > 1}:  # type: ignore[union-attr]
                asked = {"max_new_tokens": 6, "eos": (), "lookup": lookup}
                assert going_on.generate(prompt, **asked) == want


def test_a_self_test_tells_other_bits(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(item["ok"] for item in replay_generations(model))
    run = BoundRun.run_masked

    def inexact(own: BoundRun, wanted: Any) -> None:
        run(own, wanted)
        logits = own._arrays[1][0]
        logits[...] = np.nextafter(logits, np.float32(np.inf))

    monkeypatch.setattr(BoundRun, "run_masked", inexact)
    *others, last = replay_generations(model)
    assert all(item["ok"] for item in others) and not last["ok"]
    assert last["error"] == "a run that leaves out logits gives other ones than a whole run"


def test_a_mask_of_another_size_is_refused(model: Model) -> None:
    whole = logits_of(model, [7])
    for size in (VOCABULARY - 1, VOCABULARY + 1, 0):
        with pytest.raises(NativeError, match=f"the mask has {size} columns, the product 1001"):
            logits_of(model, [7], np.ones(size, bool))
    assert logits_of(model, [7]).tobytes() == whole.tobytes(), "the next run has no mask"
