"""Sessions in files: they go on as if they had never ended, and no file does harm."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import InputError, Model, open_bundle
from edgecompile.runtime.generation.session_file import MAGIC, SessionFile

pytest.importorskip("torch")

PROMPT = [9, 20, 31, 42, 53, 10, 21, 32]
NEW = {"max_new_tokens": 6, "do_sample": False, "eos": ()}


@pytest.fixture(
    scope="module", params=["decoder_bundle", "hybrid_bundle", "halves_bundle", "scaled_bundle"]
)
def talker(request: pytest.FixtureRequest) -> Iterator[Model]:
    if request.param != "decoder_bundle":
        pytest.importorskip("transformers")
    with open_bundle(request.getfixturevalue(request.param), threads=1) as model:
        yield model


@pytest.fixture
def saved(talker: Model, tmp_path: Path) -> Path:
    session = talker.session()
    session.generate(PROMPT, **NEW)
    return Path(session.save(tmp_path / "talk.session", notes={"messages": ["ä", None, 1.5]}))


@pytest.fixture
def hybrid_saved(hybrid_bundle: Path, tmp_path: Path) -> Iterator[tuple[Model, bytes]]:
    with open_bundle(hybrid_bundle, threads=1, warmup=False) as model:
        session = model.session()
        session.generate(PROMPT, **NEW)
        yield model, Path(session.save(tmp_path / "talk.session")).read_bytes()


def test_a_session_goes_on_from_its_file(talker: Model, saved: Path) -> None:
    said = talker.generate(PROMPT, **NEW)
    session = talker.session(load=saved)
    assert session.tokens == [*PROMPT, *said[:-1]]
    assert session.notes == {"messages": ["ä", None, 1.5]}
    # The next message, the same prompt again, and another last message.
    has_states = talker.info["generation"]["kind"] == "recurrent-lm"
    again = len(PROMPT) - (0 if has_states else 1)
    for prompt, reused in (
        ([*PROMPT, *said, 11, 12], 13),
        (PROMPT, again),
        ([*PROMPT, 13, 14], 8),
    ):
        stream = session.stream(prompt, **NEW)
        assert list(stream) == talker.generate(prompt, **NEW)
        assert stream.reused == reused
    # What was loaded and went on can be saved over its own file.
    assert session.save(saved) == str(saved)
    assert talker.session(load=saved).tokens == session.tokens
    assert talker.session(load=saved).notes is None
    assert os.listdir(saved.parent) == [saved.name]


def test_another_process_goes_on(talker: Model, saved: Path, device_python: str) -> None:
    prompt = [*PROMPT, *talker.generate(PROMPT, **NEW), 11, 12]
    program = (
        "import json, sys\n"
        "from edgecompile.runtime import open_bundle\n"
        "with open_bundle(sys.argv[1], threads=1) as model:\n"
        "    stream = model.session(load=sys.argv[2]).stream(\n"
        "        json.loads(sys.argv[3]), max_new_tokens=6, do_sample=False, eos=())\n"
        "    print(json.dumps([list(stream), stream.reused]))\n"
    )
    done = subprocess.run(
        [device_python, "-c", program, talker.path, str(saved), json.dumps(prompt)],
        env={**os.environ, "PYTHONPATH": str(Path(talker.path) / "runtime")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [talker.generate(prompt, **NEW), 13]


def test_an_empty_session_and_a_failed_run(talker: Model, tmp_path: Path) -> None:
    path = tmp_path / "empty.session"
    talker.session().save(path)
    session = talker.session(load=path)
    assert session.tokens == [] and session.generate(PROMPT, **NEW)
    session._text._behind = -1  # as in a run
    session.save(path)
    loaded = talker.session(load=path)
    has_states = talker.info["generation"]["kind"] == "recurrent-lm"
    assert len(loaded.tokens) == (8 if has_states else 13)
    assert loaded.generate(PROMPT, **NEW) == talker.generate(PROMPT, **NEW)


def test_a_bound_on_memory_holds_for_what_is_loaded(
    hybrid_saved: tuple[Model, bytes], tmp_path: Path
) -> None:
    model, _ = hybrid_saved
    session = model.session(load=tmp_path / "talk.session", checkpoint_bytes=0)
    said = model.generate(PROMPT, **NEW)
    stream = session.stream([*PROMPT, *said, 11], **NEW)
    assert list(stream) == model.generate([*PROMPT, *said, 11], **NEW) and stream.reused == 13


def change_header(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Another header, and the digest of it."""
    start = len(MAGIC) + 8
    length = int.from_bytes(data[len(MAGIC) : start], "little")
    header = json.loads(data[start : start + length])
    change(header)
    return sign(with_header(data, json.dumps(header).encode()))


def with_header(data: bytes, header: bytes) -> bytes:
    start = len(MAGIC) + 8
    length = int.from_bytes(data[len(MAGIC) : start], "little")
    return MAGIC + len(header).to_bytes(8, "little") + header + data[start + length :]


