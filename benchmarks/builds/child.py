"""One build with a given plan, in a process of its own: the stages of edgecompile.pipeline.stages, timed.

    child.py MODEL TARGET PLAN.json WORK OUTPUT.ecb

Prints one JSON object: seconds by stage, which programs were made again, and what they took.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

STARTED = time.perf_counter()

from edgecompile.backends.compilation import compile_buckets  # noqa: E402
from edgecompile.buckets.plan import BucketPlan  # noqa: E402
from edgecompile.bundle.staging import Staging  # noqa: E402
from edgecompile.export.store import ExportStore, export_buckets  # noqa: E402
from edgecompile.loaders.load import load_model  # noqa: E402
from edgecompile.pipeline.packing import Contents, pack_bundle  # noqa: E402
from edgecompile.targets.profile import load_target  # noqa: E402
from edgecompile.toolchain.compilers import cache_directory  # noqa: E402

T = TypeVar("T")


def descriptions(work: Path) -> dict[str, int]:
    """``variant/bucket-N`` -> when it was made."""
    files = (work / "artifacts").glob("*/bucket-*.json")
    return {f"{path.parent.name}/{path.stem}": path.stat().st_mtime_ns for path in files}


def objects() -> int:
    """How many objects the cache holds."""
    return sum(1 for _ in (cache_directory() / "objects").glob("*/*.o"))


def build(
    model_spec: str, target: str, plan_file: Path, work: Path, output: Path
) -> dict[str, Any]:
    """Builds; what it prints."""
    seconds: dict[str, float] = {"import": time.perf_counter() - STARTED}

    def timed(name: str, action: Callable[[], T]) -> T:
        begun = time.perf_counter()
        result = action()
        seconds[name] = time.perf_counter() - begun
        return result

    before, had = descriptions(work), objects()
    plan = BucketPlan.from_json(json.loads(plan_file.read_text()))
    profile = load_target(target)
    model = timed("load the model", lambda: load_model(model_spec, batch=(1, 1)))
    exports = ExportStore(model, work / "exported")
    exported = timed("export", lambda: export_buckets(exports, plan.buckets))
    keys = [exports.key(bucket) for bucket in plan.buckets]
    compiled = timed(
        "compile",
        lambda: compile_buckets(exported, plan.buckets, profile, work / "artifacts", keys=keys),
    )
    with Staging(output, force=True) as claim:
        timed("verify and pack", lambda: pack_bundle(Contents(model, plan, compiled), claim))
    made = {name for name, when in descriptions(work).items() if before.get(name) != when}
    inside: dict[str, float] = defaultdict(float)
    for items in compiled.artifacts.values():
        for item in items:
            if f"{item.variant}/bucket-{item.bucket}" in made:
                for name, value in item.seconds.items():
                    inside[name] += value
    return {
        "seconds": seconds,
        "programs": sorted(made),
        "inside": dict(inside),
        "objects": objects() - had,
        "total_s": time.perf_counter() - STARTED,
    }


if __name__ == "__main__":
    arguments = sys.argv[1:]
    work = Path(arguments[3])
    work.mkdir(parents=True, exist_ok=True)
    print(
        json.dumps(build(arguments[0], arguments[1], Path(arguments[2]), work, Path(arguments[4])))
    )
