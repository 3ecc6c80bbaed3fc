"""Mutated signatures, some hundred of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.signing.fuzz_signatures import fuzz


def test_what_is_taken_says_the_same(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    taken = fuzz(tmp_path, 600, seed=1)
    assert 0 < taken < 300