def sign(data: bytes) -> bytes:
    """The digest at the end made right."""
    return data[:-32] + hashlib.sha256(data[:-32]).digest()


def put(data: bytes, at: int, value: bytes) -> bytes:
    """Other bytes ``at`` (before the digest, where negative), and the digest of them."""
    at = at if at >= 0 else len(data) - 32 + at
    return sign(data[:at] + value + data[at + len(value) :])


def set_key(key: str, value: Any) -> Callable[[bytes], bytes]:
    return lambda data: change_header(data, lambda header: header.update({key: value}))


def first_token(data: bytes) -> int:
    return len(MAGIC) + 8 + int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8], "little")


NAN = np.float32(np.nan).tobytes()
INFINITY = np.float32(-np.inf).tobytes()
ROWS = 13 * 8
HOSTILE: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda data: b"", "isn't a session that this version"),
    (lambda data: data[:10], "isn't a session that this version"),
    (lambda data: b"edgecompile session 2\n" + data[22:], "isn't a session that this version"),
    (lambda data: b"PK\x03\x04" + data, "isn't a session that this version"),
    (lambda data: data[: len(MAGIC) + 3], "is truncated"),
    (lambda data: data[: len(MAGIC) + 20], "is truncated"),
    (lambda data: MAGIC + b"\xff" * 8 + data[30:], "its header has 18446744073709551615 bytes"),
    (lambda data: MAGIC + (8 << 20).to_bytes(8, "little") + data[30:], "is truncated"),
    (lambda data: data[:-1], "is truncated: has "),
    (lambda data: data[: len(data) // 2], "is truncated: has "),
    (lambda data: data + b"\0", "has 1 bytes behind its end"),
    (lambda data: data + data, "bytes behind its end"),
    (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "is damaged: its SHA-256"),
    (lambda data: data[:-40] + bytes(8) + data[-32:], "is damaged: its SHA-256"),
    (lambda data: sign(with_header(data, b"[]")), "must be an object"),
    (lambda data: sign(with_header(data, b"{")), "json-syntax"),
    (lambda data: sign(with_header(data, b'{"tokens": 1, "tokens": 2}')), "occurs twice"),
    (lambda data: sign(with_header(data, b'{"notes": NaN}')), "isn't a JSON number"),
    (lambda data: sign(with_header(data, b"[" * 99999)), "nested deeper"),
    (lambda data: sign(with_header(data, b"{}")), "is of another bundle"),
    (set_key("manifest_sha256", "0" * 64), "is of another bundle"),
    (set_key("manifest_sha256", None), "is of another bundle"),
    (set_key("variant", "x86-64-v9"), "is of the variant 'x86-64-v9', but '"),
    (set_key("tokens", -1), "tokens is -1, must be an integer from 0 to 128"),
    (set_key("tokens", 129), "tokens is 129, must be"),
    (set_key("tokens", 2**62), "must be an integer from 0 to 128"),
    (set_key("tokens", True), "tokens is True, must be"),
    (set_key("tokens", 13.0), "tokens is 13.0, must be"),
    (set_key("tokens", 12), "checkpoints has [13, False] behind 8 tokens"),
    (set_key("tokens", 14), "its checkpoints don't reach its 14 tokens"),
    (set_key("checkpoints", None), "checkpoints must be a list"),
    (set_key("checkpoints", []), "its checkpoints don't reach its 13 tokens"),
    (set_key("checkpoints", [[13, False]]), "bytes behind its end"),
    (set_key("checkpoints", [[8, True], [8, True], [13, False]]), "[8, True] behind 8 tokens"),
    (set_key("checkpoints", [[13, False], [8, True]]), "[8, True] behind 13 tokens"),
    (set_key("checkpoints", [[0, True], [13, False]]), "[0, True] behind 0 tokens"),
    (set_key("checkpoints", [[8, 1], [13, False]]), "[8, 1] behind 0 tokens"),
    (set_key("checkpoints", [[8], [13, False]]), "[8] behind 0 tokens"),
    (set_key("checkpoints", ["8", [13, False]]), "'8' behind 0 tokens"),
    (set_key("checkpoints", [[2**62, True]]), "behind 0 tokens"),
    (set_key("checkpoints", [[x, False] for x in range(1, 14)]), "is truncated: has "),
    (lambda data: put(data, first_token(data), (97).to_bytes(8, "little")), "a token isn't one"),
    (lambda data: put(data, first_token(data), b"\xff" * 8), "a token isn't one"),
    (lambda data: put(data, first_token(data) + ROWS, NAN), "holds NaN or infinity"),
    (lambda data: put(data, first_token(data) + ROWS + 64, INFINITY), "holds NaN or infinity"),
    (lambda data: put(data, -4, NAN), "holds NaN or infinity"),
]


@pytest.mark.parametrize(("change", "text"), HOSTILE, ids=[str(i) for i in range(len(HOSTILE))])
def test_hostile_files_are_refused(
    hybrid_saved: tuple[Model, bytes],
    tmp_path: Path,
    change: Callable[[bytes], bytes],
    text: str,
) -> None:
    model, data = hybrid_saved
    path = tmp_path / "hostile.session"
    path.write_bytes(data)
    assert model.session(load=path).tokens[:8] == PROMPT
    path.write_bytes(change(data))
    with pytest.raises(InputError) as caught:
        model.session(load=path)
    assert text in caught.value.message and caught.value.message.startswith(f"{path}: ")
    assert caught.value.hint is not None


def test_drawn_damage_is_refused(hybrid_saved: tuple[Model, bytes], tmp_path: Path) -> None:
    """Wherever a byte changes, and also where the digest is made right, there is one error or a sound session."""
    model, data = hybrid_saved
    path, random = tmp_path / "drawn.session", np.random.default_rng(6)
    for number in range(200):
        at = int(random.integers(len(data) if number % 2 else first_token(data)))
        changed = data[:at] + bytes([data[at] ^ int(random.integers(1, 256))]) + data[at + 1 :]
        path.write_bytes(changed)
        with pytest.raises(InputError):
            model.session(load=path)
        path.write_bytes(sign(changed))
        try:
            session = model.session(load=path)
        except InputError:
            continue
        assert len(session.generate([*session.tokens, 9], **NEW)) == 6


def test_a_file_of_another_model(
    decoder_bundle: Path, hybrid_saved: tuple[Model, bytes], tmp_path: Path
) -> None:
    with (
        open_bundle(decoder_bundle, warmup=False) as other,
        pytest.raises(InputError, match="is of another bundle") as caught,
    ):
        other.session(load=tmp_path / "talk.session")
    assert repr(hybrid_saved[0].manifest.name) in caught.value.message


def test_sessions_that_no_file_can_hold(hybrid_saved: tuple[Model, bytes]) -> None:
    model, _ = hybrid_saved
    session = model.session()
    behind_source = session._spec._replace(encoder="encoder")
    with pytest.raises(InputError, match="sessions with an encoder can't be saved or loaded"):
        SessionFile(model, behind_source, session._caches)
    session._caches.arrays = {}  # as on a GPU
    with pytest.raises(InputError, match="sessions of a GPU can't be saved or loaded"):
        SessionFile(model, session._spec, session._caches)


def test_what_is_no_file(hybrid_saved: tuple[Model, bytes], tmp_path: Path) -> None:
    model, _ = hybrid_saved
    os.mkfifo(tmp_path / "pipe")
    for path, text in (
        (tmp_path / "none", "can't be opened: No such file"),
        (tmp_path, "isn't a regular file"),
        (tmp_path / "pipe", "isn't a regular file"),
        ("a\0b", "must be the path of a file"),
        (7.5, "must be the path of a file"),
        (["x"], "must be the path of a file"),
    ):
        with pytest.raises(InputError, match=text):
            model.session(load=path)  # type: ignore[arg-type]


def test_what_can_t_be_written(hybrid_saved: tuple[Model, bytes], tmp_path: Path) -> None:
    model, data = hybrid_saved
    session = model.session(load=tmp_path / "talk.session")
    deep: list[Any] = []
    for _ in range(40):
        deep = [deep]
    for notes in ({1j}, float("nan"), object(), deep, 2**70):
        with pytest.raises(InputError, match="must be plain JSON values"):
            session.save(tmp_path / "talk.session", notes)
    for path, text in (
        (tmp_path / "none" / "x", "doesn't exist"),
        (tmp_path, "is a folder"),
        (Path(model.path) / "x", "is in the bundle"),
        (7, "must be the path of a file"),
    ):
        with pytest.raises(InputError, match=text):
            session.save(path)  # type: ignore[arg-type]
    session._caches.arrays["cache_1_key"][3] = np.nan
    with pytest.raises(InputError, match="the caches hold NaN or infinity"):
        session.save(tmp_path / "talk.session")
    assert (tmp_path / "talk.session").read_bytes() == data, "the old file is still there"
    assert sorted(os.listdir(tmp_path)) == ["talk.session"]


def test_a_full_disk(
    hybrid_saved: tuple[Model, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = hybrid_saved
    session = model.session(load=tmp_path / "talk.session")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="can't be written: No space left on device"):
        session.save(tmp_path / "talk.session")
    assert (tmp_path / "talk.session").read_bytes() == data
    assert os.listdir(tmp_path) == ["talk.session"]


def test_logits_of_minus_infinity_are_left_out(
    hybrid_saved: tuple[Model, bytes], tmp_path: Path
) -> None:
    model, _ = hybrid_saved
    session = model.session(load=tmp_path / "talk.session")
    assert session._text.states is not None
    logits = session._text.states.items[0].logits
    assert logits is not None
    logits[3] = -np.inf
    session.save(tmp_path / "talk.session")
    stream = model.session(load=tmp_path / "talk.session").stream(PROMPT, **NEW)
    assert list(stream) == model.generate(PROMPT, **NEW)
