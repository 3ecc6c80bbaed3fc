"""A bundle of an engine on the fakes of TensorRT and CUDA, before and after it was finished."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgecompile.runtime.finish.finish import finish_bundle
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.bundles import GpuBundle
from tests.fake_gpu.kept import make_once


@pytest.fixture
def unfinished(tmp_path: Path) -> str:
    return GpuBundle(tmp_path / "tiny.ecb").write()


@pytest.fixture
def finished(fake_device: FakeCudart, unfinished: str, tmp_path: Path) -> str:
    def finish() -> None:
        assert finish_bundle(unfinished)["ok"]

    # The bundle and the device are always the same ones.
    make_once(tmp_path.parent / "finished", [tmp_path / "cache"], finish)
    return unfinished
