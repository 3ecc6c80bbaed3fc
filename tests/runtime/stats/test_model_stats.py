"""The statistics file of a model that is opened and run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import Model, open_bundle
from edgecompile.runtime.base.errors import (
    InputError,
)
from edgecompile.runtime.call.inputs import make_inputs
from tests.runtime.bundles import DummyBundle


def test_a_statistics_file_that_cannot_be(bundle: DummyBundle, tmp_path: Path) -> None:
    path = bundle.write()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(InputError, match=r"the folder .*/nowhere doesn't exist"):
        open_bundle(path, stats_file=tmp_path / "nowhere" / "stats.json")
    for every in (0, -1, float("nan"), float("inf"), True, "60", None):
        with pytest.raises(InputError, match="stats_every is"):
            open_bundle(path, stats_file=tmp_path / "s.json", stats_every=every)  # type: ignore[arg-type]
    assert len(os.listdir("/proc/self/fd")) == before


def read_stats(path: Path) -> Any:
    return json.loads(path.read_text())


def smallest(model: Model) -> Any:
    return make_inputs(model.manifest, {a: e.lo for a, e in model.manifest.buckets[0].axes.items()})


def test_the_statistics_file(native_bundle: str, tmp_path: Path) -> None:
    place = tmp_path / "stats-{pid}.json"
    written = tmp_path / f"stats-{os.getpid()}.json"
    with open_bundle(native_bundle, stats_file=place, stats_every=3600) as model:
        inputs = smallest(model)
        for _ in range(5):
            model.run(inputs)
        assert not written.exists(), "not before its time"
        model.write_stats(tmp_path / "now.json")
        assert read_stats(tmp_path / "now.json")["runs"] == 5
        model.run(inputs)
        info, stats = model.info, model.stats
    seen = read_stats(written)
    assert stats.pop("file_error") is None
    assert {key: seen[key] for key in stats} == stats and seen["runs"] == 6
    assert seen["manifest_sha256"] == info["manifest_sha256"]
    assert (seen["bundle"], seen["variant"]) == (info["name"], info["variant"])
    assert sorted(item.name for item in tmp_path.iterdir()) == ["now.json", written.name]
    model.write_stats(tmp_path / "after.json")
    assert read_stats(tmp_path / "after.json")["runs"] == 6, "also of a closed model"

    with open_bundle(native_bundle, stats_file=place) as model:
        pass
    assert read_stats(written)["runs"] == 6, "who saw nothing has nothing to tell"


def test_the_statistics_file_is_written_meanwhile(native_bundle: str, tmp_path: Path) -> None:
    place = tmp_path / "stats.json"
    with open_bundle(native_bundle, stats_file=place, stats_every=1e-9) as model:
        inputs = smallest(model)
        for count in (1, 2, 3):
            model.run(inputs)
            assert read_stats(place)["runs"] == count


def test_a_statistics_file_that_fails_disturbs_nobody(native_bundle: str, tmp_path: Path) -> None:
    place = tmp_path / "folder" / "stats.json"
    place.parent.mkdir()
    with open_bundle(native_bundle, stats_file=place, stats_every=1e-9) as model:
        inputs = smallest(model)
        model.run(inputs)
        place.unlink()
        place.parent.rmdir()
        model.run(inputs)
        error = model.stats["file_error"]
        assert "stats.json: can't be written: No such file" in error
        place.parent.mkdir()
        model.run(inputs)
        assert model.stats["file_error"] is None and read_stats(place)["runs"] == 3
        place.unlink()
        place.parent.rmdir()
    assert model.stats["file_error"] is not None and model.stats["runs"] == 3
    with pytest.raises(InputError, match="doesn't exist"):
        model.write_stats(place)


FORKED = """
import json, os, sys
from pathlib import Path
import numpy as np
from edgecompile.runtime import open_bundle
from edgecompile.runtime.call.inputs import make_inputs
bundle, place = sys.argv[1:]
model = open_bundle(bundle, stats_file=place, stats_every=3600)
inputs = make_inputs(model.manifest, {a: e.lo for a, e in model.manifest.buckets[0].axes.items()})
for _ in range(3):
    model.run(inputs)
child = os.fork()
if child == 0:
    model.run(inputs)
    model.close()
    print(json.dumps([os.getpid(), model.stats["runs"], model.stats["file_error"]]), flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
model.run(inputs)
model.close()
print(json.dumps([os.getpid(), model.stats["runs"], model.stats["file_error"]]))
"""


@pytest.mark.parametrize("name", ["stats-{pid}.json", "stats.json"])
def test_a_fork_counts_for_itself(native_bundle: str, tmp_path: Path, name: str) -> None:
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[2]))
    done = subprocess.run(
        [sys.executable, "-c", FORKED, native_bundle, str(tmp_path / name)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (child, child_runs, child_error), (parent, parent_runs, parent_error) = (
        json.loads(line) for line in done.stdout.splitlines()
    )
    assert (child_runs, parent_runs, parent_error) == (1, 4, None)
    files = {item.name: read_stats(item)["runs"] for item in tmp_path.iterdir()}
    if "{pid}" in name:
        assert files == {f"stats-{child}.json": 1, f"stats-{parent}.json": 4}
        assert child_error is None
    else:
        assert files == {"stats.json": 4}
        assert "belongs to the process that this one was forked from" in child_error
