"""What is said where Ray isn't installed; zoo runs and a calibration on a cluster of this machine.

tests/backends/test_ray.py compiles on one.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgecompile.errors import ClusterError, MissingDependencyError
from edgecompile.hosts.cluster import Cluster, need_ray, open_cluster
from tests.cli.command import run
from tests.cluster import run_on_ray

TASKS = Path(__file__).with_name("ray_tasks.py")


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ray" else find(name)
    )


@pytest.mark.usefixtures("without_ray")
def test_without_ray_the_extra_is_named() -> None:
    with pytest.raises(MissingDependencyError, match=r"edgecompile\[ray\]"):
        need_ray()
    with pytest.raises(MissingDependencyError), open_cluster():
        pass


@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize("arguments", [("build", "model"), ("compile", "-w", "work")])
def test_commands_say_so_before_they_read_anything(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments, "--on", "ray")
    assert result.exit_code == MissingDependencyError.exit_code
    assert "pip install 'edgecompile[ray]'" in result.stderr


class FakeRay:
    """As much of Ray as ``map`` uses: the tasks named ``ended`` have come to their end."""

    class exceptions:
        class RayError(Exception): ...

        class RayTaskError(RayError): ...

    def __init__(self, ended: dict[str, Any]) -> None:
        self.ended, self.cancelled = ended, list[str]()

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 3}

    def remote(self, function: Any) -> Any:
        return SimpleNamespace(remote=function)

    def get(self, task: str) -> Any:
        if isinstance(result := self.ended[task], BaseException):
            raise result
        return result

    def wait(self, tasks: list[str], num_returns: int, timeout: float) -> Any:
        assert (num_returns, timeout) == (len(tasks), 0)
        ready = [task for task in tasks if task in self.ended]
        return ready, [task for task in tasks if task not in self.ended]

    def cancel(self, task: str) -> None:
        self.cancelled.append(task)


@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (FakeRay.exceptions.RayError("its machine is gone"), ClusterError),
        (FakeRay.exceptions.RayTaskError("a bug"), FakeRay.exceptions.RayTaskError),
    ],
)
def test_only_tasks_that_run_are_cancelled(failure: Exception, raised: type[Exception]) -> None:
    ray = FakeRay({"a": 1, "b": failure, "d": 2})
    results = Cluster(ray).map(str, "abcde")
    assert next(results) == 1
    with pytest.raises(raised):
        next(results)
    assert ray.cancelled == ["c"]  # b failed, d is done, e wasn't begun


def test_what_runs_is_cancelled_where_the_caller_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(task: str) -> None:
        raise KeyboardInterrupt

    ray = FakeRay({"b": 1})
    monkeypatch.setattr(ray, "get", interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(Cluster(ray).map(str, "abc"))
    assert ray.cancelled == ["a", "c"]


@pytest.mark.slow
def test_zoo_runs_and_calibrations_on_a_cluster(tmp_path: Path) -> None:
    told = run_on_ray(TASKS, tmp_path, folder=tmp_path, torch=True)
    assert told["zoo"]["codes"] == [0, 0] and len(told["zoo"]["machines"]) == 1
    for name in ("mlp", "text_cnn"):
        found = told["zoo"]["results"][name]
        assert (found["name"], found["status"], found["stage"]) == (name, "ok", "load")
    assert told["calibration"]["kind"] == "calibrated"
    assert told["calibration"]["variant"] == "x86-64-v3" and told["calibration"]["left"] == []
    assert "a machine of the Ray cluster" in told["calibration"]["notes"][0]
    assert (
        told["failure"][0] == "BundleError" and "format_version: is required" in told["failure"][1]
    )
    assert told["has"] == [True, False]
