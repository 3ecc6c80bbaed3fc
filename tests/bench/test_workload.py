from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgecompile.bench.workload import choose_workload
from edgecompile.errors import BenchError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.manifest.schema import Manifest
from tests.runtime.bundles import DummyBundle


def manifest(lo: int = 1) -> Manifest:
    """Of a bundle that serves up to 32 tuned for 16 and pads 33..64, from ``lo`` on."""
    bundle = DummyBundle(Path("nowhere"))
    bundle.document["axes"]["length"]["lo"] = lo
    bundle.document["buckets"][0]["axes"]["length"]["lo"] = lo
    return parse_manifest(json.dumps(bundle.listed()).encode())


def test_without_traffic_every_bucket_at_its_hint() -> None:
    work = choose_workload(manifest(), None, 4)
    assert work.lengths == (16, 16, 64, 64)
    assert work.figures["n"] == 4 and work.figures["mean"] == 40
    assert work.notes == ()
    assert work.inputs["length_axis"] == "length"
    assert work.inputs["sizes"]["batch"] == 1
    assert [spec["name"] for spec in work.inputs["specs"]] == ["input_ids", "attention_mask"]
    assert json.loads(json.dumps(dict(work.inputs))) == work.inputs


def test_long_inputs_are_cut_and_short_ones_left_out() -> None:
    traffic = LengthDistribution.from_samples([2, 8, 8, 100])
    work = choose_workload(manifest(lo=4), traffic, 3)
    assert work.lengths == (8, 8, 64)
    assert work.notes == (
        "25.0 % of the lengths are over 64 and were cut to it",
        "25.0 % of the lengths are in no bucket and were left out",
    )


def test_no_length_fits() -> None:
    with pytest.raises(BenchError, match=r"none of the lengths of samples is in a bucket"):
        choose_workload(manifest(lo=4), LengthDistribution.from_samples([1, 2]), 3)
