"""Programs compiled on a Ray cluster of this machine are those that are compiled without it."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.needs import need_variable

DRIVER = Path(__file__).parent / "ray_compile.py"


@pytest.mark.slow
def test_a_cluster_makes_the_same(tmp_path: Path) -> None:
    """Ray's environment has no torch: it sees this one's packages."""
    python = need_variable("EDGECOMPILE_RAY_PYTHON")
    paths = (str(DRIVER.parents[2]), sysconfig.get_path("purelib"))
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    done = subprocess.run(
        [python, str(DRIVER), str(tmp_path)],
        env=variables, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("found "))
    told = json.loads(line.removeprefix("found "))  # Ray says things of its own
    local = told["local"]
    assert local["left"] == [] and len(local["libraries"]) == 2
    assert [step[:2] for step in local["told"]] == [[1, 2], [2, 2]]
    for name in ("ray", "again", "ray-apart"):
        assert told[name] == local, name
    here, *elsewhere = told["failures"]
    assert here[0] == "MissingKernelError" and "linalg_qr" in here[1]
    assert elsewhere == [here, here]
    assert "torch" in told["others"] and "not 0.1" in told["others"]
    assert "127.0.0.1:9" in told["nowhere"] and "RAY_ADDRESS" in told["nowhere"]
    # The first had come to its end, the second ran; of those that waited none but the third could begin.
    began = {name for name in told["cancelled"] if name.startswith("begun")}
    assert {"begun-0", "begun-1", "begun-9"} <= began <= {f"begun-{n}" for n in (0, 1, 2, 9)}
