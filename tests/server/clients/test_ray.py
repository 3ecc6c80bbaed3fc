"""The application for Ray: its options and its rule of scaling; and a cluster of one machine, under load."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgecompile.runtime.base.errors import InputError
from edgecompile.server.ray import Backlog, Options, Replica, read_options
from tests.cluster import run_on_ray

CLUSTER = Path(__file__).parent / "ray_cluster.py"
SCALING = Path(__file__).parent / "ray_scaling.py"


def test_options_are_read_as_serve_run_gives_them() -> None:
    found = read_options({"bundle": "m.ecb", "threads": "4", "max_replicas": "8", "slo_ms": "80"})
    assert found == Options("m.ecb", threads=4, max_replicas=8, slo_ms=80.0)
    assert found.backlog_s == pytest.approx(0.02)
    assert Options("m.ecb").backlog_s == pytest.approx(0.1)


def test_all_that_is_wrong_with_them_is_told() -> None:
    with pytest.raises(InputError) as caught:
        read_options({"threads": "two", "replicas": 3})
    for words in (
        "bundle=FOLDER is missing",
        "threads='two' isn't of type int",
        "no option 'replicas'",
    ):
        assert words in str(caught.value)
    for wrong in (
        {"threads": 0},
        {"min_replicas": 5},
        {"min_replicas": 0},
        {"slo_ms": -1},
        {"slo_ms": "nan"},
    ):
        with pytest.raises(InputError):
            read_options({"bundle": "m.ecb", **wrong})


def test_replicas_follow_the_predicted_backlog() -> None:
    rule = Backlog(0.1)
    assert rule.wanted([], 3) == 3
    assert rule.wanted([0.0, 0.0], 2) == 1
    assert rule.wanted([0.1, 0.1], 2) == 2
    assert rule.wanted([0.25, 0.2], 2) == 5
    context = SimpleNamespace(
        aggregated_metrics={"backlog_s": {"a": 0.5, "b": 0.5}}, current_num_replicas=2,
        capacity_adjusted_min_replicas=1, capacity_adjusted_max_replicas=4,
    )  # fmt: skip
    assert rule(context) == (4, {})


@pytest.mark.slow
def test_a_replica_is_killed_under_load(tiny_bundle: Path, tmp_path: Path) -> None:
    """Requests that it had begun are repeated; none is lost or wrong, and it is replaced."""
    told = run_on_ray(CLUSTER, tiny_bundle, folder=tmp_path)
    assert told["answered"] == told["asked"] and told["wrong"] == 0
    assert told["killed"] not in told["after"] and len(told["after"]) == 2
    assert told["repeated"] < told["asked"] / 20
    assert "backlog_s" in told["stats"]


@pytest.mark.slow
def test_another_replica_comes_where_much_is_predicted_to_wait(
    rows_bundle: Path, tmp_path: Path
) -> None:
    """Of 32 clients none fails meanwhile."""
    told = run_on_ray(SCALING, rows_bundle, folder=tmp_path)
    assert (told["before"], told["after"]) == (1, 2)
    assert told["seen"].get("wrong", 0) == 0 < told["seen"]["right"] and told["clients"] == 32


def test_a_replica_has_as_many_runs_side_by_side_as_threads(tiny_bundle: Path) -> None:
    async def make() -> None:
        model = Replica(Options(str(tiny_bundle), threads=7))._model
        assert model.model.info["concurrency"] == 7
        await model.close()

    asyncio.run(make())
