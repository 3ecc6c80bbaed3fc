"""Turns of conversations: what is read again, and that each is as if all had been read anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import InputError, Model, open_bundle
from edgecompile.runtime.generation.checkpoints import Checkpoint, Checkpoints, CheckpointSettings
from edgecompile.runtime.text.session import TextSession

pytest.importorskip("torch")

CONVERSATIONS, TURNS = 50, 6


@pytest.fixture(
    scope="module",
    params=[
        "decoder_bundle",
        "hybrid_bundle",
        "states_together",
        "mamba2_together",
        "falcon_together",
    ],
)
def talker(request: pytest.FixtureRequest) -> Iterator[Model]:
    """A language model: keys and values alone, states beside them, or states alone."""
    with open_bundle(request.getfixturevalue(request.param), threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def hybrid(hybrid_bundle: Path) -> Iterator[Model]:
    with open_bundle(hybrid_bundle, threads=1) as model:
        yield model


def draw(random: np.random.Generator, least: int, most: int) -> list[int]:
    """A piece of a text; 2 and 7 end texts."""
    tokens: list[int] = random.integers(8, 60, random.integers(least, most + 1)).tolist()
    return tokens


def count_tokens(model: Model) -> int:
    """The tokens that were run so far."""
    return sum(int(length) * runs for length, runs in model.stats["lengths"].items())


def answer(
    model: Model, session: TextSession, prompt: list[int], new: int, fresh: bool = True
) -> tuple[list[int], int]:
    """The new tokens, which must be those of a fresh reading, and how many of the prompt weren't run."""
    before = count_tokens(model)
    stream = session.stream(prompt, max_new_tokens=new, do_sample=False, eos=())
    tokens = list(stream)
    assert count_tokens(model) - before == len(prompt) - stream.reused + len(tokens) - 1
    if fresh:
        assert tokens == model.generate(prompt, max_new_tokens=new, do_sample=False, eos=())
    return tokens, stream.reused


def test_no_turn_reads_the_beginning_again(talker: Model) -> None:
    has_states = talker.info["generation"]["kind"] == "recurrent-lm"
    for number in range(CONVERSATIONS):
        random = np.random.default_rng(number)
        session = talker.session()
        # The prompt of the last turn, its answer, and how far the turn before it reached.
        prompt, said, ended = draw(random, 4, 9), [], 0
        for turn in range(TURNS):
            if turn:
                deed = random.integers(4)
                if deed == 0:  # the answer again
                    least = len(prompt) if has_states else len(prompt) - 1
                elif deed == 1 and ended:  # another message in the place of the last one
                    least = ended
                    prompt = [*prompt[:ended], 61 if has_states else 6, *draw(random, 1, 6)]
                elif deed == 2:  # the answer written in other tokens
                    least = ended = len(prompt)
                    prompt = [*prompt, (said[0] - 7) % 50 + 8, *said[1:], *draw(random, 1, 6)]
                else:  # the next message
                    least = ended = len(prompt) + len(said) - 1
                    prompt = [*prompt, *said, *draw(random, 1, 6)]
            said, reused = answer(talker, session, prompt, int(random.integers(2, 7)))
            assert reused == 0 if turn == 0 else least <= reused <= len(prompt)


def test_an_earlier_turn_can_be_changed(hybrid: Model) -> None:
    """The ends of all prompts and answers are kept, not only the last."""
    session, ends = hybrid.session(), []
    random = np.random.default_rng(1)
    prompt = draw(random, 6, 6)
    for _ in range(5):
        said, _reused = answer(hybrid, session, prompt, 5)
        ends += [len(prompt), len(prompt) + 4]
        prompt = [*prompt, *said, *draw(random, 4, 4)]
    last = prompt[:-4]
    for at in (2, 1, 0):
        prompt = [*last[: ends[2 * at + 1] + 1], 61, 62]
        assert answer(hybrid, session, prompt, 3)[1] == ends[2 * at + 1]
    assert answer(hybrid, session, [*last[: ends[0]], 61], 3)[1] == ends[0]
    assert answer(hybrid, session, [61, *last], 3)[1] == 0


def test_states_are_kept_every_so_many_tokens(hybrid: Model) -> None:
    session = hybrid.session(checkpoint_every=16)
    text = draw(np.random.default_rng(2), 60, 60)
    said, _ = answer(hybrid, session, text, 30)
    for at, kept in ((59, 48), (33, 32), (20, 16)):
        assert answer(hybrid, session, [*text[:at], 61, 62], 2)[1] == kept
    said, _ = answer(hybrid, session, text, 30)
    # Of the answer too, whose tokens run one by one: 60 + 29 were run.
    edited = [*text, *said[:22], (said[22] - 7) % 50 + 8]
    assert answer(hybrid, session, edited, 2)[1] == 80
    # Without the option, the place where texts part is kept once it was read again.
    plain = hybrid.session()
    answer(hybrid, plain, text, 3)
    edited = [*text[:50], 61, 62]
    assert [answer(hybrid, plain, [*edited, x], 3)[1] for x in (9, 10)] == [0, 50]


