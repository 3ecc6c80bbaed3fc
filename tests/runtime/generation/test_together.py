"""Several texts that get a token each in one run: each has the tokens, and the logits, that it has alone."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import InputError, Model, open_bundle
from edgecompile.runtime.base.errors import BundleError
from edgecompile.runtime.commands.info import device_bytes
from edgecompile.runtime.generation.golden import replay_generations
from edgecompile.runtime.generation.lookup import Draft, Worth
from edgecompile.runtime.generation.stream import TokenStream
from edgecompile.runtime.generation.together import Together
from tests.conftest import built_once
from tests.generative import broken_runs, replace_files
from tests.runtime.generation.test_constraints import Rule

NEW = 20
PROMPTS = [
    [1 + (i * step) % 50 for i in range(length)] for step, length in enumerate((3, 40, 70, 1), 5)
]


@pytest.fixture(scope="session")
def narrow_together(shared_folder: Path) -> Path:
    """A build of a folder, as a user makes it: in int4, with a tied head and a prompt in the bundle."""
    pytest.importorskip("transformers")
    from edgecompile.models.samples import SampleTexts
    from edgecompile.pipeline.build import build
    from tests.quantization.test_quality import request_for, save_llama, write_texts

    folder = shared_folder / "narrow-together"

    def make(output: Path, _: Path) -> None:
        save_llama(folder, tied=True, spread=0.1)
        write_texts(folder / "texts.txt", 40)
        (folder / "prompt.txt").write_text("cat sat on the mat\n")
        result = build(
            request_for(
                folder,
                output,
                precision="int4",
                texts=SampleTexts(folder / "texts.txt", folder / "tokenizer.json"),
                prefix=folder / "prompt.txt",
                texts_at_once=4,
            )
        )
        assert result.verify is not None and result.verify.ok

    return built_once(shared_folder, "narrow-together", make)


@pytest.fixture(
    scope="module",
    params=[
        ("together_bundle", 1),
        ("together_bundle", 2),
        ("halves_together", 2),
        # test_states_together.py has several texts over int8 caches, too.
        pytest.param(("scaled_together", 2), marks=pytest.mark.exhaustive),
        ("narrow_together", 2),
    ],
    ids=["one thread", "two threads", "bfloat16 caches", "int8 caches", "int4"],
)
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    bundle, threads = request.param
    with open_bundle(request.getfixturevalue(bundle), threads=threads, warmup=False) as opened:
        yield opened


def prompts_of(model: Model) -> list[list[int]]:
    """Prompts that leave room for the new tokens; the second begins as the bundle's own, if there is one."""
    spec = model.manifest.generation
    assert spec is not None
    room, prefix = spec.max_context - NEW - 1, model.session()._text.prefix
    first, second, *others = [prompt[:room] for prompt in PROMPTS]
    return [first, second if prefix is None else [*prefix.tokens, *second[:9]], *others]


def begin(model: Model, prompts: list[list[int]], **options: Any) -> list[TokenStream]:
    """Streams whose prompts have been run, and whose first tokens are there."""
    asked: dict[str, Any] = {"max_new_tokens": NEW, "eos": (), **options}
    streams = [model.session().stream(prompt, **asked) for prompt in prompts]
    for stream in streams:
        next(stream)
    return streams


@pytest.mark.parametrize("count", [2, 3, 4])
def test_no_bit_differs(model: Model, count: int) -> None:
    together = Together(model)
    assert together.most == 4
    texts, alone = (begin(model, prompts_of(model)[:count]) for _ in range(2))
    for _ in range(NEW - 1):
        together.run(texts)
        for text, other in zip(texts, alone, strict=True):
            assert not text.run(), "nothing is left to run"
            assert not other.run()
            assert text.logits is not None and other.logits is not None
            np.testing.assert_array_equal(text.logits, other.logits)
            assert next(text) == next(other)
    assert [text.finish_reason for text in texts] == ["length"] * count
    for text, other in zip(texts, alone, strict=True):
        mine, theirs = text._session._caches.arrays, other._session._caches.arrays  # type: ignore[attr-defined]
        assert all(np.array_equal(mine[name], theirs[name]) for name in mine)


