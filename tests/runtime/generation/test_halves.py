"""Caches in bfloat16: the tokens of a model whose keys and values are rounded alike, in half of the bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import InputError, Model, open_bundle
from edgecompile.runtime.generation.session import Session
from tests.generative import caches_behind

pytest.importorskip("transformers")

PROMPT = [9, 20, 31, 42, 53, 10, 21, 32]


@pytest.fixture(scope="module")
def loaded() -> Any:
    from tests.zoo.generation_families import load_family

    return load_family("lfm2", cache_precision="bf16")


@pytest.fixture(scope="module")
def model(halves_bundle: Path) -> Iterator[Model]:
    with open_bundle(halves_bundle, threads=1) as opened:
        yield opened


def caches_of(session: Session) -> dict[str, np.ndarray]:
    return session._caches.arrays


def widen(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_tokens_are_those_of_transformers_with_rounded_keys_and_values(
    model: Model, loaded: Any
) -> None:
    random = np.random.default_rng(4)
    for length in (1, 2, 11, 24, 25, 70):
        prompt = random.integers(3, 97, length).tolist()
        want = loaded.generation.greedy(prompt, 16)
        assert list(model.generate(prompt, max_new_tokens=16, do_sample=False)) == want


def test_keys_and_values_alone_are_bfloat16(model: Model) -> None:
    dtypes = {item.name.rpartition("_")[2]: item.dtype for item in model.manifest.inputs[3:]}
    assert dtypes == {"key": "bfloat16", "value": "bfloat16", "conv": "float32"}
    session = model.session()
    kinds = {
        name.rpartition("_")[2]: array.dtype.name for name, array in caches_of(session).items()
    }
    assert kinds == {"key": "uint16", "value": "uint16", "conv": "float32"}


def test_rows_are_eager_s_rounded_to_the_nearest(model: Model, loaded: Any) -> None:
    from edgecompile.bundle.generation import prefix_caches

    made = replace(loaded.generation, prefix=tuple(PROMPT))
    eager, own = prefix_caches(replace(loaded, generation=made)), caches_behind(model, PROMPT)
    assert len(eager) == len(own)
    rows = [x for x in model.manifest.inputs if x.dtype == "bfloat16"]
    widths = [int(np.prod(x.shape[1:])) for x in rows]  # type: ignore[arg-type]
    size = 2 * len(PROMPT) * sum(widths)
    begin = 8 * len(PROMPT)
    ours, theirs = (np.frombuffer(x[begin : begin + size], "<u2") for x in (own, eager))
    # Where float32 itself differs, the one or the other of two neighbours may be the nearest.
    assert (ours == theirs).mean() > 0.99
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1


def test_a_file_of_floats_is_refused(model: Model, tmp_path: Path) -> None:
    session = model.session()
    session.generate(PROMPT, max_new_tokens=6, do_sample=False, eos=())
    path = tmp_path / "talk.session"
    session.save(path)
    count, data = len(session.tokens), path.read_bytes()
    rows = [array[:count] for array in caches_of(session).values() if array.dtype == np.uint16]
    stored = b"".join(x.tobytes() for x in rows)
    assert data.count(stored) == 1 and len(stored) == 2 * sum(x.size for x in rows)
    floats = data[:-32].replace(stored, b"".join(widen(x).tobytes() for x in rows))
    path.write_bytes(floats + hashlib.sha256(floats).digest())
    with pytest.raises(InputError, match=f"has {len(stored)} bytes behind its end"):
        model.session(load=path)


def test_runs_take_the_bits_and_nothing_else(model: Model) -> None:
    session = model.session()
    arrays = {name: array[:64] if array.dtype == np.uint16 else array
              for name, array in caches_of(session).items()}  # fmt: skip
    tokens = {"input_ids": np.array([PROMPT]), "position": np.array([0]), "last": np.array([7])}
    logits = model.run({**tokens, **arrays})["logits"]
    assert np.isfinite(logits).all() and all(array.any() for array in arrays.values())
    floats = {name: widen(x) if x.dtype == np.uint16 else x for name, x in arrays.items()}
    with pytest.raises(InputError, match="has dtype float32, must be uint16"):
        model.run({**tokens, **floats})
