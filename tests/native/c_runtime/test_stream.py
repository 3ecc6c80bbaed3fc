"""Streams of the C runtime: the same answers as Python's, and the same refusals."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgecompile.runtime.model.model import Model
from edgecompile.runtime.model.open_bundle import open_bundle
from tests.native.c_runtime.c_library import (
    CLOSED,
    INPUT,
    OUTSIDE,
    CLibrary,
    CLibraryError,
    CModel,
    CStream,
    read_outputs,
)
from tests.runtime.bundles import change_libraries

CHUNKS = (1, 7, 8, 24, 3, 15, 1, 1)
THREADS, RUNS = 4, 200


@pytest.fixture(name="path", scope="module")
def copy_bundle(stateful_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With libraries of their own content: those that Python loads aren't these."""
    folder = tmp_path_factory.mktemp("stream") / "stateful.ecb"
    shutil.copytree(stateful_bundle, folder)
    change_libraries(folder)
    return folder


@pytest.fixture(name="model", scope="module")
def open_model(library: CLibrary, path: Path) -> Iterator[CModel]:
    with library.open(path) as model:
        yield model


@pytest.fixture(name="python_model", scope="module")
def open_python(path: Path) -> Iterator[Model]:
    with open_bundle(path) as model:
        yield model


def chunk(count: int, seed: int = 0) -> dict[str, npt.NDArray[Any]]:
    return {"x": np.random.default_rng([seed, count]).standard_normal((1, count, 4), np.float32)}


def refused(status: int, text: str, call: Any, *arguments: Any) -> None:
    with pytest.raises(CLibraryError) as caught:
        call(*arguments)
    assert caught.value.status == status and text in caught.value.text


def test_answers_are_pythons(model: CModel, python_model: Model) -> None:
    stream, theirs, other = CStream(model), python_model.stream(), CStream(model)
    assert model.describe()["state"] == python_model.info["state"]
    for begun in (False, True):
        if begun:
            stream.reset()
            theirs.reset()
        for number, count in enumerate(CHUNKS):
            inputs = chunk(count, number)
            other.run(chunk(count, 99))  # has a state of its own
            got, want = stream.run(inputs), theirs.run(inputs)
            assert list(got) == list(want) == ["speech"]
            assert got["speech"].tobytes() == want["speech"].tobytes()
    stream.close()
    other.close()


def test_outputs_stay_while_the_stream_goes_on(library: CLibrary, path: Path) -> None:
    with library.open(path) as model:
        stream = CStream(model)
        kept = stream.run_kept(chunk(3))
        before = read_outputs(kept)["speech"].copy()
        for count in CHUNKS:
            stream.run(chunk(count))
        stream.reset()
        stream.close()
    np.testing.assert_array_equal(read_outputs(kept)["speech"], before)
    library.c.ecr_outputs_free(kept)


def test_what_is_wrong_is_refused_and_changes_no_state(
    model: CModel, python_model: Model, library: CLibrary
) -> None:
    stream, theirs = CStream(model), python_model.stream()
    stream.run(chunk(3))
    theirs.run(chunk(3))
    refused(INPUT, "input h: is a state", stream.run, {**chunk(3), **theirs.state})
    refused(INPUT, "x: is missing", stream.run, {})
    refused(OUTSIDE, "length 25", stream.run, chunk(25))
    status = library.c.ecr_stream_run(stream.handle, None, 1, None)
    assert status == INPUT and b"outputs is a null pointer" in library.c.ecr_last_error()
    status = library.c.ecr_stream_open(model.handle, None)
    assert status == INPUT and b"stream is a null pointer" in library.c.ecr_last_error()
    got = stream.run(chunk(5))["speech"]
    assert got.tobytes() == theirs.run(chunk(5))["speech"].tobytes()
    stream.close()
    stream.close()
    refused(CLOSED, "the stream is closed", stream.run, chunk(3))
    refused(CLOSED, "the stream is closed", stream.reset)


def test_models_without_state_and_closed_ones(
    library: CLibrary, path: Path, tiny_bundle: Path
) -> None:
    with library.open(tiny_bundle) as plain:
        refused(INPUT, "no state to keep", CStream, plain)
    with library.open(path) as model:
        stream = CStream(model)
    refused(CLOSED, "the model is closed", stream.run, chunk(3))
    stream.reset()
    stream.close()
    refused(CLOSED, "the model is closed", CStream, model)


def test_no_run_of_threads_that_share_a_stream_is_lost(model: CModel, python_model: Model) -> None:
    """Each is refused or done whole: as many equal chunks are behind it as were taken."""
    stream, theirs = CStream(model), python_model.stream()

    def work(_: int) -> int:
        done = 0
        for _ in range(RUNS):
            try:
                stream.run(chunk(2))
                done += 1
            except CLibraryError as error:
                assert error.status == INPUT and "by another thread" in error.text
        return done

    with ThreadPoolExecutor(THREADS) as pool:
        total = sum(pool.map(work, range(THREADS)))
    assert total > 0
    for _ in range(total):
        theirs.run(chunk(2))
    got, want = stream.run(chunk(5)), theirs.run(chunk(5))
    assert got["speech"].tobytes() == want["speech"].tobytes()
    stream.close()