def test_texts_join_and_leave(model: Model) -> None:
    """They run alone between, another turn follows, and no token differs."""
    together = Together(model)
    wanted = [model.generate(p, max_new_tokens=NEW, eos=()) for p in prompts_of(model)]
    texts = begin(model, prompts_of(model))
    for step in range(NEW - 1):
        chosen = [text for index, text in enumerate(texts) if (step + index) % 3]
        if len(chosen) > 1:
            together.run(chosen)
        for text in texts:
            next(text)
    assert [text.tokens for text in texts] == wanted
    session: Any = texts[1]._session
    turn = [*texts[1].prompt, *wanted[1], 7]
    stream = session.stream(turn, max_new_tokens=1, eos=())
    assert list(stream) == model.generate(turn, max_new_tokens=1, eos=())
    assert stream.reused == len(turn) - 2, "the last token of the answer wasn't run"


def test_sampling_and_constraints_are_each_text_s_own(model: Model) -> None:
    every = np.ones(model.info["outputs"][0]["shape"][1], bool)
    options: list[dict[str, Any]] = [
        {"temperature": 1.5, "seed": 3},
        {"do_sample": False},
        {"constraint": Rule(lambda made: every & (np.arange(every.size) % 2 == made % 2))},
        {"constraint": Rule(lambda made: every, {3: [5, 6], 9: [8]})},
    ]
    wanted = []
    for prompt, item in zip(prompts_of(model), options, strict=True):
        wanted.append(model.generate(prompt, max_new_tokens=NEW, eos=(), **item))
        if "constraint" in item:
            item["constraint"].accepted.clear()
    together = Together(model)
    texts = [
        begin(model, [prompt], **item)[0]
        for prompt, item in zip(prompts_of(model), options, strict=True)
    ]
    while any(text.finish_reason is None for text in texts):
        ready = [text for text in texts if text.single() is not None]
        if len(ready) > 1:
            together.run(ready)
        for text in texts:
            if text.finish_reason is None:
                next(text)
    assert [text.tokens for text in texts] == wanted


def test_forced_tokens_and_prompts_need_no_single_run(model: Model) -> None:
    every = np.ones(model.info["outputs"][0]["shape"][1], bool)
    stream = model.session().stream([3], constraint=Rule(lambda made: every, {1: [5, 6]}), eos=())
    assert stream.single() is None
    next(stream)
    for _ in range(2):
        assert stream.single() is None
        next(stream)
    assert stream.single() is None, "two tokens have to be run"
    token = next(stream)
    assert stream.single() == token
    stream.close()
    assert stream.single() is None


