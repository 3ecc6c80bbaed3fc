"""Programs compiled on a Ray cluster of this machine are those that are compiled without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import run_on_ray

DRIVER = Path(__file__).parent / "ray_compile.py"


@pytest.mark.slow
def test_a_cluster_makes_the_same(tmp_path: Path) -> None:
    told = run_on_ray(DRIVER, tmp_path, folder=tmp_path, torch=True)
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
