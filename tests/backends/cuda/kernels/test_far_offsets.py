"""Offsets of our kernels beyond 32 bits, by sizes alone: no memory is filled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from edgecompile.backends.cuda import kernels
from edgecompile.backends.cuda.kernels import attention, convolution
from edgecompile.backends.cuda.kernels import launch as launching
from edgecompile.errors import CompileError


def launched(monkeypatch: pytest.MonkeyPatch, module: Any, run: Any) -> bool:
    """Whether the launch of a module's kernel is a wide one."""
    wide: list[bool] = []
    monkeypatch.setattr(module, "launch", lambda *_, **options: wide.append(options["WIDE"]))
    run()
    (one,) = wide
    return one


@pytest.mark.parametrize(("batch", "wide"), [(2046, False), (2048, True)])
def test_attention_over_sequences_before_their_batch(
    monkeypatch: pytest.MonkeyPatch, batch: int, wide: bool
) -> None:
    x = torch.empty(1024 - 32, batch, 8, 128, device="meta").permute(1, 2, 0, 3)

    def run() -> None:
        tile = 32, 32, 4, 2
        flags = {"CAUSAL": False, "WINDOW": 0, "SOFTCAP": 0.0}
        attention._run(x, x, x, None, None, 1.0, tile, (2, 0, 1), **flags)

    assert launched(monkeypatch, attention, run) is wide


@pytest.mark.parametrize(("length", "wide"), [(1 << 23, False), (1 << 24, True)])
@pytest.mark.parametrize("groups", [1, 64])
def test_taps_far_apart(
    monkeypatch: pytest.MonkeyPatch, length: int, wide: bool, groups: int
) -> None:
    x = torch.empty(1, 64, 3, length, device="meta", dtype=torch.float16)
    w = torch.empty((3, 64) if groups > 1 else (64, 3 * 64), device="meta", dtype=torch.float16)
    function = convolution.CONVOLUTION

    def run() -> None:
        tile = [32, 32, 32, 4, 2, 1]
        geometry = [3, 1], [1, 1], [1, 0, 1, 0], [1, 1]
        function(x, w, None, None, *geometry, groups, 0, tile)

    assert launched(monkeypatch, convolution, run) is wide


def test_what_no_kernel_can_count_is_refused() -> None:
    with pytest.raises(CompileError, match="too large for the GPU kernel attention_kernel"):
        launching.launch(attention.attention_kernel, (1,), reach=(5, 1 << 31))


def test_every_kernel_is_launched_by_one_function() -> None:
    for path in Path(kernels.__file__).parent.glob("*.py"):
        if path.name != "launch.py":
            assert "wrap_triton" not in path.read_text(encoding="utf-8"), path.name