def test_a_run_that_failed_leaves_each_text_as_it_was(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, texts = Together(model), begin(model, prompts_of(model)[:3])
    wanted = [model.generate(p, max_new_tokens=NEW, eos=()) for p in prompts_of(model)[:3]]
    together.run(texts)

    for text in texts:
        next(text)
    with broken_runs(model, monkeypatch):
        together.run(texts)
    assert [[*text.tokens[:2], *text] for text in texts] == wanted


def test_a_text_whose_session_has_another_one_stops_all(model: Model) -> None:
    together, texts = Together(model), begin(model, prompts_of(model)[:2])
    session: Any = texts[0]._session
    session.generate([9, 9], max_new_tokens=1)
    with pytest.raises(InputError, match="another generation of this session began"):
        together.run(texts)
    assert [*texts[1].tokens, *texts[1]] == model.generate(
        prompts_of(model)[1], max_new_tokens=NEW, eos=()
    )


def test_texts_of_nothing_can_be_run(model: Model) -> None:
    together = Together(model)
    before = model.stats["runs"]
    for count in range(2, 5):
        together.run_nothing(count)
    assert model.stats["runs"] == before, "nobody asked for them"


def test_tried_tokens_are_taken_back_where_a_text_joins_others(
    halves_together: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text whose next logits are there already waits for no run; another one drops what it tried."""
    model = open_bundle(halves_together, threads=1, warmup=False)
    monkeypatch.setattr(Worth, "choose", lambda self, most, *_: most)
    repeated = [[5, 6, 7, 8] * 3, [9, 4, 9, 4, 9]]
    wanted = [model.generate(p, max_new_tokens=NEW, eos=()) for p in repeated]
    together, texts = Together(model), begin(model, repeated, lookup=True)
    waited = joined = 0
    for step in range(NEW - 1):
        ready = [text for text in texts if text.single() is not None]
        waited += 2 - len(ready)
        assert len(ready) >= sum(not text.ahead for text in texts)
        if step % 3 == 2 and len(ready) == 2:
            together.run(ready)
            joined += 1
        for text in texts:
            next(text)
    assert [text.tokens for text in texts] == wanted
    assert joined and waited, "some tokens came of tries, and some of runs of both"


def test_tries_that_were_wrong_change_nothing(
    halves_together: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_bundle(halves_together, threads=1, warmup=False)
    monkeypatch.setattr(Worth, "choose", lambda self, most, *_: most)
    monkeypatch.setattr(Draft, "find", lambda self, most: [5] * most)
    wanted = [model.generate(p, max_new_tokens=NEW, eos=()) for p in PROMPTS[:2]]
    together, texts = Together(model), begin(model, PROMPTS[:2], lookup=True)
    for step in range(NEW - 1):
        if step % 2 and all(text.single() is not None for text in texts):
            together.run(texts)
        for text in texts:
            next(text)
    assert [text.tokens for text in texts] == wanted


@pytest.mark.parametrize("right", [True, False])
def test_runs_of_several_texts_tell_whether_tries_would_be_right(
    halves_together: Path, monkeypatch: pytest.MonkeyPatch, right: bool
) -> None:
    """So a text that joins others learns when it would be faster alone."""
    model = open_bundle(halves_together, threads=1, warmup=False)
    wanted = [model.generate(p, max_new_tokens=NEW, eos=()) for p in PROMPTS[:2]]

    def find(self: Draft, most: int) -> list[int]:
        (text,) = (w for w, p in zip(wanted, PROMPTS, strict=False) if len(p) == self._prompt)
        at = self._count - self._prompt
        return [token if right else token + 1 for token in text[at : at + most]]

    monkeypatch.setattr(Draft, "find", find)
    together, texts = Together(model), begin(model, PROMPTS[:2], lookup=True)
    costs = [0.0, 10e9, 12e9, 14e9, 16e9]
    assert all(text.tries() == (0.0, 1.0) for text in texts), "a run of one token isn't known yet"
    worth: Any = texts[-1]._session.worth  # type: ignore[attr-defined]
    worth.costs.ns = costs
    for _ in range(NEW - 1):
        offers = [text.tries() for text in texts]
        together.run(texts)
        for text in texts:
            next(text)
    assert [text.tokens for text in texts] == wanted
    assert (worth.right[-1] > 0.8) == right and (worth.right[-1] < 0.4) != right
    assert offers == [None, None], "the last token of a text needn't be run"
    (text,) = begin(model, PROMPTS[:1], lookup=True)
    later: Any = text._session.worth  # type: ignore[attr-defined]
    later.right, later.costs.ns = worth.right, costs
    offered = text.tries()
    assert (offered is not None) == right
    if offered is not None:
        assert offered[0] == 16.0 and 3 < offered[1] <= 4


def test_the_self_test_notices_other_logits(
    together_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one text in one run, in their last bit."""
    run = Together.run

    def other(self: Together, streams: Any) -> None:
        run(self, streams)
        if len(streams) == 3:
            logits = streams[2].logits
            logits[7] = np.nextafter(logits[7], np.float32(np.inf))

    with open_bundle(together_bundle, warmup=False) as model:
        good = replay_generations(model)
        assert all(result["ok"] for result in good)
        monkeypatch.setattr(Together, "run", other)
        *cases, last = replay_generations(model)
    assert [case["ok"] for case in cases] == [True] * len(good)
    assert not last["ok"] and last["error"].startswith("text 2 of 3 in one run has other logits")


def test_a_program_of_another_signature_is_refused(together_bundle: Path, tmp_path: Path) -> None:
    """The manifest names a program of one text, which would take addresses for numbers of its own."""
    copy = tmp_path / "copy.ecb"
    shutil.copytree(together_bundle, copy, copy_function=os.link)
    document = json.loads((copy / "manifest.json").read_bytes())
    variant = document["variants"][0]
    document["generation"]["batch"]["programs"][variant["name"]] = variant["programs"][0]
    replace_files(copy, document, {})
    with open_bundle(copy, warmup=False) as model:
        with pytest.raises(
            BundleError, match=r"has 7 inputs and 1 outputs, .* \[program-signature\]"
        ):
            Together(model).run_nothing(2)
        assert "program-signature" in replay_generations(model)[-1]["error"]
        assert list(model.generate([3, 4], max_new_tokens=2))


def test_a_bundle_says_what_it_holds(together_bundle: Path) -> None:
    with open_bundle(together_bundle, warmup=False) as model:
        manifest, variant = model.manifest, model.variant
        assert manifest.generation is not None and manifest.generation.batch is not None
        path = manifest.generation.batch.programs[variant.name]
        programs = {*variant.programs, path}
        assert path not in variant.programs
        size = sum(manifest.files[name].size for name in programs)
        assert device_bytes(manifest, variant)["programs"] == size
