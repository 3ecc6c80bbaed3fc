"""Fixtures of the tests of the backend triton; its GPU is a fake (tests/fake_gpu/fake_cuda.c)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.triton_bundle import DEVICE, TritonBundle, build_fake_driver


@pytest.fixture(scope="session")
def fake_driver_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fake of libcuda, which is no GPU."""
    return build_fake_driver(tmp_path_factory.mktemp("fake-cuda"))


@pytest.fixture
def fake_driver(fake_driver_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCudart]:
    """That fake as EDGECOMPILE_CUDA_DRIVER; the test may leave nothing on it and misuse nothing."""
    monkeypatch.setenv("EDGECOMPILE_CUDA_DRIVER", str(fake_driver_path))
    monkeypatch.setenv("FAKE_CUDART_DEVICE", DEVICE)
    for name in ("FAKE_CUDART_FAIL", "EDGECOMPILE_MODE", "EDGECOMPILE_FALLBACK"):
        monkeypatch.delenv(name, raising=False)
    fake = FakeCudart(fake_driver_path)
    fake.reset()
    yield fake
    live, misuses = fake.live, fake.misuses
    fake.reset()
    assert (live, misuses) == (0, 0)


@pytest.fixture
def triton_bundle(tmp_path: Path) -> TritonBundle:
    """A bundle for that GPU; nothing is written before ``write()``."""
    return TritonBundle(tmp_path / "tiny.ecb")
