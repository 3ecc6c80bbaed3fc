"""GELU on GPUs in half precision: as near as rounding, and nothing left of erf and tanh."""

from __future__ import annotations

import pytest
import torch

from edgecompile.backends.cuda.lowering.lower import lower_for_gpu
from edgecompile.targets.gpu import GpuFacts

H100 = GpuFacts(90, 132, 227 << 10, 2048, 50 << 20)


class Gelu(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x, approximate=self.kind)


def lowered(kind: str, precision: str, x: torch.Tensor) -> torch.fx.GraphModule:
    program = torch.export.export(
        Gelu(kind), (), {"x": x}, dynamic_shapes={"x": {0: torch.export.Dim.AUTO}}
    )
    module = program.module()
    lower_for_gpu(module, H100, precision)
    return module


@pytest.mark.parametrize("kind", ["none", "tanh"])
@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)]
)
def test_every_value_is_as_near_as_rounding(kind: str, precision: str, dtype: torch.dtype) -> None:
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    x = bits.view(dtype)
    x = x[torch.isfinite(x)].float()
    module = lowered(kind, precision, x)
    names = {str(node.target) for node in module.graph.nodes}
    assert not any(name in text for text in names for name in ("gelu", "erf", "tanh"))
    want = torch.nn.functional.gelu(x.double(), approximate=kind)
    rounded = want.to(dtype).double()
    got = module(x=x).double()
    step = torch.finfo(dtype).eps * want.abs().clamp(min=torch.finfo(torch.float16).tiny)
    # Rounding twice, here of the result and there of what was exact, differs by a step at most.
    assert ((got - rounded).abs() <= 1.01 * step + 2e-6).all()


def test_the_largest_and_what_is_no_number_stay_so() -> None:
    x = torch.tensor([65504.0, float("nan"), -65504.0])
    got = lowered("none", "fp16", x)(x=x)
    assert got[0] == 65504.0 and torch.isnan(got[1]) and abs(got[2]) < 1e-7


def test_float32_keeps_torchs() -> None:
    module = lowered("none", "fp32", torch.linspace(-6, 6, 99))
    assert any("gelu" in str(node.target) for node in module.graph.nodes)
