"""A stream of runs keeps the state: chunks of any length give what one long run of eager gives."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from edgecompile.runtime.base.errors import (
    CopyError,
    InputError,
    ModelClosedError,
    OutsideBucketsError,
)
from edgecompile.runtime.commands.selftest import run_selftest
from edgecompile.runtime.model.model import Model
from edgecompile.runtime.model.open_bundle import open_bundle
from tests.factories import stateful

Arrays = dict[str, npt.NDArray[Any]]
#: Chunks for both buckets, their smallest and largest ones among them.
CHUNKS = (1, 7, 8, 24, 3, 15, 1, 1)


@pytest.fixture(name="model", scope="module")
def open_model(stateful_bundle: Path) -> Iterator[Model]:
    with open_bundle(stateful_bundle) as model:
        yield model


def frames(count: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((1, count, 4)).astype(np.float32)


def chunks(x: npt.NDArray[np.float32]) -> list[Arrays]:
    ends = np.cumsum(CHUNKS)
    return [{"x": x[:, end - count : end].copy()} for end, count in zip(ends, CHUNKS, strict=True)]


def eager(x: npt.NDArray[np.float32]) -> Arrays:
    """One run over everything, from the start."""
    spec = stateful.make()
    names = ("speech", "h_next", "past_next", "frames_next")
    with torch.no_grad():
        made = spec.module.eval()(
            torch.from_numpy(x), stateful.start(), torch.zeros(1, 2, 4), torch.zeros(1).long()
        )
    return {name: tensor.numpy() for name, tensor in zip(names, made, strict=True)}


def test_chunks_give_what_one_long_run_of_eager_gives(model: Model) -> None:
    x = frames(sum(CHUNKS))
    want = eager(x)
    stream, another = model.stream(), model.stream()
    parts = []
    for number, inputs in enumerate(chunks(x)):
        outputs = (stream if number % 2 else stream.run)(inputs)
        another(chunks(frames(sum(CHUNKS), 1))[number])  # has a state of its own
        assert list(outputs) == ["speech"]
        parts.append(outputs["speech"])
    np.testing.assert_allclose(np.concatenate(parts, 1), want["speech"], atol=2e-6)
    state = stream.state
    for name in ("h", "past", "frames"):
        np.testing.assert_allclose(state[name], want[f"{name}_next"], atol=2e-6)
    assert int(another.state["frames"][0]) == sum(CHUNKS)
    assert stream.state["h"].tolist() != another.state["h"].tolist()


def test_it_begins_again_and_goes_on_from_a_state(model: Model) -> None:
    first, second = chunks(frames(sum(CHUNKS)))[:2]
    stream = model.stream()
    np.testing.assert_array_equal(stream.state["h"], stateful.start())
    once, kept = stream(first), stream.state
    twice = stream(second)
    stream.reset()
    np.testing.assert_array_equal(stream(first)["speech"], once["speech"])
    stream.reset(kept)
    kept["h"][:] = 9  # it has a copy
    np.testing.assert_array_equal(stream(second)["speech"], twice["speech"])
    stream.reset({**stream.state, "h": np.zeros((1, 1, 9), np.float32)})
    with pytest.raises(InputError, match=r"h: dimension 2 has size 9, must be 8"):
        stream(first)
    for wrong in ({"h": kept["h"]}, {**kept, "x": kept["h"]}, [1]):
        with pytest.raises(InputError, match="an array for each of h, past, frames and nothing"):
            stream.reset(wrong)  # type: ignore[arg-type]


def test_the_next_run_reads_the_state_where_it_was_written(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, made = [], []
    run = model.run

    def watched(inputs: Any, **how: Any) -> Arrays:
        given.append({name: inputs[name] for name in ("h", "past", "frames")})
        outputs = run(inputs, **how)
        made.append({name: outputs[f"{name}_next"] for name in given[-1]})
        return outputs

    monkeypatch.setattr(model, "run", watched)
    stream = model.stream()
    for inputs in chunks(frames(sum(CHUNKS))):
        stream(inputs)
    for before, after in zip(made, given[1:], strict=False):
        assert all(after[name] is before[name] for name in before)
        assert all(array.flags.c_contiguous for array in after.values())  # so nothing is converted


def test_a_state_may_be_given_without_a_stream(model: Model) -> None:
    first, second = chunks(frames(sum(CHUNKS)))[:2]
    stream = model.stream()
    outputs = model.run({**first, **stream.state})
    assert outputs["speech"].tobytes() == stream(first)["speech"].tobytes()
    state = {name: outputs[f"{name}_next"] for name in stream.state}
    assert model.run({**second, **state})["speech"].tobytes() == stream(second)["speech"].tobytes()
    with pytest.raises(InputError, match="h: is missing"):
        model.run(first)


def test_what_is_wrong_is_refused_and_changes_no_state(model: Model) -> None:
    stream = model.stream()
    good = chunks(frames(sum(CHUNKS)))
    stream(good[0])
    before = stream.state
    with pytest.raises(InputError, match="h: is a state, which the stream keeps"):
        stream({**good[1], "h": before["h"]})
    with pytest.raises(OutsideBucketsError):
        stream({"x": frames(25)})
    with pytest.raises(InputError, match="x: is missing"):
        stream({})
    with pytest.raises(InputError, match="must be a mapping"):
        stream([1])  # type: ignore[arg-type]
    with pytest.raises(CopyError):
        stream.__reduce_ex__(2)
    after = stream.state
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_second_thread_is_refused_meanwhile(model: Model) -> None:
    stream = model.stream()
    (inputs, *_) = chunks(frames(sum(CHUNKS)))
    caught: list[Exception] = []

    def meddle() -> None:
        for call in (lambda: stream(inputs), stream.reset, lambda: stream.state):
            try:
                call()
            except InputError as error:
                caught.append(error)

    class Meddling(dict):  # type: ignore[type-arg]
        def __contains__(self, name: object) -> bool:  # asked while the stream is in use
            if not caught:
                thread = threading.Thread(target=meddle)
                thread.start()
                thread.join()
            return super().__contains__(name)

    stream(Meddling(inputs))
    assert len(caught) == 3 and all("by another thread" in str(error) for error in caught)
    stream(inputs)


def test_models_without_state_and_closed_ones(native_bundle: str, stateful_bundle: Path) -> None:
    with open_bundle(native_bundle) as plain, pytest.raises(InputError, match="no state to keep"):
        plain.stream()
    with open_bundle(stateful_bundle) as model:
        stream = model.stream()
        assert [item["input"] for item in model.info["state"]] == ["h", "past", "frames"]
    with pytest.raises(ModelClosedError):
        stream({"x": frames(3)})


def test_the_self_test_repeats_the_stream(stateful_bundle: Path, tmp_path: Path) -> None:
    report = run_selftest(str(stateful_bundle))
    results = {item["case"]: item for item in report["cases"]}
    assert report["ok"]
    assert [name for name in results if name.startswith("stream-")] == [
        f"stream-{number}" for number in range(6)
    ]
    assert {results[f"stream-{number}"]["bucket"] for number in range(6)} == {0, 1}
    # Each vector alone is right, but they aren't one stream any more.
    cases = tmp_path / "cases"
    cases.mkdir()
    golden = json.loads((stateful_bundle / "manifest.json").read_text())["golden"]
    for item in golden:
        number = item["case"].partition("-")[2]
        name = f"step-{5 - int(number)}" if number else item["case"]
        target = cases / f"{item['bucket']}-{name}.npz"
        target.write_bytes((stateful_bundle / item["file"]).read_bytes())
    report = run_selftest(str(stateful_bundle), cases=str(cases))
    failed = {item["case"] for item in report["cases"] if not item["ok"]}
    assert not report["ok"] and {"stream-0", "stream-1"} <= failed
    assert all(name.startswith("stream-") for name in failed)
