"""Weights in files: the numbers are the same, and memory isn't the process's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from edgecompile.models import mapped
from edgecompile.models.mapped import is_large, to_file, widen


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(mapped, "_LEAST", 1 << 12)
    monkeypatch.setattr(mapped, "_LEAST_OF_ONE", 1 << 10)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def mapped_files() -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "edgecompile-weights-" in line]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_numbers_are_the_same_in_a_file(small_limits: Path, dtype: torch.dtype) -> None:
    tensor = torch.randn(40, 96).to(dtype).t()
    held = to_file(tensor)
    assert held.dtype == torch.float32 and held.is_contiguous()
    assert torch.equal(held, tensor.float())
    assert len(mapped_files()) == 1 and not list(small_limits.iterdir())
    del held
    assert not mapped_files()


def test_a_full_disk_leaves_them_in_memory(
    small_limits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mapped.os, "posix_fallocate", full)
    tensor = torch.randn(40, 96)
    held = to_file(tensor)
    assert torch.equal(held, tensor) and held.data_ptr() != tensor.data_ptr()
    assert not mapped_files() and not list(small_limits.iterdir())


def test_a_large_modules_weights_are_widened_and_stay_shared(small_limits: Path) -> None:
    module = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 50, bias=True)).bfloat16()
    module[1].weight = module[0].weight
    module.register_buffer("table", torch.ones(3, dtype=torch.bfloat16))
    before = {name: weight.float() for name, weight in module.state_dict().items()}
    assert is_large(sum(weight.numel() for weight in module.parameters()))
    widen(module)
    assert module[1].weight is module[0].weight
    assert len(mapped_files()) == 1  # the bias is small
    for name, weight in module.state_dict().items():
        assert weight.dtype == torch.float32 and torch.equal(weight, before[name]), name


def test_a_small_modules_weights_stay_in_memory() -> None:
    module = nn.Linear(64, 64).half()
    assert not is_large(module.weight.numel())
    widen(module)
    assert module.weight.dtype == torch.float32 and not mapped_files()
