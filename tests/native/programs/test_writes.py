"""Writes at repeated indices in a compiled program: the last one wins, with any number of threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from edgecompile.models.definite import definite  # noqa: E402
from tests.native.programs.host import LONGEST, VOCABULARY, Host, build  # noqa: E402

pytestmark = pytest.mark.slow

ROWS, WIDTH = 3, 16


class Writes(nn.Module):
    """Every kind of write, with values that tell which position they are of."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.randn(LONGEST, WIDTH))

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        index = ids[0]
        n = index.shape[0]
        x = torch.log1p(torch.relu(self.values[:n]) * 3) + index[:, None] / 7
        whole = (x * 1000).long()
        rows = torch.stack([index, (index * 7) % VOCABULARY, (index + 1) % 5])
        made = {
            "scatter": torch.zeros(ROWS, VOCABULARY).scatter(1, rows, x.t()[:ROWS]),
            "scatter rows": torch.zeros(VOCABULARY, WIDTH).scatter(
                0, index[:, None].expand(-1, WIDTH), x.exp()
            ),
            "scatter whole": torch.zeros(ROWS, VOCABULARY, dtype=torch.int64).scatter(
                1, rows, whole.t()[:ROWS]
            ),
            "scatter half": torch.zeros(VOCABULARY, dtype=torch.bfloat16)
            .scatter(0, index, x[:, 0].bfloat16())
            .float(),
            "scatter a value": torch.zeros(VOCABULARY).scatter(0, index, 2.5) + x.sum(),
            "index_copy": torch.ones(2, VOCABULARY).index_copy(1, index, x.t()[:2]),
            "index_fill": torch.zeros(VOCABULARY).index_fill(0, index, 3.0),
            "put": torch.zeros(VOCABULARY, 2).put(index * 2, x[:, 1].sin()),
            "pairs": torch.zeros(VOCABULARY, 5).index_put((rows[0], rows[2]), x[:, 2]),
            "accumulated": torch.zeros(VOCABULARY).index_put((index,), x[:, 0], accumulate=True),
            "amax": torch.zeros(VOCABULARY).scatter_reduce(0, index, x[:, 0], "amax"),
        }
        y = torch.zeros(VOCABULARY, WIDTH)
        y[index] = x
        y[index, 0] = x[:, 3] + y[index, 1]
        made["x[i] = y"] = y.tanh()
        flags = torch.zeros(VOCABULARY, dtype=torch.bool)
        flags[index] = x[:, 0] > 0.5
        made["flags"] = flags
        z = torch.zeros(2, VOCABULARY, 3)
        z[:, index] = x[:, :3]
        z[:, index, 1] = torch.stack([x[:, 4], x[:, 5]])
        made["a dimension in front"] = z
        grid = torch.zeros(VOCABULARY)
        grid[rows] = x.t()[:ROWS].contiguous()
        made["an index of two dimensions"] = grid
        places = torch.zeros(VOCABULARY, WIDTH)
        places.masked_scatter_(flags[:, None], self.values)
        made["masked_scatter"] = places
        # No place twice: these stay in generated loops.
        order = x[:, 0].argsort()
        ranks = torch.zeros_like(order)
        ranks[order] = torch.arange(n)
        made["ranks"] = ranks
        made["same values"] = torch.zeros(ROWS, VOCABULARY).index_put(
            (torch.arange(ROWS)[:, None], rows), x[0, :ROWS, None]
        )
        return {name.replace(" ", "_").replace("[i]_=_", "_at_"): y for name, y in made.items()}


def draws(random: np.random.Generator, length: int) -> list[np.ndarray]:
    few = random.integers(0, VOCABULARY, max(1, length // 20))
    return [
        random.integers(0, VOCABULARY, (1, length)),
        random.choice(few, (1, length)),
        np.sort(random.choice(few, (1, length))),
        np.full((1, length), few[0]),
    ]


def test_the_last_of_several_writes_wins(tmp_path: Path) -> None:
    built = build(Writes, tmp_path)
    host = Host()
    program = host.open(built.library, built.weights)
    random = np.random.default_rng(0)
    wrong: dict[str, int] = {}
    for length in (1, 2, 40, 511, 512):
        for ids in draws(random, length):
            with torch.no_grad(), definite():
                wanted = built.model(torch.from_numpy(ids))
            for threads in (1, 2, 4):
                assert host.native.ec_set_num_threads(threads) == 0
                for _ in range(10):
                    got = host.run(program, ids)
                    for (name, want), have in zip(wanted.items(), got, strict=True):
                        error = 0.02 if name == "scatter_half" else 1e-5
                        right = np.allclose(have, want.numpy(), rtol=error, atol=error)
                        wrong[name] = wrong.get(name, 0) + (not right)
    host.native.ec_set_num_threads(0)
    host.close(program)
    assert {name for name, times in wrong.items() if times} == set()
