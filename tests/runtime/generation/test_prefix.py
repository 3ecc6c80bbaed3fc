"""A prompt whose caches are in the bundle: texts that begin with it are the same, and don't run it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgecompile.runtime import DamagedBundleError, open_bundle
from tests.generative import caches_behind, put_prefix

pytest.importorskip("torch")

PROMPT = [9, 20, 31, 42, 53, 10, 21, 32]
NEW = {"max_new_tokens": 6, "do_sample": False, "eos": ()}


@pytest.fixture(params=["decoder_bundle", "hybrid_bundle", "halves_bundle", "scaled_bundle"])
def whole(request: pytest.FixtureRequest) -> Path:
    """A bundle without a prompt."""
    if request.param != "decoder_bundle":
        pytest.importorskip("transformers")
    found: Path = request.getfixturevalue(request.param)
    return found


def test_texts_are_the_same_and_begin_behind_the_prompt(whole: Path, tmp_path: Path) -> None:
    with open_bundle(whole, threads=1, warmup=False) as plain:
        output = put_prefix(whole, tmp_path / "a.ecb", caches_behind(plain, PROMPT))
        has_states = plain.info["generation"]["kind"] == "recurrent-lm"
        with open_bundle(output, threads=1, warmup=False) as model:
            session = model.session()
            for prompt, reused, gained in (
                ([*PROMPT, 11, 12], 8, 0),
                ([*PROMPT, 11, 12, 40], 10, 2),  # what the session holds is longer
                ([*PROMPT[:5], 4, 4, 4], 0 if has_states else 5, 0),
                ([7, *PROMPT], 0, 0),
                (PROMPT, 0 if has_states else 7, 0),
                ([*PROMPT, 30], 8, 0),
            ):
                assert session.count_gained(prompt) == gained
                stream = session.stream(prompt, **NEW)
                assert list(stream) == plain.generate(prompt, **NEW)
                assert stream.reused == reused
            # Without memory for checkpoints, and in a session of one call.
            assert model.generate([*PROMPT, 3], **NEW) == plain.generate([*PROMPT, 3], **NEW)
            # No session changes what the next one begins with.
            stream = model.session().stream([*PROMPT, 30], **NEW)
            assert list(stream) == plain.generate([*PROMPT, 30], **NEW) and stream.reused == 8


def test_a_file_that_is_wrong_is_refused(whole: Path, tmp_path: Path) -> None:
    with open_bundle(whole, threads=1, warmup=False) as plain:
        sound = caches_behind(plain, PROMPT)
    nan = b"\xc0\x7f" * 2  # as one float32, as two of bfloat16, and as a scale
    huge = np.array([1 << 40], "<i8").tobytes()
    for number, (data, text) in enumerate(
        (
            (sound[:-1], "bytes aren't those of"),
            (b"", "bytes aren't those of"),
            (sound + bytes(4), "bytes aren't those of"),
            (huge + sound[8:], "isn't one of the model's"),
            (b"\xff" * 8 + sound[8:], "isn't one of the model's"),
            (sound[:-4] + nan, "NaN or infinity"),
            (sound[:64] + nan + sound[68:], "NaN or infinity"),
        )
    ):
        output = put_prefix(whole, tmp_path / f"{number}.ecb", data)
        with (
            open_bundle(output, threads=1, warmup=False) as model,
            pytest.raises(DamagedBundleError, match=text),
        ):
            model.session()


def test_eager_leaves_what_the_programs_do(hybrid_bundle: Path) -> None:
    pytest.importorskip("transformers")
    from edgecompile.bundle.generation import prefix_caches
    from tests.zoo.generation_families import load_family

    loaded = load_family("qwen3_5")
    made = replace(loaded.generation, prefix=tuple(PROMPT))
    data = prefix_caches(replace(loaded, generation=made))
    with open_bundle(hybrid_bundle, threads=1, warmup=False) as model:
        own = caches_behind(model, PROMPT)
    assert data[:64] == own[:64]
    eager, programs = (np.frombuffer(each[64:], "<f4") for each in (data, own))
    assert np.abs(eager - programs).max() < 1e-4 * np.abs(eager).max()
