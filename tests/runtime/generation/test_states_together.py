"""Several texts of models with states of a fixed size in one run: each has the tokens and the bytes that it has alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from edgecompile.runtime import InputError, Model, open_bundle
from edgecompile.runtime.generation.lookup import Draft, Worth
from edgecompile.runtime.generation.together import Together
from tests.generative import broken_runs
from tests.zoo.generation_bundles import build_family
from tests.zoo.generation_families import load_family

NEW = 16
HOW: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "eos": ()}
PROMPTS = [
    [1 + (i * step) % 50 for i in range(length)]
    for step, length in ((5, 3), (6, 30), (7, 9), (8, 1))
]


@pytest.fixture(
    scope="module",
    params=[
        "states_together",
        "mamba2_together",
        "falcon_together",
        "qwen_together",
        *(
            pytest.param((name, "fp32", {}), marks=pytest.mark.exhaustive)
            for name in (
                "granitemoehybrid",
                "mamba",
                "nemotron_h",
                "jamba",
                "qwen3_next",
                "qwen3_5",
            )
        ),
        pytest.param(("lfm2", "int4", {"cache_precision": "bf16"}), marks=pytest.mark.exhaustive),
    ],
    ids=lambda item: item if isinstance(item, str) else "-".join([*item[:2], *item[2]]),
)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    """Packing has compared each text with the same one alone, to the last bit."""
    if isinstance(request.param, str):
        bundle: Path = request.getfixturevalue(request.param)
    else:
        name, weights, load = request.param
        folder = tmp_path_factory.mktemp(name)
        loaded = load_family(name, calm=weights != "fp32", **load)
        bundle = build_family(loaded, folder / "a.ecb", folder / "work", precision=weights, texts=4)
    with open_bundle(bundle, threads=2) as opened:
        assert opened.batch_texts == 4
        yield opened


def test_texts_join_and_leave(model: Model, tmp_path: Path) -> None:
    """They run alone between, and their sessions are the same files then, checkpoints included."""
    together, random = Together(model), np.random.default_rng(4)
    for every in (None, 5):
        alone, joined = ([model.session(checkpoint_every=every) for _ in PROMPTS] for _ in range(2))
        texts: list[list[int]] = [[] for _ in PROMPTS]
        for turn in range(3):
            prompts = [
                [*text, *prompt[: 30 >> turn], turn + 1]
                for text, prompt in zip(texts, PROMPTS, strict=True)
            ]
            texts = [session.generate(p, **HOW) for session, p in zip(alone, prompts, strict=True)]
            streams = [s.stream(p, **HOW) for s, p in zip(joined, prompts, strict=True)]
            sizes = set()
            while any(stream.finish_reason is None for stream in streams):
                ready = [s for s in streams if s.single() is not None and random.random() < 0.8]
                if len(ready) > 1:
                    together.run(ready)
                    sizes.add(len(ready))
                for stream in streams:
                    # Some take no step meanwhile.
                    if stream.finish_reason is None and (stream in ready or random.random() < 0.5):
                        next(stream)
            assert [stream.tokens for stream in streams] == texts
            assert sizes == {2, 3, 4}
            texts = [[*p, *made] for p, made in zip(prompts, texts, strict=True)]
            for one, other in zip(alone, joined, strict=True):
                files = [tmp_path / name for name in ("alone", "joined")]
                one.save(files[0])
                other.save(files[1])
                assert files[0].read_bytes() == files[1].read_bytes()


def test_tokens_that_were_tried_go_back_before_texts_join(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = model.manifest.generation
    if spec is None or spec.lookup == 1:
        pytest.skip("its bundle has no program for lookup")
    wanted = [model.generate(prompt, **HOW) for prompt in PROMPTS]
    random = np.random.default_rng(5)

    def find(self: Draft, most: int) -> list[int]:
        (text,) = (w for w, p in zip(wanted, PROMPTS, strict=True) if len(p) == self._prompt)
        left = text[self._count - self._prompt :][:most]
        right = int(random.integers(0, len(left) + 1))
        return [*left[:right], *(token + 1 for token in left[right:])]

    monkeypatch.setattr(Worth, "choose", lambda self, most, *_: most)
    monkeypatch.setattr(Draft, "find", find)
    together, joined = Together(model), 0
    streams = [model.session().stream(prompt, lookup=True, **HOW) for prompt in PROMPTS]
    while any(stream.finish_reason is None for stream in streams):
        ready = [s for s in streams if s.single() is not None and random.random() < 0.5]
        if len(ready) > 1:
            together.run(ready)
            joined += 1
        for stream in streams:
            if stream.finish_reason is None:
                next(stream)
    assert [stream.tokens for stream in streams] == wanted and joined


def test_states_of_a_run_that_failed_are_lost(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows how far it was. The sessions take other texts."""
    together, sessions = Together(model), [model.session() for _ in PROMPTS[:2]]
    streams = [s.stream(p, **HOW) for s, p in zip(sessions, PROMPTS, strict=False)]
    for stream in streams:
        next(stream)

    with broken_runs(model, monkeypatch):
        together.run(streams)
    for stream, session, prompt in zip(streams, sessions, PROMPTS, strict=False):
        with pytest.raises(InputError, match="its states are lost"):
            next(stream)
        assert session.generate(prompt, **HOW) == model.generate(prompt, **HOW)


def test_a_text_whose_states_are_lost_harms_no_other(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found before anything runs, whichever text comes first."""
    together = Together(model)
    streams = [model.session().stream(prompt, **HOW) for prompt in PROMPTS[:3]]
    for stream in streams:
        next(stream)

    with broken_runs(model, monkeypatch):
        next(streams[1])
    with pytest.raises(InputError, match="its states are lost"):
        together.run(streams)
    for number in (0, 2):
        made = [*streams[number].tokens, *streams[number]]
        assert made == model.generate(PROMPTS[number], **HOW)
