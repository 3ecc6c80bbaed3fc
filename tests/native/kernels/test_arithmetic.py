"""Compiled remainders and variances are torch's at every scale that single precision has."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgecompile.backends.cpu.lowering.lower import lower_graph
from tests.native.programs.host import VOCABULARY, Host, build

WIDTH = 19
# No quotient overflows: there torch's vector code says NaN, its scalar code and ours what is right.
DIVISORS = [0.7, -0.3, 1.0, 2.5, -7.1, 1e-3, 6.2831855, 3.0, 1e-7, -1e20, 0.0]
DIVISORS += [float("inf"), -0.0, 2e38, 1e-6, -1.0, 0.1, 5.0, -1e-5]


def remainders(x: Tensor, d: Tensor) -> dict[str, Tensor]:
    changed = x.clone()
    changed.remainder_(d)
    return {
        "remainder": torch.remainder(x, d),
        "by a number": x % 1.0,
        "of a number": torch.remainder(-3.0, x),
        "changed": changed,
        "double": x.double() % d.double(),
        "mixed": x % d.double(),
        "fmod": torch.fmod(x, d),
        "//": x // d,
        "// number": x // -0.3,
        "double //": x.double() // 0.3,
        "floor": torch.div(x, d, rounding_mode="floor"),
        "trunc": torch.div(x, d, rounding_mode="trunc"),
        "whole": (x * 7).clamp(-1e9, 1e9).long() % 5,
    }


def variances(x: Tensor) -> dict[str, Tensor]:
    mean_first = torch.var_mean(x, -1, correction=0)
    return {
        "std": x.std(-1),
        "std of tokens": x.std(1),
        "std of all": x.std(),
        "biased": x.std((1, 2), correction=0, keepdim=True),
        "var": x.var(-1),
        "var_mean": mean_first[0] + mean_first[1],
        "mean of var_mean": torch.var_mean(x, 1)[1],
        "std_mean": torch.std_mean(x, -1)[0],
        "batch": F.batch_norm(
            torch.cat([x, -x], 1).transpose(1, 2), None, None, training=True, eps=1e-38
        ),
    }


class Arithmetic(nn.Module):
    """The tokens' features are of all scales: from 1e-30 to 1e30."""

    def __init__(self) -> None:
        super().__init__()
        scales = torch.logspace(-30, 30, VOCABULARY, dtype=torch.float64).float()
        self.table = nn.Parameter(torch.randn(VOCABULARY, WIDTH) * scales[:, None])
        self.register_buffer("divisors", torch.tensor(DIVISORS))

    def forward(self, ids: Tensor) -> dict[str, Any]:
        x = self.table[ids]
        return {**remainders(x, self.divisors), **variances(x)}


def test_remainders_and_variances_of_a_program(tmp_path: Path) -> None:
    built = build(Arithmetic, tmp_path)
    host = Host()
    program = host.open(built.library, built.weights)
    rng = np.random.default_rng(5)
    for ids in (
        np.arange(VOCABULARY),
        rng.integers(0, VOCABULARY, 333),
        rng.integers(0, 8, 64),
        rng.integers(VOCABULARY - 8, VOCABULARY, 64),
    ):
        ids = ids[None]
        with torch.no_grad():
            want = built.model(torch.from_numpy(ids))
        got = host.read(host.start(program, ids))
        for (name, expected), value in zip(want.items(), got, strict=True):
            exact = name in remainders(torch.ones(1), torch.ones(1))
            rtol, atol = (0.0 if exact else 2e-6), (1e-6 if name == "batch" else 0.0)
            np.testing.assert_allclose(value, expected.numpy(), rtol, atol, err_msg=name)
    host.native.ec_program_close(program)


class Sums(nn.Module):
    """Sums over everything, which threads share."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(VOCABULARY, 160))

    def forward(self, ids: Tensor) -> dict[str, Any]:
        x = self.table[ids]
        y = torch.exp(x)
        added = torch.zeros(WIDTH, 160).index_add(0, ids[0] % WIDTH, y[0])
        return {
            "added": added,
            "sum": y.sum(),
            "std": (x * y).std(),
            "norm": x.norm(),
            "rows": (x * y).sum((0, 1)),
        }


def test_a_run_computes_the_same_beside_others(tmp_path: Path) -> None:
    """Though a run that finds the threads taken computes everything itself."""
    built = build(Sums, tmp_path)
    host = Host()
    # The kernels ask how many threads there are: shares of threads are summed up.
    assert b"omp_get_max_threads" in built.library.read_bytes()
    threads = host.native.ec_get_num_threads()
    host.native.ec_set_num_threads(3)
    program = host.open(built.library, built.weights, concurrency=4)
    try:
        ids = np.random.default_rng(2).integers(0, VOCABULARY, (1, 500))
        alone = [value.copy() for value in host.read(host.start(program, ids))]

        def differing(run: int) -> list[tuple[int, int, str]]:
            found = host.read(host.start(program, ids))
            pairs = enumerate(zip(alone, found, strict=True))
            return [(run, i, f"{a} {b}") for i, (a, b) in pairs if not np.array_equal(a, b)]

        with ThreadPoolExecutor(4) as pool:
            assert [found for runs in pool.map(differing, range(400)) for found in runs] == []
    finally:
        host.native.ec_set_num_threads(threads)
        host.native.ec_program_close(program)


class InPlace(nn.Module):
    def forward(self, x: Tensor, d: Tensor) -> tuple[Tensor, ...]:
        a, b, c = x.clone(), x.clone(), x.clone()
        a %= d
        b //= 0.3
        c.div_(d, rounding_mode="floor")
        return a, b, c, x.div(d, rounding_mode="trunc"), x / d


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16])
def test_what_is_rewritten_and_what_is_not(kind: torch.dtype) -> None:
    x, d = (torch.randn(3, 5) * 100).to(kind), torch.randn(5).to(kind)
    graph = torch.export.export(InPlace(), (x, d), strict=False).module()
    assert lower_graph(graph).counts["exact"] == 3
    for got, want in zip(graph(x, d), InPlace()(x, d), strict=True):
        assert torch.equal(got, want)
