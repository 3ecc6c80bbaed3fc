"""Caches with sliding windows: rows that no token sees are given back, and no token and no kept byte changes."""

from __future__ import annotations

import ctypes
import json
import mmap
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from edgecompile.runtime import InputError, Model, open_bundle
from edgecompile.runtime.generation import windows
from edgecompile.runtime.generation.caches import windows_of
from edgecompile.runtime.generation.checkpoints import CHECKPOINT_BYTES, CheckpointSettings
from edgecompile.runtime.generation.lookup import Worth
from edgecompile.runtime.generation.places import Places
from edgecompile.runtime.generation.session import Session
from edgecompile.runtime.generation.together import Together
from edgecompile.runtime.generation.windows import RowMemory, WindowRows, rows_of
from tests.generative import (
    broken_runs,
    caches_behind,
    put_chat,
    put_prefix,
    put_words,
    replace_files,
)
from tests.runtime.generation.test_session_file import set_key

WINDOW = 8
HOW: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "eos": ()}


def draw(length: int, seed: int = 0) -> list[int]:
    tokens: list[int] = np.random.default_rng([seed, length]).integers(3, 97, length).tolist()
    return tokens


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows stay beyond a window, and those that are given back become NaN: nothing may read them."""

    def poison(memory: RowMemory, begin: int, end: int) -> None:
        memory.array.view(np.uint8)[begin:end] = 0xFF

    monkeypatch.setattr(windows, "SPARE", 4)
    monkeypatch.setattr(RowMemory, "give_back", poison)


@pytest.fixture(scope="module", params=["halves_together", "scaled_together"])
def sliding(request: pytest.FixtureRequest) -> Iterator[Model]:
    with open_bundle(request.getfixturevalue(request.param), threads=1, warmup=False) as model:
        yield model


@contextmanager
def without_windows(sliding: Model, folder: Path, layer: int) -> Iterator[Model]:
    """The same bundle, whose manifest names no windows: caches keep every row."""
    shutil.copytree(sliding.path, folder / "a.ecb")
    document = json.loads((folder / "a.ecb" / "manifest.json").read_text())
    assert document["generation"].pop("windows") == {
        f"cache_{layer}_key": WINDOW,
        f"cache_{layer}_value": WINDOW,
    }
    replace_files(folder / "a.ecb", document, {})
    with open_bundle(folder / "a.ecb", threads=1, warmup=False) as model:
        yield model


@pytest.fixture(scope="module")
def full(sliding: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with without_windows(sliding, tmp_path_factory.mktemp("full"), 0) as model:
        yield model


@pytest.fixture(scope="module")
def hybrid(states_together: Path) -> Iterator[Model]:
    """Has states of a fixed size, too."""
    with open_bundle(states_together, threads=1, warmup=False) as model:
        yield model


@pytest.fixture(scope="module")
def full_hybrid(hybrid: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with without_windows(hybrid, tmp_path_factory.mktemp("full"), 1) as model:
        yield model


def assert_same_rows(got: Session, want: Session) -> None:
    """The rows that are kept have the bytes of full caches, as states have; with a window they are few."""
    caches, spec, count = got._caches, got._spec, len(got.tokens)
    assert caches.windows is not None
    for name in caches.arrays.keys() - caches.growing:
        assert caches.arrays[name].tobytes() == want._caches.arrays[name].tobytes()
    names = [name for name in spec.caches if name in caches.growing]
    for name, window in zip(names, windows_of(caches, spec), strict=True):
        kept = 0
        for begin, end in rows_of(caches.windows.places_of(count), window, count):
            rows = want._caches.arrays[name][begin:end]
            assert caches.arrays[name][begin:end].tobytes() == rows.tobytes()
            kept += end - begin
        most = len(got._text._kept.items) + 2  # the end, and a place that a run held
        assert kept == count if window == 0 else kept < most * (WINDOW + 4) + 8


def both(got: Session, want: Session, prompt: list[int], **more: Any) -> tuple[int, int]:
    """Asserts that a text has the same tokens and rows in both; how many tokens each needn't run.

    After runs of other numbers of tokens, rows may differ in their last bits.
    """
    streams = [session.stream(prompt, **{**HOW, **more}) for session in (got, want)]
    assert list(streams[0]) == list(streams[1])
    reused = streams[0].reused, streams[1].reused
    if reused[0] == reused[1]:
        assert_same_rows(got, want)
    return reused


def test_turns_are_those_of_full_caches(sliding: Model, full: Model) -> None:
    got, want = sliding.session(), full.session()
    text, turns = draw(30), []
    for turn in range(4):
        turns.append(list(text))
        reused = both(got, want, text)
        assert reused[0] == reused[1] == (0 if turn == 0 else len(text) - 4)
        text = [*text, *got.generate(text, **HOW), *draw(3, turn)]
    # The last message again, edited ones, and a text that parts where no rows were kept.
    for prompt in (turns[3], [*turns[2][:-1], 5], [*turns[1][:-2], 7, 7]):
        reused = both(got, want, prompt)
        assert reused[0] == reused[1]
    both(got, want, turns[3])
    reused = both(got, want, [*turns[0][:16], *draw(40, 7)])
    assert reused == (0, 16)
    want = full.session()
    want.generate(got._text.tokens[:56], **HOW)
    assert_same_rows(got, want)


def test_without_memory_for_places_a_text_is_read_again(sliding: Model, full: Model) -> None:
    got, want = sliding.session(checkpoint_bytes=0), full.session()
    text = draw(80)
    both(got, want, text)
    assert both(got, want, [*text[:70], 5]) == (0, 70)
    want = full.session()
    want.generate([*text[:70], 5], **HOW)
    text = [*got.tokens, 5, 6]
    assert both(got, want, text) == (len(text) - 2,) * 2
    # From the first place that still has its rows.
    first, text = got._caches.windows.places[-1][0], got.tokens
    assert first > 80
    assert both(got, want, [*text[:first], text[first] ^ 1]) == (first, first)
    # A place at every 16th token.
    text, want = draw(80), full.session()
    got = sliding.session(checkpoint_every=16)
    both(got, want, text)
    assert both(got, want, [*text[:40], 5])[0] == 32


def test_the_last_message_can_be_another_for_any_bound_of_memory(
    sliding: Model, full: Model
) -> None:
    got, want = sliding.session(checkpoint_bytes=1), full.session()
    both(got, want, draw(20))
    ended = len(got.tokens)
    text = [*got.tokens, *draw(80, 1)]
    both(got, want, text)
    # The answer again; and another message, behind whose unchanged part a place then stays, too.
    for _ in range(2):
        assert both(got, want, text)[0] == len(text) - 1
    for prompt, reused in (
        ([*text[:-3], 5], ended + 77),
        ([*text[:-30], 7, 7], ended),
        ([*text[:-30], 9, 9], ended + 50),
        ([*text[:-70], 7], ended),
        ([*text[: ended - 20], 7], 0),
    ):
        assert both(got, want, prompt)[0] == reused


def test_a_chat_keeps_the_beginning_of_its_last_message(sliding: Model, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    bundle = put_words(Path(sliding.path), tmp_path / "a.ecb")
    put_chat(bundle)
    chat = [{"role": "system", "content": "mat " * 40}, {"role": "user", "content": "cat " * 30}]
    with open_bundle(bundle, threads=1, warmup=False) as model:
        session = model.session()
        session.chat(chat, **HOW)
        stream = session.stream_text([chat[0], {**chat[1], "content": "sat"}], **HOW)
        before = len(model._prompts().read(chat)) - 31
        assert stream.tokens.reused == 0
        next(stream)
        assert before == stream.tokens.reused > 40


def test_a_large_model_keeps_the_places_of_its_last_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each takes more than the default bound in a shape as Gemma-3-12B's: 40 layers with windows, in bfloat16."""
    monkeypatch.undo()
    rows = WindowRows([(RowMemory((1 << 13, 40 * 2 * 8 * 256), "uint16"), 1024)])
    row, most = 40 * 2 * 8 * 256 * 2, 1023 + windows.SPARE
    sizes = [rows.size_of(marks) for marks in ([300], [5000], [5000, 5100], [2000, 5000])]
    assert sizes == [row * count for count in (300, most, most + 100, 2 * most)]
    assert sizes[1] > CHECKPOINT_BYTES
    places = Places(rows, CheckpointSettings(CHECKPOINT_BYTES))
    for prefix, end, want in (
        (0, 2000, [2000]),
        (2500, 4000, [2000, 2500, 4000]),
        (3999, 4000, [2000, 2500, 4000]),
        (5500, 7000, [4000, 5500, 7000]),
        (6500, 7100, [5500, 6500, 7100]),
    ):
        places.hold([prefix, end])
        places.cut(prefix)
        for length in (prefix, end):
            places.take(length)
        assert [item.length for item in places.items if item.length] == want