def test_kept_states_stay_within_their_memory(hybrid: Model) -> None:
    size = sum(
        4 * int(np.prod(item.shape))  # type: ignore[misc]
        for item in hybrid.manifest.inputs
        if item.name in hybrid.info["generation"]["caches"] and "context" not in item.shape
    )
    logits = 4 * hybrid.manifest.outputs[0].shape[1]  # type: ignore[operator]
    most = 3 * (size + logits)
    session = hybrid.session(checkpoint_every=5, checkpoint_bytes=most)
    text = draw(np.random.default_rng(3), 80, 80)
    answer(hybrid, session, text, 20)
    assert session._text.states is not None
    held = session._text.states.items
    assert len(held) >= 3 and sum(item.size for item in held) <= most
    assert answer(hybrid, session, text, 2)[1] == 80, "the end of the prompt is never the one to go"
    # Without memory it goes on from the end alone, as no copy is needed there.
    session = hybrid.session(checkpoint_bytes=0)
    said, _ = answer(hybrid, session, text, 4)
    assert answer(hybrid, session, [*text, *said, 9], 4)[1] == 83
    assert answer(hybrid, session, [*text, *said, 9], 4)[1] == 0


def test_the_least_useful_states_go_first() -> None:
    states = [np.zeros(4, np.float32)]
    kept = Checkpoints(states, CheckpointSettings(most_bytes=5 * 16))
    for length in range(10, 210, 10):
        states[0][:] = length
        kept.take(length)
    lengths = [item.length for item in kept.items]
    assert len(lengths) == 5 and lengths[-3:] == [180, 190, 200]
    found = kept.find(195, 300)
    assert found is not None and found.length == 190 and (found.states[0] == 190).all()
    assert kept.find(195, 190) == kept.items[-3], "a whole text needs the logits behind it"
    kept.take(200, np.ones(2, np.float32))
    assert [item.length for item in kept.items][-1] == 200
    whole = kept.find(200, 200)
    assert whole is not None and whole.length == 200
    kept.cut(185)
    assert [item.length for item in kept.items][-1] == 180
    kept.add(Checkpoint(400, [np.zeros(99, np.float32)]))
    assert kept.items == [], "one that is too large isn't kept either"


def test_no_memory_for_states_is_no_error(hybrid: Model) -> None:
    session = hybrid.session()
    assert session._text.states is not None

    class Full:
        nbytes = 4

        def copy(self) -> Any:
            raise MemoryError

    session._text.states.states = [Full()]  # type: ignore[list-item]
    answer(hybrid, session, [9, 10, 11], 3)
    assert session._text.states.items == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"checkpoint_every": 0}, "checkpoint_every is 0, must be an integer from 1 on"),
        ({"checkpoint_every": True}, "checkpoint_every is True"),
        ({"checkpoint_every": 2.0}, "checkpoint_every is 2.0"),
        ({"checkpoint_bytes": -1}, "checkpoint_bytes is -1, must be an integer from 0 on"),
        ({"checkpoint_bytes": None}, "checkpoint_bytes is None"),
        ({"checkpoint_bytes": 2**63}, "checkpoint_bytes is 9223372036854775808"),
    ],
)
def test_bad_arguments_are_refused(hybrid: Model, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        hybrid.session(**arguments)


def test_a_run_that_fails_in_the_middle(hybrid: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its states are lost, those that were kept aren't."""
    session = hybrid.session()
    text = draw(np.random.default_rng(4), 20, 20)
    said, _ = answer(hybrid, session, text, 4)
    longer = [*text, *said, *draw(np.random.default_rng(5), 50, 50)]
    run, left = session._bundle.run_bound, [2]

    def fail(*arguments: Any) -> None:
        run(*arguments)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session._bundle, "run_bound", fail)
        with pytest.raises(KeyboardInterrupt):
            session.generate(longer, max_new_tokens=2)
    assert answer(hybrid, session, longer, 4)[1] == 23


def test_the_place_where_a_template_parts_is_kept(
    hybrid: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that writes a place for thoughts before a new answer, and none before a given one."""

    class Tokenizer:
        def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
            return "".join(chr(96 + token) for token in ids)

    class Prompts:
        tokenizer, spec = Tokenizer(), hybrid.manifest.generation

        def read(self, messages: Any, judge: Any = None, tools: Sequence[Any] = ()) -> list[int]:
            ids: list[int] = []
            for message in messages:
                ids += [3 if message["role"] == "user" else 4]
                ids += [ord(letter) - 96 for letter in message["content"]]
            return [*ids, 4, 5, 5]

    from edgecompile.runtime.text import prompts as module

    Prompts.find_marks = module.Prompts.find_marks  # type: ignore[attr-defined]
    session = hybrid.session()
    monkeypatch.setattr(session, "_prompts", Prompts)
    messages, reached = [{"role": "user", "content": "hello"}], 0
    for _ in range(3):
        prompt = session._prompts().read(messages)
        stream = session.stream_text(messages, max_new_tokens=3, do_sample=False, eos=())
        tokens = list(stream.tokens)
        assert tokens == hybrid.generate(prompt, max_new_tokens=3, do_sample=False, eos=())
        # Up to the last answer's beginning, behind which the place for thoughts was.
        assert stream.tokens.reused == reached
        reached = len(prompt) - 2
        messages += [{"role": "assistant", "content": "abc"}, {"role": "user", "content": "de"}]
