"""Generation with states of a fixed size: transformers' tokens, and texts that begin anew or go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from edgecompile.models.loaded import LoadedModel
from edgecompile.runtime import InputError, Model, open_bundle
from tests.zoo.generation_families import LONGEST_RUN, load_family


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_family("qwen3_5")


@pytest.fixture(scope="module")
def model(hybrid_bundle: Path) -> Iterator[Model]:
    with open_bundle(hybrid_bundle, threads=1) as opened:
        yield opened


def expected(loaded: LoadedModel, prompt: list[int], most: int = 10) -> list[int]:
    assert loaded.generation is not None
    return loaded.generation.greedy(prompt, most)


def draw(length: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(length).integers(3, 97, length).tolist()
    return tokens


def test_tokens_are_those_of_transformers(model: Model, loaded: LoadedModel) -> None:
    # One token, padded ones, a whole run, and several runs.
    for length in (1, 2, 9, LONGEST_RUN, LONGEST_RUN + 1, 70):
        prompt = draw(length)
        assert model.generate(prompt, max_new_tokens=10, do_sample=False) == expected(
            loaded, prompt
        )


def test_a_session_goes_on_or_begins_anew(model: Model, loaded: LoadedModel) -> None:
    session, text = model.session(), draw(8)
    for addition, reused in (([], 0), ([5, 6], 17), ([7], 29)):
        text = [*text, *addition]
        stream = session.stream(text, max_new_tokens=10, do_sample=False, eos=())
        tokens = list(stream)
        want = expected(loaded, text)
        assert tokens[: len(want)] == want
        assert stream.reused == reused
        # The last token was made, but not run.
        text = [*text, *tokens]
    # An edited text goes back to the end of the second prompt, the same one again to its own, another to nothing.
    edited = [*text[:28], 9, 9]
    for prompt, reused in ((edited, 20), (edited, 30), (draw(3), 0)):
        stream = session.stream(prompt, max_new_tokens=10, do_sample=False)
        assert list(stream) == expected(loaded, prompt)
        assert stream.reused == reused


def test_a_run_that_fails_leaves_no_states_behind(
    model: Model, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, prompt = model.session(), draw(5)
    stream = session.stream(prompt, max_new_tokens=10, do_sample=False)
    first = [next(stream), next(stream)]
    run = session._bundle.run_bound

    def interrupted(*arguments: Any) -> None:
        run(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session._bundle, "run_bound", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(stream)
    with pytest.raises(InputError, match="a run of this text failed, and its states are lost"):
        next(stream)
    again = session.stream([*prompt, *first[:1]], max_new_tokens=9, do_sample=False)
    # The end of the prompt was kept before.
    assert list(again) == expected(loaded, prompt)[1:] and again.reused == 5


def test_states_are_the_callers_memory(model: Model, loaded: LoadedModel) -> None:
    names = [spec.name for spec in loaded.inputs if spec.in_place]
    example = loaded.make_example({"length": 5, "context": 64}, seed=2)
    inputs = {name: tensor.numpy() for name, tensor in example.items()}
    before = {name: inputs[name].copy() for name in names}
    model.run(inputs)
    assert all((inputs[name] != before[name]).any() for name in names)
    inputs["cache_0_conv"].flags.writeable = False
    with pytest.raises(InputError, match="cache_0_conv: is read-only; the model changes it"):
        model.run(inputs)
    inputs["cache_0_conv"] = inputs["cache_1_key"].reshape(-1)[:256].reshape(64, 4)
    with pytest.raises(InputError, match="overlaps another input"):
        model.run(inputs)
    inputs["cache_0_conv"] = np.zeros((64, 3), np.float32)
    with pytest.raises(InputError, match="cache_0_conv"):
        model.run(inputs)