def test_lookup_and_texts_together(
    sliding: Model, full: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = draw(14)
    prompt = [*part, *draw(20, 1), *part, 9, *part]
    with monkeypatch.context() as patch:
        patch.setattr(Worth, "choose", lambda self, most, *_: most)
        both(sliding.session(), full.session(), prompt, lookup=True, max_new_tokens=50)
    together, streams, sessions = Together(sliding), [], []
    alone = [full.session() for _ in range(3)]
    for index, session in enumerate(alone):
        sessions.append(sliding.session())
        streams.append(sessions[-1].stream(draw(20 + 9 * index), **{**HOW, "max_new_tokens": 50}))
        next(streams[-1])
        session.generate(draw(20 + 9 * index), **{**HOW, "max_new_tokens": 50})
    for _ in range(49):
        together.run(streams)
        for stream in streams:
            next(stream)
    for session, stream, mine in zip(alone, streams, sessions, strict=True):
        assert session.tokens[len(stream.prompt) :] == stream.tokens[:-1]
        assert_same_rows(mine, session)


def test_runs_that_fail(sliding: Model, full: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    got, want = sliding.session(), full.session()
    both(got, want, draw(20))
    # Forced tokens in several chunks, interrupted behind the second: rows before them are needed again.
    begin, tokens = got._text.row, draw(70, 3)
    for _ in range(2):
        runs = got._text.advance_by(begin, tokens)
        next(runs)
        next(runs)
        runs.close()
    with broken_runs(sliding, monkeypatch):
        list(got._text.advance_by(begin, tokens))
    assert got.tokens == want.tokens
    for session in (got, want):
        assert list(session._text.advance_by(begin, tokens)) == [None] * 2
    assert_same_rows(got, want)
    text = draw(90, 4)
    stream = got.stream(text, **HOW)
    stream.run()
    with broken_runs(sliding, monkeypatch):
        next(stream)
    both(got, want, text)


def test_files_hold_the_rows_that_are_kept(sliding: Model, full: Model, tmp_path: Path) -> None:
    got, want = sliding.session(), full.session()
    first, text = draw(40), draw(90)
    for prompt in (first, [*first, *text[40:]]):
        both(got, want, prompt)
    path = Path(got.save(tmp_path / "a.session"))
    assert path.stat().st_size < Path(want.save(tmp_path / "full.session")).stat().st_size
    loaded = sliding.session(load=path)
    assert_same_rows(loaded, want)
    assert both(loaded, want, [*first, 8, 8]) == (40, 40)
    data = path.read_bytes()
    for places, message in (
        ([[0, 40]], "don't reach its 101 tokens"),
        ([], "don't reach"),
        (None, "places has None, must have"),
        ([[0, 40], [40, 101]], r"places has \[40, 101\], must have \[first, last\] from 41"),
        ([[50, 40], [90, 101]], "places has"),
        ([[0, 102]], "places has"),
        ([[True, 101]], "places has"),
        ([[0, 101]], "is truncated"),
        ([[101, 101]], "bytes behind its end"),
    ):
        path.write_bytes(set_key("places", places)(data))
        with pytest.raises(InputError, match=message):
            sliding.session(load=path)


def test_a_prompt_in_the_bundle(sliding: Model, full: Model, tmp_path: Path) -> None:
    prompt = draw(60)
    bundle = put_prefix(Path(sliding.path), tmp_path / "a.ecb", caches_behind(full, prompt))
    with open_bundle(bundle, threads=1, warmup=False) as model:
        got, want = model.session(), full.session()
        assert both(got, want, [*prompt, 5, 6]) == (60, 0)
        assert both(got, want, [*prompt[:30], 5, 6]) == (30, 30)
        assert both(got, want, [*prompt, *draw(50, 3)])[0] == 60


def test_states_beside_windows(hybrid: Model, full_hybrid: Model) -> None:
    """A text goes back wherever one with full caches does: behind each checkpoint the rows are kept."""
    got, want = (model.session(checkpoint_every=16) for model in (hybrid, full_hybrid))
    text, turns = draw(30), []
    for turn in range(4):
        turns.append(list(text))
        reused = both(got, want, text)
        assert reused[0] == reused[1] == (0 if turn == 0 else len(text) - 4)
        text = [*text, *got.generate(text, **HOW), *draw(3, turn)]
        want.generate(turns[-1], **HOW)
    # The last turns again, edited messages, and a text that parts early and is as long.
    for prompt, least in (
        (turns[3], len(turns[3])),
        ([*turns[2][:-1], 5], len(turns[2]) - 16),
        ([*turns[1][:-2], 7, 7], len(turns[1]) - 16),
        ([*turns[0][:20], *draw(70, 7)], 16),
    ):
        reused = both(got, want, prompt)
        assert reused[0] == reused[1] >= least


def test_states_beside_windows_for_any_bound_of_memory(hybrid: Model, full_hybrid: Model) -> None:
    text = [*draw(40), *draw(40, 1)]
    for most, reused in ((1, 40), (0, 0)):
        got, want = hybrid.session(checkpoint_bytes=most), full_hybrid.session()
        for prompt in (text[:40], text):
            both(got, want, prompt)
        # Another last message; then the same one again, and text that goes on.
        for prompt, least in (([*text[:60], 5], reused), ([*text[:60], 5], 61 if most else 0)):
            stream = got.stream(prompt, **HOW)
            want = full_hybrid.session()
            assert list(stream) == want.generate(prompt, **HOW)
            assert stream.reused == least
        prompt = [*got.tokens, 5, 6]
        assert both(got, want, prompt) == (len(prompt) - 2,) * 2


def test_states_beside_windows_by_other_runs(
    hybrid: Model, full_hybrid: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With lookup, of several texts together, and after one that failed."""
    part = draw(14)
    prompt = [*part, *draw(20, 1), *part, 9, *part]
    got, want = hybrid.session(), full_hybrid.session()
    with monkeypatch.context() as patch:
        patch.setattr(Worth, "choose", lambda self, most, *_: most)
        for session in (got, want):
            session.generate(prompt, **{**HOW, "max_new_tokens": 20, "lookup": True})
        both(got, want, [*got.tokens, 5], lookup=True)
    streams = [
        [session.stream([*got.tokens[:-2], 9], **HOW), model.session().stream(draw(50), **HOW)]
        for session, model in ((got, hybrid), (want, full_hybrid))
    ]
    for pair, model in zip(streams, (hybrid, full_hybrid), strict=True):
        together = Together(model)
        for stream in pair:
            next(stream)
        for _ in range(11):
            together.run(pair)
            for stream in pair:
                next(stream)
    for mine, other in zip(*streams, strict=True):
        assert mine.tokens == other.tokens
        assert mine.reused == other.reused
    assert_same_rows(got, want)
    text = [*got.tokens, *draw(9, 3)]
    for session, model in ((got, hybrid), (want, full_hybrid)):
        stream = session.stream(text, **HOW)
        with broken_runs(model, monkeypatch):
            next(stream)
    reused = both(got, want, text)
    assert reused[0] == reused[1] > 0


def test_files_and_prompts_of_states_beside_windows(
    hybrid: Model, full_hybrid: Model, tmp_path: Path
) -> None:
    got, want = hybrid.session(), full_hybrid.session()
    first = draw(40)
    for prompt in (first, [*first, *draw(50, 1)]):
        both(got, want, prompt)
    path = Path(got.save(tmp_path / "a.session"))
    loaded = hybrid.session(load=path)
    assert_same_rows(loaded, want)
    assert both(loaded, want, [*first, 8, 8]) == (40, 40)
    kept = hybrid.session(load=path, checkpoint_bytes=1)
    kept.generate([*kept.tokens, 5], **HOW)
    assert both(kept, full_hybrid.session(), [*first, *draw(50, 1)])[0] == 90
    data = path.read_bytes()
    path.write_bytes(set_key("places", [[90, 101]])(data))
    with pytest.raises(InputError, match="has no rows for the checkpoint behind 40 tokens"):
        hybrid.session(load=path)
    prefix = caches_behind(full_hybrid, first)
    bundle = put_prefix(Path(hybrid.path), tmp_path / "a.ecb", prefix)
    with open_bundle(bundle, threads=1, warmup=False) as model:
        got, want = model.session(), full_hybrid.session()
        want.generate(first, **{**HOW, "max_new_tokens": 1})
        for prompt in ([*first, 5, 6], [*first, *draw(50, 3)]):
            assert both(got, want, prompt)[0] == 40


def test_memory_of_rows_goes_back_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    count, mark = 1 << 12, 1500
    memory = RowMemory((count, mmap.PAGESIZE // 4), "float32")  # a row is a page
    rows = WindowRows([(memory, 100)])
    memory.array[...] = 1
    before = resident()
    rows.give_back(count, [mark])
    kept = memory.array[:, 0].nonzero()[0]
    most = windows.SPARE + 99
    assert kept.tolist() == [*range(mark - most, mark), *range(count - most, count)]
    assert before - resident() > 0.9 * (count - len(kept)) * mmap.PAGESIZE
    found = [rows.find(x) for x in (mark - 100, mark - 10, mark + 900, count)]
    assert found == [0, mark - 10, mark, count]
    for lost in (mark - 100, mark + 900):
        with pytest.raises(ValueError, match=f"behind {lost} tokens aren't kept"):
            rows.go_back(lost)
    rows.go_back(mark)
    assert memory.array[:, 0].nonzero()[0].tolist() == kept.tolist()[:most]
    rows.go_back(0)
    assert rows.places == ((0, windows._OPEN),) and not memory.array.any()


def flags_at(address: int) -> list[str]:
    """The system's flags of the memory there."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError(f"nothing lies at {address:x}")


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(),
    reason="this system has no large pages",
)
@pytest.mark.parametrize(("slides", "flag"), [(True, "nh"), (False, "hg")])
def test_large_pages_are_for_rows_that_stay(slides: bool, flag: str) -> None:
    memory = RowMemory((1 << 10, mmap.PAGESIZE // 4), "float32", slides=slides)
    assert not memory.array[:, 0].any()
    assert flag in flags_at(memory.array.ctypes.data)


def test_locked_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    memory = RowMemory((4, mmap.PAGESIZE // 4), "float32")
    memory.array[...] = 1
    address, size = memory.array.ctypes.data, memory.array.nbytes
    if ctypes.CDLL(None).mlock(ctypes.c_void_p(address), ctypes.c_size_t(size)):
        pytest.skip("this process may lock no memory")
    memory.give_back(0, 4)
    assert memory.array.all()
