from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgecompile.buckets.costs.grid import CostGrid, CostPoint
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.planner import plan_buckets
from edgecompile.buckets.shipped import read_shipped_plan
from edgecompile.errors import BundleError, DamagedBundleError
from edgecompile.lengths.distribution import LengthDistribution
from tests.drift.served import BATCH, write_bundle
from tests.runtime.bundles import DummyBundle

LENGTHS = LengthDistribution.from_counts({3: 5, 20: 4, 60: 1}, "traffic")
CURVE = CostGrid((CostPoint(1, None, 1.0), CostPoint(64, None, 64.0)), "measured")
PLAN = plan_buckets(LENGTHS, CURVE, max_buckets=2, max_sizes={"length": 64}, other_axes=BATCH)


def test_a_bundle_says_what_it_was_planned_for(tmp_path: Path) -> None:
    sha = write_bundle(tmp_path / "a.ecb", PLAN, LENGTHS)
    shipped = read_shipped_plan(tmp_path / "a.ecb")
    assert shipped.plan == PLAN and shipped.lengths == LENGTHS
    assert (shipped.name, shipped.manifest_sha256) == ("tiny", sha)
    assert (shipped.lo, shipped.hi) == (1, 64)


def test_without_lengths_the_cure_is_told(tmp_path: Path) -> None:
    write_bundle(tmp_path / "a.ecb", PLAN, None)
    with pytest.raises(BundleError, match=r"has no reports/lengths\.json") as caught:
        read_shipped_plan(tmp_path / "a.ecb")
    assert "build it again" in str(caught.value) and "as `lengths`" in str(caught.value)
    assert read_shipped_plan(tmp_path / "a.ecb", LENGTHS).lengths == LENGTHS


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("lengths", b"{}", "lengths.json: .*no"),
        ("lengths", b'{"lengths": [3], "counts": [-1]}', "counts start at 1"),
        ("lengths", b"[3]", "must be an object"),
        ("lengths", b'{"lengths": [NaN]}', "NaN"),
        ("plan", b"{}", 'plan.json: a plan needs a list of "buckets"'),
        (
            "plan",
            b'{"buckets": [{"lo": 1, "hi": 64}]}',
            "isn't the plan of this bundle: it has 1 buckets",
        ),
        ("plan", json.dumps({**PLAN.to_json(), "cost_model": {}}).encode(), 'costs need "kind"'),
    ],
)
def test_bad_reports_are_refused(tmp_path: Path, name: str, data: bytes, expected: str) -> None:
    write_bundle(tmp_path / "a.ecb", PLAN, LENGTHS, **{name: data})
    with pytest.raises(BundleError, match=expected):
        read_shipped_plan(tmp_path / "a.ecb")


def test_other_modes_are_another_plan(tmp_path: Path) -> None:
    document = PLAN.to_json()
    for bucket in document["buckets"]:
        bucket["mode"] = "exact"
    other = json.dumps(document).encode()
    write_bundle(tmp_path / "a.ecb", PLAN, LENGTHS, plan=other)
    with pytest.raises(BundleError, match="with other sizes or modes"):
        read_shipped_plan(tmp_path / "a.ecb")


def test_changed_reports_are_noticed(tmp_path: Path) -> None:
    write_bundle(tmp_path / "a.ecb", PLAN, LENGTHS)
    path = tmp_path / "a.ecb" / "reports" / "lengths.json"
    path.write_bytes(path.read_bytes().replace(b"20", b"21"))
    with pytest.raises(DamagedBundleError, match="file-hash"):
        read_shipped_plan(tmp_path / "a.ecb")


def test_no_length_axis_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="doesn't exist"):
        read_shipped_plan(tmp_path / "absent.ecb")
    bundle = DummyBundle(tmp_path / "b.ecb")
    bundle.document["length_axis"] = None
    bundle.document["buckets"] = bundle.document["buckets"][:1]
    bundle.document["buckets"][0]["axes"]["length"] = {"lo": 1, "hi": 64, "hint": 64}
    bundle.document["variants"][0]["programs"] = ["code/x86-64-v3/bucket-0.so"]
    bundle.document["golden"] = []
    bundle.write()
    with pytest.raises(BundleError, match="has no length axis"):
        read_shipped_plan(tmp_path / "b.ecb")


def test_a_plan_by_hand_is_a_plan(tmp_path: Path) -> None:
    plan = BucketPlan("length", PLAN.buckets)
    write_bundle(tmp_path / "a.ecb", plan, LENGTHS)
    assert read_shipped_plan(tmp_path / "a.ecb").plan == plan
