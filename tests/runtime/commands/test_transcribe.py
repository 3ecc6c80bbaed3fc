"""Recordings in files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from edgecompile.runtime.base.errors import InputError
from edgecompile.runtime.commands.transcribe import read_wav


def write_wav(path: Path, bits: int, data: bytes) -> str:
    """A WAV file of one channel, also of samples that the module ``wave`` doesn't write."""
    size = (bits + 7) // 8
    form = struct.pack("<HHIIHH", 1, 1, 8000, 8000 * size, size, bits)
    parts = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data))
    path.write_bytes(
        b"RIFF" + struct.pack("<I", 4 + len(parts) + len(data)) + b"WAVE" + parts + data
    )
    return str(path)


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
def test_widths_that_are_read(bits: int, tmp_path: Path) -> None:
    half = (192 if bits == 8 else 1 << (bits - 2)).to_bytes(bits // 8, "little")
    samples, rate = read_wav(write_wav(tmp_path / "a.wav", bits, 3 * half))
    assert rate == 8000
    np.testing.assert_array_equal(samples, np.full(3, 0.5, np.float32))


@pytest.mark.parametrize("bits", [40, 48, 64, 128])
def test_other_widths_are_refused(bits: int, tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", bits, bytes(3 * bits // 8))
    with pytest.raises(InputError, match=f"has {bits} bits a sample, must have 8, 16, 24 or 32"):
        read_wav(path)
