"""Zoo runs and a calibration on a Ray cluster of this machine; run by test_cluster.py.

Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ray

from edgecompile.errors import EdgecompileError
from edgecompile.export.store import ExportStore
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.load import load_model
from edgecompile.planning.costs import remote
from edgecompile.planning.planning import plan_model
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.subject import make_subject
from edgecompile.targets.profile import load_target
from tests.zoo import zoo
from tests.zoo.catalogue import __file__ as CATALOGUE

TARGET = "cpu-x86-64-v3"


def run_zoo(work: Path) -> dict[str, Any]:
    """Two architectures as far as loading goes, and what lies there afterwards."""
    code = zoo.main(
        ["--on", "ray", "--upto", "load", "--work", str(work), "--only", "mlp", "text_cnn"]
    )
    results = {
        path.stem: json.loads(path.read_text()) for path in (work / "results").glob("*.json")
    }
    keep = ("name", "status", "stage", "group")
    again = zoo.main(
        ["--on", "ray", "--upto", "load", "--work", str(work), "--resume", "--only", "mlp"]
    )
    return {
        "codes": [code, again],
        "results": {n: {k: f.get(k) for k in keep} for n, f in results.items()},
        "machines": sorted({f["machine"] for f in results.values()}),
    }


def calibrate(work: Path) -> dict[str, Any]:
    """A plan by the costs that a machine of the cluster measured."""
    work.mkdir()
    exports = ExportStore(load_model(f"{CATALOGUE}:mlp"), work / "exported")
    lengths = LengthDistribution.from_samples([1, 2, 2, 5, 7])
    request = PlanRequest(lengths, on="ray", threads=1)
    planned = plan_model(make_subject(exports, load_target(TARGET), request, work), compare=True)
    curve = planned.plan.cost_model
    assert curve is not None
    return {
        "kind": curve.kind,
        "variant": curve.provenance["variant"],
        "notes": [note for note in planned.notes if "cluster" in note],
        "left": [path.name for path in work.glob("*.ecb")],
    }


def fail(work: Path) -> list[str]:
    """A calibration bundle that can't be run: its error there is raised here."""
    bundle = work / "broken.ecb"
    bundle.mkdir()
    (bundle / "manifest.json").write_text("{}")
    cluster = remote.Cluster(ray)
    try:
        remote.calibrate_there(cluster, bundle, TARGET, None, 1.0, True)
    except EdgecompileError as error:
        return [type(error).__name__, str(error)]
    return []


def main(work: Path) -> dict[str, Any]:
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
        resources={remote.target_resource(TARGET): 1},
    )  # fmt: skip
    outcomes = {
        "zoo": run_zoo(work / "zoo"),
        "calibration": calibrate(work / "plan"),
        "failure": fail(work),
        "has": [remote.Cluster(ray).has(remote.target_resource(name)) for name in (TARGET, "x")],
    }
    ray.shutdown()
    return outcomes


if __name__ == "__main__":
    print("found " + json.dumps(main(Path(sys.argv[1]))), flush=True)
