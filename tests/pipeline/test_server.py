"""Bundles for servers: what the profile means, and what a real build of it holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgecompile.errors import UsageError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.models.options import LoadOptions
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import SERVER_BATCH, BuildRequest
from edgecompile.pipeline.server import ServerPlan
from edgecompile.planning.costs.serving import read_serving
from edgecompile.planning.request import PlanRequest
from edgecompile.runtime import open_bundle
from edgecompile.server.schedule.batches import Batches
from tests.factories import tiny_models

LENGTHS = LengthDistribution.from_samples([3, 4, 4, 7, 9, 9, 9, 20, 31])


def test_a_server_has_batches_unless_others_were_asked_for() -> None:
    plan = PlanRequest(LENGTHS, profile="server")
    assert BuildRequest("model", plan=plan).load.batch == SERVER_BATCH == (1, 32)
    asked = BuildRequest("model", plan=plan, load=LoadOptions(batch=(1, 4)))
    assert asked.load.batch == (1, 4)
    assert BuildRequest("model", plan=replace(plan, profile="device")).load.batch == (1, 1)
    with pytest.raises(UsageError, match="profile"):
        PlanRequest(LENGTHS, profile="cluster")
    with pytest.raises(UsageError, match="`profile` server is for CPUs"):
        BuildRequest("model", target="jetson-orin-nano", plan=plan).check_target()


def test_percentiles_are_those_of_the_traffic() -> None:
    few = ServerPlan(True, "", LENGTHS, None, None).percentiles
    assert len(few) == 101 and few[0] == 3 and few[-1] == 31 and few == sorted(few)
    assert few[50] == 9 and few.count(31) == pytest.approx(100 / 9, abs=1)
    even = LengthDistribution.from_counts({n: 5 for n in range(1, 101)})
    assert ServerPlan(True, "", even, None, None).percentiles == [1, *range(1, 101)]


@pytest.mark.slow
def test_a_bundle_for_a_server(tiny_model: Path, tmp_path: Path) -> None:
    """Built, measured and written: a server finds what it composes batches by."""
    request = BuildRequest(
        str(tiny_model),
        "cpu-x86-64-v3",
        PlanRequest(LENGTHS, max_length=32, profile="server", quick=True, threads=2),
        load=LoadOptions(batch=(1, 4)),
        output=tmp_path / "server.ecb",
    )
    result = build(request)
    serving = read_serving(result.bundle_path)
    assert serving.mixes and serving.cpus == 2 and serving.costs.threads == (1, 2)
    assert serving.costs.most_rows == 4 and serving.costs.longest == 32
    with open_bundle(result.bundle_path) as model:
        plan = model.manifest.plan["server"]
        assert plan["padding"] == "proven" and plan["streams"] * plan["threads"] <= 2
        assert plan["rows"] == "independent" and Batches(model.manifest, plan).mixes


@pytest.mark.slow
def test_rows_that_change_each_other_are_not_run_together(tmp_path: Path) -> None:
    """A norm over the batch: its build says why, and measures no batches."""
    request = BuildRequest(
        f"{tiny_models.__file__}:batch_centred",
        "cpu-x86-64-v3",
        PlanRequest(LENGTHS, max_length=32, profile="server", quick=True, threads=2),
        load=LoadOptions(batch=(1, 4)),
        output=tmp_path / "mixed.ecb",
    )
    result = build(request)
    assert any("runs its requests one by one: row 0 of" in note for note in result.notes)
    with open_bundle(result.bundle_path) as model:
        plan = model.manifest.plan["server"]
        assert plan["rows"] == "mixed" and "points" not in plan
        assert not Batches(model.manifest, plan).joins
