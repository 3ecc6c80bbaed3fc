"""A model of elementwise functions and reductions: what generated kernels do beside matrix products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 13  # no multiple of any vector's width


class Functions(nn.Module):
    """x [L, 13] in (-3, 3) through functions that torch's vector headers take from Sleef, others
    that they compute themselves, and reductions; one output [L, 13] or [L] for each."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        unit, positive, other = x / 3.01, x.abs() + 0.01, x.flip(-1)
        # Small enough for both 16-bit formats: compiled code, as torch.compile's, doesn't round
        # between fused operations as eager does.
        whole = (x * 20).round()
        number = torch.arange(WIDTH, device=x.device)
        return {
            "acos": torch.acos(unit),
            "acosh": torch.acosh(positive + 1),
            "asin": torch.asin(unit),
            "asinh": torch.asinh(x),
            "atan": torch.atan(x),
            "atan2": torch.atan2(x, other),
            "atanh": torch.atanh(unit),
            "copysign": torch.copysign(x, other),
            "cos": torch.cos(x * 9),
            "cosh": torch.cosh(x),
            "erf": torch.erf(x),
            "erfc": torch.erfc(x),
            "exp": torch.exp(x * 20),
            "exp2": torch.exp2(x),
            "expm1": torch.expm1(x / 100),
            "fmod": torch.fmod(x, positive / 2),
            "gelu": F.gelu(x) + F.gelu(x, approximate="tanh"),
            "hypot": torch.hypot(x, other),
            "lgamma": torch.lgamma(positive),
            "log": torch.log(positive),
            "log10": torch.log10(positive),
            "log1p": torch.log1p(positive),
            "log2": torch.log2(positive),
            "nextafter": torch.nextafter(x, other),
            "norm": F.layer_norm(x, (WIDTH,)),
            "pow": torch.pow(positive, other),
            "rounded": x.floor() + 10 * x.ceil() + 100 * x.round() + 1000 * x.trunc(),
            "rsqrt": torch.rsqrt(positive) + torch.sqrt(positive) + torch.reciprocal(positive),
            "sigmoid": torch.sigmoid(x) + F.silu(x) + F.relu(x) + F.softplus(x),
            "sin": torch.sin(x * 9),
            "sinh": torch.sinh(x),
            "softmax": torch.softmax(x * 5, -1) + torch.log_softmax(x, -1),
            "tan": torch.tan(unit),
            "tanh": torch.tanh(x),
            "chosen": torch.where((x > 0) & (number % 3 != 1), x, other * number),
            "integers": ((x * 1000).to(torch.int64) // 7 + number.to(torch.int32)).to(x.dtype),
            "bytes": ((x + 3) * 40).to(torch.uint8).to(x.dtype),
            "largest": x.amax(-1) + 10 * x.amin(-1) + 100 * x.mean(-1) + x.argmax(-1),
            "double": (x.double().exp() * x.double().sin()).to(x.dtype),
            "half": (whole.half() + whole.flip(-1).half()).to(x.dtype),
            "bfloat16": (whole.bfloat16() + whole.flip(-1).bfloat16()).to(x.dtype),
        }


def functions() -> dict[str, Any]:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        x = torch.rand(20, WIDTH) * 6 - 3
    return {
        "module": Functions(),
        "inputs": {"x": x},
        "axes": {"x": {0: "length"}},
        "max_length": 64,
    }
