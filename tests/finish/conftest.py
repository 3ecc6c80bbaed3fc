"""Fixtures of the tests of ``finish``, on FAKES of TensorRT and CUDA (tests/fake_gpu)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_gpu.rig import Rig


@pytest.fixture
def rig(tmp_path: Path, fake_cudart_path: Path) -> Rig:
    """A fake device with nothing in its cache."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    return Rig(tmp_path, fake_cudart_path)
