"""A generative bundle through the C runtime: caches changed in place, rows checked as in Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import EdgecompileError
from tests.native.c_runtime import c_library
from tests.native.c_runtime.c_library import CLibrary, CLibraryError, CModel

pytest.importorskip("torch")
from tests.factories import decoder as d


@pytest.fixture(scope="module")
def model(decoder_bundle: Path) -> Iterator[CModel]:
    library = CLibrary(c_library.build_library())
    # Warming up begins at row 0: any other value would lie outside the bucket of one token.
    with library.open(decoder_bundle, threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def python_model(decoder_bundle: Path) -> Iterator[Any]:
    with open_bundle(decoder_bundle, threads=1, warmup=False) as opened:
        yield opened


def inputs(length: int, position: int, last: int, rows: int = 64) -> dict[str, Any]:
    random = np.random.RandomState(length)
    made: dict[str, Any] = {
        "input_ids": random.randint(0, d.VOCABULARY, (1, length)),
        "position": np.array([position]),
        "last": np.array([last]),
    }
    for name in d.CACHES:
        made[name] = random.standard_normal((rows, d.KV_HEADS, d.HEAD_DIM)).astype(np.float32)
    return made


def test_description_has_the_generation(model: CModel, python_model: Any) -> None:
    assert model.describe()["generation"] == python_model.info["generation"]


@pytest.mark.parametrize("length", [1, 5, 16, 20])
def test_caches_are_changed_in_place(model: CModel, python_model: Any, length: int) -> None:
    ours, theirs = inputs(length, 30, length - 1), inputs(length, 30, length - 1)
    got, want = model.run(ours), python_model.run(theirs)
    assert got["logits"].tobytes() == want["logits"].tobytes()
    fresh = inputs(length, 30, length - 1)
    for name in d.CACHES:
        assert ours[name].tobytes() == theirs[name].tobytes() != fresh[name].tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_narrow_caches_are_changed_in_place(
    library: CLibrary, request: pytest.FixtureRequest, dtype: str
) -> None:
    import torch

    from edgecompile.models.cache_rows import quantize_rows, row_width

    bundle = request.getfixturevalue("halves_bundle" if dtype == "bfloat16" else "scaled_bundle")
    random = np.random.RandomState(6)
    with (
        library.open(bundle, threads=1) as model,
        open_bundle(bundle, threads=1, warmup=False) as python_model,
    ):
        made: dict[str, Any] = {
            "input_ids": random.randint(3, 97, (1, 5)),
            "position": np.array([30]),
            "last": np.array([4]),
        }
        for item in python_model.manifest.inputs[3:]:
            shape = [64 if size == "context" else size for size in item.shape]
            if item.dtype == "int8":
                shape[-1] = row_width(shape[-1])
            values = random.standard_normal(shape).astype(np.float32)
            halves = (values.view(np.uint32) >> 16).astype(np.uint16)
            rows = quantize_rows(torch.from_numpy(values)).numpy()
            made[item.name] = {"bfloat16": halves, "int8": rows, "float32": values}[item.dtype]
        ours, theirs = ({n: x.copy() for n, x in made.items()} for _ in range(2))
        got, want = model.run(ours), python_model.run(theirs)
        assert got["logits"].tobytes() == want["logits"].tobytes()
        for name in python_model.manifest.generation.caches:
            assert ours[name].tobytes() == theirs[name].tobytes() != made[name].tobytes()
        narrow = (np.uint16, np.int8)
        floats = {n: x.astype(np.float32) if x.dtype in narrow else x for n, x in made.items()}
        with pytest.raises(CLibraryError, match=f"has dtype float32, must be {dtype}"):
            model.run(floats)


@pytest.mark.parametrize(
    ("length", "position", "last"),
    [(1, 64, 0), (1, -1, 0), (5, 49, 0), (16, 49, 0), (17, 48, 0), (5, 0, 5), (5, 0, -1), (1, 63, 0),
     (5, 48, 4), (17, 47, 16), (5, 2**63 - 1, 0), (5, -(2**63), 2**63 - 1)],
)  # fmt: skip
def test_rows_are_checked_as_in_python(
    model: CModel, python_model: Any, length: int, position: int, last: int
) -> None:
    statuses = []
    for run in (model.run, python_model.run):
        try:
            run(inputs(length, position, last))
            statuses.append(0)
        except CLibraryError as error:
            statuses.append(error.status)
        except EdgecompileError as error:
            statuses.append(error.exit_code)
    assert statuses[0] == statuses[1] in (0, c_library.INPUT)


def test_a_text_of_the_models_own(model: CModel, python_model: Any) -> None:
    """Without caches: the rows that earlier runs left, as a session of Python's has them."""
    prompt = [int(x) for x in np.random.RandomState(3).randint(1, d.VOCABULARY, 20)]
    wanted = python_model.generate(prompt, max_new_tokens=60, eos=())
    for turn in range(2):
        made: list[int] = []
        row = 0
        while len(made) < len(wanted):
            tokens = made[-1:] if made else prompt
            given = inputs(len(tokens), row, len(tokens) - 1)
            given["input_ids"] = np.array([tokens])
            own = {name: array for name, array in given.items() if name not in d.CACHES}
            made.append(int(model.run(own)["logits"].argmax()))
            row += len(tokens)
        assert made == wanted, turn
    with pytest.raises(CLibraryError, match=f"100 doesn't follow the {row} rows"):
        model.run({**own, "position": np.array([100])})


def test_states_of_the_models_own_text_cant_go_back(hybrid_bundle: Path) -> None:
    prompt = [int(x) for x in np.random.RandomState(5).randint(3, 97, 8)]
    with open_bundle(hybrid_bundle, threads=1, warmup=False) as python_model:
        wanted = python_model.generate(prompt, max_new_tokens=12, eos=(), do_sample=False)
    with CLibrary(c_library.build_library()).open(hybrid_bundle, threads=1) as model:

        def run(tokens: list[int], position: int, last: int) -> int:
            given = {
                "input_ids": np.array([tokens]),
                "position": np.array([position]),
                "last": np.array([last]),
            }
            return int(model.run(given)["logits"].argmax())

        for _ in range(2):
            # Tokens behind the last one that counts don't belong to the text.
            made, row = [run([*prompt, 5, 5], 0, len(prompt) - 1)], len(prompt)
            while len(made) < len(wanted):
                made.append(run(made[-1:], row, 0))
                row += 1
            assert made == wanted
        with pytest.raises(CLibraryError, match=f"{row - 1} isn't behind the {row} tokens"):
            run([5], row - 1, 0)
        with pytest.raises(CLibraryError, match=f"{row + 1} doesn't follow the {row} rows"):
            run([5], row + 1, 0)
        assert run(prompt, 0, len(prompt) - 1) == wanted[0]


def test_caches_that_overlap_or_lie_askew_are_refused(model: CModel) -> None:
    given = inputs(3, 0, 0)
    given["cache_1_key"] = given["cache_0_key"]
    with pytest.raises(CLibraryError, match="cache_1_key: overlaps another input"):
        model.run(given)
    given = inputs(3, 0, 0)
    size = given["cache_0_key"].nbytes
    askew = np.zeros(size + 1, np.uint8)[1:].view(np.float32)
    given["cache_0_key"] = askew.reshape(given["cache_0_key"].shape)
    with pytest.raises(CLibraryError, match="cache_0_key: isn't aligned"):
        model.run(given)
