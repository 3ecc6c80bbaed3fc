"""When a bucket gets a second program for few rows, and where the model draws the line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from edgecompile.backends.cuda import forms
from edgecompile.backends.cuda.forms import LEAST_GAIN, choose_forms, read_products, rows_of
from edgecompile.backends.cuda.tiles import Product
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.export.program import ExportedModel
from edgecompile.models.specs import InputSpec
from edgecompile.pipeline import gpu
from edgecompile.planning.request import PlanRequest
from edgecompile.targets.gpu import GpuFacts
from edgecompile.targets.profile import load_target
from tests.cli.command import run as cli

ORIN = GpuFacts(87, 8, 163 << 10, 1536, 2 << 20)
H100 = GpuFacts(90, 132, 227 << 10, 2048, 50 << 20)
LENGTHS = (12, 23, 40, 55, 74, 103, 159, 244)
TRAFFIC = [({"length": n, "batch": b}, 1.0) for n in LENGTHS for b in (1, 2, 4, 8)]


WIDE = """
import torch
from torch import nn


def make():
    layers = [nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768)]
    return {
        "module": nn.Sequential(*layers, *layers),
        "inputs": {"input": torch.randn(1, 55, 768)},
        "axes": {"input": {0: "batch", 1: "length"}},
        "limits": {"length": (1, 512)},
    }
"""


class Layer(torch.nn.Module):
    """The products of a transformer's layer, and one whose sizes are both lengths."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.out = (torch.nn.Linear(width, width) for _ in range(3))
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key = self.query(x), self.key(x)
        return self.down(self.up(self.out(torch.bmm(torch.bmm(query, key.transpose(1, 2)), query))))


def export(width: int = 768) -> ExportedModel:
    auto = torch.export.Dim.DYNAMIC
    program = torch.export.export(
        Layer(width), (torch.zeros(2, 7, width),), dynamic_shapes=({0: auto, 1: auto},)
    )
    given = InputSpec("x", "float32", ("batch", "length", width))
    ranges = {"batch": (1, 8), "length": (1, 512)}
    return ExportedModel("layer", program, (given,), (), ranges, "length", "plain", (), 0.0)


@pytest.fixture(scope="module")
def exported() -> ExportedModel:
    return export()


def bucket(batch: int = 8, **options: Any) -> Bucket:
    axes = (("length", AxisRange(1, 512, 55)), ("batch", AxisRange(1, batch, 1)))
    return Bucket(options.pop("mode", "exact"), axes, **options)


def test_products_follow_the_sizes(exported: ExportedModel) -> None:
    products = read_products(exported, {"length": 55, "batch": 1})
    found = dict(zip(products.at({"batch": 2, "length": 30}), products.numbers, strict=True))
    assert found == {
        Product(60, 1536, 768): 1,  # two linear layers that share their input
        Product(30, 30, 768, 2): 1,
        Product(30, 768, 30, 2): 1,
        Product(60, 768, 768): 1,
        Product(60, 3072, 768): 1,
        Product(60, 768, 3072): 1,
    }
    assert Product(55, 1536, 768) in products.at({})


def test_a_wide_range_of_rows_gets_two_programs(exported: ExportedModel) -> None:
    two = choose_forms(exported, bucket(), H100, TRAFFIC)
    assert two is not None and two.gain >= LEAST_GAIN
    assert 32 <= two.rows <= 256
    assert max(map(rows_of, two.few)) == two.rows == rows_of(two.few[-1])
    assert dict(two.many[-1]) == {"length": 512, "batch": 8}
    assert all(rows_of(sizes) > two.rows for sizes in two.many)
    # Golden vectors of the shortest and the longest inputs have rows for one program each.
    assert 8 <= two.rows < 512


def test_no_size_of_the_traffic_gets_slower(
    exported: ExportedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = choose_forms(exported, bucket(), H100, TRAFFIC)
    monkeypatch.setattr(forms, "_SLOWER", 2.0)
    bold = choose_forms(exported, bucket(), H100, TRAFFIC)
    # Another border saves more, but makes sizes next to it slower.
    assert usual is not None and bold is not None
    assert usual.rows != bold.rows and usual.gain < bold.gain


@pytest.mark.parametrize(
    ("changes", "told"), [({}, 1), ({"forms": 1}, 0), ({"precision": "fp32"}, 0)]
)
def test_a_plan_tells_what_build_would_do(
    exported: ExportedModel, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], told: int
) -> None:
    monkeypatch.setattr(gpu, "export_programs", lambda run, exports, buckets: (exported,))
    options = PlanRequest(None, **{"backend": "triton", "precision": "fp16", **changes})
    run: Any = SimpleNamespace(options=options, profile=load_target("cuda-sm90"))
    whole = SimpleNamespace(model=SimpleNamespace(generation=None))
    subject: Any = SimpleNamespace(
        whole=whole, scope=SimpleNamespace(sample=lambda without: TRAFFIC)
    )
    planned: Any = SimpleNamespace(plan=SimpleNamespace(buckets=(bucket(),)))
    notes = gpu.predict_forms(run, subject, planned)
    assert len(notes) == told
    assert all("Bucket 0 would have two programs for the GPU, one for at most" in x for x in notes)


@pytest.mark.slow
def test_the_command_plan_says_so(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(WIDE)
    (tmp_path / "lengths.txt").write_text("\n".join(map(str, LENGTHS)))
    command = ["plan", str(tmp_path / "lengths.txt"), "--model", f"{tmp_path / 'net.py'}:make"]
    result = cli(
        *command, "--target", "cuda-sm90", "--backend", "triton", "--batch", "1:8", "--json"
    )
    assert result.exit_code == 0, result.stderr
    assert any("would have two programs" in note for note in json.loads(result.stdout)["notes"])


def test_one_program_is_enough(exported: ExportedModel) -> None:
    assert choose_forms(export(32), bucket(), H100, TRAFFIC) is None
    assert choose_forms(exported, bucket(), H100, []) is None
    # Of this traffic nothing has few rows.
    many = [({"length": 500, "batch": 8}, 1.0)]
    narrow = replace(bucket(), axes=(("length", AxisRange(480, 512, 500)), bucket().axes[1]))
    assert choose_forms(exported, narrow, H100, many) is None


def test_padded_programs_have_rows_of_their_own(exported: ExportedModel) -> None:
    padded = bucket(mode="pad", pad_axes=("length", "batch"))
    assert choose_forms(exported, padded, H100, TRAFFIC) is None
