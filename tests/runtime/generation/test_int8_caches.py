"""Caches in int8: the tokens of a model whose keys and values are rounded alike, in about a quarter of the bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import DamagedBundleError, InputError, Model, open_bundle
from tests.generative import caches_behind, put_prefix

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from edgecompile.models.cache_rows import dequantize_rows, row_bytes  # noqa: E402

PROMPT = [9, 20, 31, 42, 53, 10, 21, 32]


@pytest.fixture(scope="module")
def loaded() -> Any:
    from tests.zoo.generation_families import load_family

    return load_family("lfm2", cache_precision="int8")


@pytest.fixture(scope="module")
def model(scaled_bundle: Path) -> Iterator[Model]:
    with open_bundle(scaled_bundle, threads=1) as opened:
        yield opened


def test_tokens_are_those_of_transformers_with_rounded_keys_and_values(
    model: Model, loaded: Any
) -> None:
    random = np.random.default_rng(4)
    for length in (1, 2, 11, 24, 25, 70):
        prompt = random.integers(3, 97, length).tolist()
        want = loaded.generation.greedy(prompt, 16)
        assert list(model.generate(prompt, max_new_tokens=16, do_sample=False)) == want


def test_keys_and_values_alone_are_int8(model: Model, loaded: Any) -> None:
    dtypes = {item.name.rpartition("_")[2]: item.dtype for item in model.manifest.inputs[3:]}
    assert dtypes == {"key": "int8", "value": "int8", "conv": "float32"}
    kept = {item.name: item for item in loaded.module.kept}
    for item in model.manifest.inputs[3:]:
        if item.dtype == "int8":
            heads, width = kept[item.name].shape
            assert item.shape == ("context", heads, row_bytes(width))


def test_rows_are_eager_s_rounded_to_the_nearest(model: Model, loaded: Any) -> None:
    from edgecompile.bundle.generation import prefix_caches

    made = replace(loaded.generation, prefix=tuple(PROMPT))
    eager, own = prefix_caches(replace(loaded, generation=made)), caches_behind(model, PROMPT)
    assert len(eager) == len(own)
    at = 8 * len(PROMPT)
    for item in model.manifest.inputs:
        if item.dtype != "int8":
            continue
        shape = (len(PROMPT), *item.shape[1:])
        size = int(np.prod(shape))  # type: ignore[arg-type]
        ours, theirs = (
            dequantize_rows(
                torch.frombuffer(bytearray(x[at : at + size]), dtype=torch.int8).view(shape)
            )
            for x in (own, eager)
        )
        at += size
        # Where float32 itself differs, the one or the other of two neighbours may be the nearest.
        assert (ours == theirs).float().mean() > 0.95
        assert (ours - theirs).abs().max() <= 1.1 * theirs.abs().max() / 127


def test_a_scale_whose_numbers_may_not_be_finite_is_refused(model: Model, tmp_path: Path) -> None:
    session = model.session()
    session.generate(PROMPT, max_new_tokens=6, do_sample=False, eos=())
    path, count = tmp_path / "talk.session", len(session.tokens)
    session.save(path)
    data = path.read_bytes()
    rows = next(x for x in session._caches.arrays.values() if x.dtype == np.int8)
    stored = rows[:count].tobytes()
    assert data.count(stored) == 1
    for wrong in (0x7F80, 0x7FC0, 0xFF80, 0x7F7F, 0x7C00, 0xFC00):
        bad = rows[:count].copy()
        bad[-1, -1, :2] = np.array([wrong], "<u2").view(np.int8)
        changed = data[:-32].replace(stored, bad.tobytes())
        path.write_bytes(changed + hashlib.sha256(changed).digest())
        with pytest.raises(InputError, match="holds NaN or infinity"):
            model.session(load=path)
    bad[-1, -1, :2] = np.array([0x7BFF], "<u2").view(np.int8)
    changed = data[:-32].replace(stored, bad.tobytes())
    path.write_bytes(changed + hashlib.sha256(changed).digest())
    assert model.session(load=path).tokens == session.tokens
    for wrong in (0x7F80, 0x7C00):
        rows[0, 0, :2] = np.array([wrong], "<u2").view(np.int8)
        with pytest.raises(InputError, match="isn't written: the caches hold NaN or infinity"):
            session.save(path)


def test_so_is_one_of_a_prompt_in_the_bundle(
    scaled_bundle: Path, model: Model, tmp_path: Path
) -> None:
    data = bytearray(caches_behind(model, PROMPT))
    data[8 * len(PROMPT) : 8 * len(PROMPT) + 2] = b"\x00\x7c"
    wrong = put_prefix(scaled_bundle, tmp_path / "a.ecb", bytes(data))
    with (
        open_bundle(wrong, threads=1, warmup=False) as opened,
        pytest.raises(DamagedBundleError, match="it holds NaN or infinity"),
    ):
        opened.generate(PROMPT, max_new_tokens=1)


def test_runs_take_int8_and_nothing_else(model: Model) -> None:
    arrays = {name: array[:64] if array.dtype == np.int8 else array
              for name, array in model.session()._caches.arrays.items()}  # fmt: skip
    tokens = {"input_ids": np.array([PROMPT]), "position": np.array([0]), "last": np.array([7])}
    logits = model.run({**tokens, **arrays})["logits"]
    assert np.isfinite(logits).all() and all(array.any() for array in arrays.values())
    floats = {n: x.astype(np.float32) if x.dtype == np.int8 else x for n, x in arrays.items()}
    with pytest.raises(InputError, match="has dtype float32, must be int8"):
        model.run({**tokens, **floats})
