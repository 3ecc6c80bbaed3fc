"""Kernels that the runtime lacks are found in the generated code, with the modules that call them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from edgecompile.backends.cpu.lowering.lower import lower_graph
from edgecompile.backends.inductor.compat.generation import generate_cpp
from edgecompile.backends.inductor.missing_kernels import (
    dtypes_of_nodes,
    modules_of_nodes,
    refuse_missing_kernels,
)
from edgecompile.errors import MissingKernelError
from edgecompile.models.modules import NamedModule
from edgecompile.targets.profile import load_variant


class Commonest(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x.mode(-1, keepdim=True).values


class Exotic(nn.Module):
    """Two layers that call what has a function in torch's C interface, one whose operator has none."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Commonest(), Commonest()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        draw = torch.multinomial(x.softmax(-1), 1)
        return torch.linalg.qr(x.T @ x)[1] + draw.sum() + torch.topk(x, 3).values.sum()


def test_all_of_it_is_listed_before_anything_is_compiled() -> None:
    example = {"x": torch.randn(9, 16)}
    module = NamedModule(Exotic(), ["x"])
    graph = torch.export.export(module, (), example, strict=False).module()
    lower_graph(graph)
    modules = modules_of_nodes(graph)
    generated = generate_cpp(graph, example, load_variant("x86-64-v3"))
    known = {"ec_aoti_torch_cpu_mm_out", "ec_aoti_torch_cpu_topk"}
    with pytest.raises(MissingKernelError) as caught:
        refuse_missing_kernels(generated.wrapper, modules, Everything(known))
    text = str(caught.value)
    assert "the model calls 3 kernels" in text
    lines = Path(__file__).read_text().splitlines()
    at, drawn, qr = (
        f" at test_missing_kernels.py:{next(i for i, x in enumerate(lines, 1) if word in x)}"
        for word in ("x.mode(", "multinomial(", "qr(x.T")
    )
    layers = f"layers.0 (Commonest){at}, layers.1 (Commonest){at}"
    assert f"  aoti_torch_cpu_mode, 2 times, in {layers}\n" in text
    assert f"  aten.linalg_qr (no C interface), once, in the model (Exotic){qr}" in text
    assert (
        f"aten.multinomial (no C interface), once, in the model (Exotic){drawn}: draws ra" in text
    )
    assert "topk" not in text
    assert str(caught.value.hint).endswith(
        '`backend="torch"` makes a bundle for hosts that have torch'
    )
    # With all that it needs nothing is raised.
    refuse_missing_kernels("aoti_torch_cpu_topk(x);", {}, Everything(known))


class Inverse(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.inv(x)


def test_the_check_of_a_missing_operator_is_no_second_gap() -> None:
    example = {"x": torch.eye(4)}
    graph = torch.export.export(NamedModule(Inverse(), ["x"]), (), example, strict=False).module()
    generated = generate_cpp(graph, example, load_variant("x86-64-v3"))
    # torch checks the result by another call of the same node.
    assert generated.wrapper.count("aoti_torch_proxy_executor_call_function(") > 1
    with pytest.raises(MissingKernelError) as caught:
        refuse_missing_kernels(generated.wrapper, {}, Everything(set()))
    text = str(caught.value)
    assert "the model calls a kernel" in text and "aten.linalg_inv_ex" in text


class Doubles(nn.Module):
    """Products in float64, which the runtime computes in float32 alone; everything else it has."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.double()
        total = (y @ y.T).sum() + torch.bmm(y[None], y.T[None]).sum()
        return total + (x @ x.T).exp().double().sum()


def test_a_kernel_of_another_dtype_is_missing() -> None:
    example = {"x": torch.randn(9, 16)}
    graph = torch.export.export(NamedModule(Doubles(), ["x"]), (), example, strict=False).module()
    lower_graph(graph)
    modules, dtypes = modules_of_nodes(graph), dtypes_of_nodes(graph)
    generated = generate_cpp(graph, example, load_variant("x86-64-v3"))
    with pytest.raises(MissingKernelError) as caught:
        refuse_missing_kernels(
            generated.wrapper,
            modules,
            Everything({"ec_aoti_torch_cpu_mm_out", "ec_aoti_torch_cpu_bmm_out"}),
            dtypes,
        )
    text = str(caught.value)
    assert "the model calls 2 kernels" in text
    line = next(
        i for i, x in enumerate(Path(__file__).read_text().splitlines(), 1) if "torch.bmm(" in x
    )
    for kernel in ("mm", "bmm"):
        at = f"in the model (Doubles) at test_missing_kernels.py:{line}"
        assert f"  aoti_torch_cpu_{kernel}_out of float64, once, {at}" in text


class Everything:
    """The runtime's symbols: the given kernels, and every function that isn't one."""

    def __init__(self, kernels: set[str]) -> None:
        self.kernels = kernels

    def __contains__(self, name: object) -> bool:
        plain = not str(name).startswith(("ec_aoti_torch_cpu_", "ec_aoti_torch_proxy_"))
        return plain or name in self.kernels
