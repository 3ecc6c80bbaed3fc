"""Writes at repeated indices: right at any number of threads, and a race is seen by verification."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgecompile
from edgecompile.backends.inductor.compat import generation
from edgecompile.errors import VerificationError
from edgecompile.runtime import open_bundle
from tests.factories import writes

pytestmark = pytest.mark.slow


def build(output: Path) -> None:
    edgecompile.build(
        f"{writes.__file__}:spec",
        lengths=[500, 1000, 2000, 4000],
        target="cpu-x86-64-v3",
        output=output,
        quick=True,
    )


def test_a_race_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "ordered_writes", nullcontext)
    with pytest.raises(VerificationError):
        build(tmp_path / "raced.ecb")


def test_the_last_write_wins(tmp_path: Path) -> None:
    build(tmp_path / "sparse.ecb")
    random, parameters = np.random.default_rng(0), writes.spec()["module"].weights
    weights = parameters.detach().numpy()
    with open_bundle(tmp_path / "sparse.ecb") as model:
        for length in (1, 30, 4096):
            ids = random.choice(random.integers(0, writes.VOCABULARY, 10), (1, length))
            wanted: Any = np.zeros((1, writes.VOCABULARY), np.float32)
            for place, weight in zip(ids[0], weights, strict=False):
                wanted[0, place] = np.log1p(weight + place / writes.VOCABULARY)
            for threads in (1, 2, 4):
                for _ in range(20):
                    (got,) = model.run({"ids": ids}, threads=threads).values()
                    np.testing.assert_allclose(got, wanted, rtol=1e-5)
