"""Times of several variants of a bundle on this machine: in one process, in turns.

``python -m edgecompile.runtime.measure.variants BUNDLE SHA256 NAME …`` prints them as JSON. ``finish`` runs it so:
whoever makes an engine can't open bundles.
"""

import contextlib
import json
import sys
from typing import Any, Dict, List, Sequence

from ..base.errors import EdgecompileError
from ..call.inputs import make_inputs
from ..call.replay import run_cases
from ..format.files.folder import BundleFolder
from ..gpu.engines import PLANNED
from ..model.model import Model
from ..model.open_bundle import open_folder
from ..open.choose import OpenRequest
from .rounds import measure_medians
from .workload import plan_runs

SECONDS = 3.0
LEAST_ROUNDS = 20


def measure_variants(
    path: str, listed: str, names: Sequence[str], seconds: float = SECONDS
) -> Dict[str, Any]:
    """Runs variants on the golden vectors, and times those that reproduce them.

    Args:
        path: the bundle.
        listed: the SHA-256 of its manifest, whose signatures the caller has checked.
        names: the names of the variants.
        seconds: the time for measuring; every run is made at least 20 times.

    Returns:
        Plain JSON values: "wrong", how many golden vectors a variant fails, and "ms", the mean over the
        buckets of the median milliseconds of a run at a bucket's hint, both by variant.

    Raises:
        EdgecompileError: a variant can't be opened or run here.
    """
    with contextlib.ExitStack() as stack:
        models = {}
        for name in names:
            request = OpenRequest(variant=name, mode=PLANNED)
            folder = BundleFolder(path, listed=listed)
            models[name] = stack.enter_context(open_folder(folder, request))
            models[name].warm_up()
        wrong = {
            name: sum(not case["ok"] for case in run_cases(model)) for name, model in models.items()
        }
        right = [model for name, model in models.items() if not wrong[name]]
        times = _measure(right, seconds)
        good = [name for name in names if not wrong[name]]
        return {"wrong": wrong, "ms": dict(zip(good, times))}


def _measure(models: Sequence[Model], seconds: float) -> List[float]:
    """The mean over the buckets of each model's median milliseconds."""
    if not models:
        return []
    manifest = models[0].manifest
    inputs = [make_inputs(manifest, sizes, 0) for _, sizes, _ in plan_runs(manifest, None)[0]]
    runs = [model.run for model in models]
    times = measure_medians(runs, inputs, seconds=seconds, least=LEAST_ROUNDS, seed=0)
    return [sum(medians) / len(medians) for medians in times]


def main(arguments: Sequence[str]) -> int:
    """The command; 0 once the answer is written: with "error" where a variant can't run."""
    try:
        report = measure_variants(arguments[0], arguments[1], arguments[2:])
    except EdgecompileError as error:
        report = {"error": error.message}
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
