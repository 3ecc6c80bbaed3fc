"""The files and the output of ``finish``, and whether its engine serves."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np

from tests.fake_gpu.bundles import TABLE
from tests.fake_gpu.rig import REPOSITORY, Rig

WHOLE = ["engine", "stamp.json"]
RUN = """
import json, sys
import numpy as np
from edgecompile.runtime import open_bundle
with open_bundle(sys.argv[1], mode=sys.argv[2]) as model:
    for length in json.loads(sys.argv[3]):
        ids = np.arange(length, dtype=np.int64)[None] % 100
        found = model.run({"input_ids": ids, "attention_mask": np.ones_like(ids)})
        print(json.dumps(found["embedding"].tolist()))
"""
REPORT: dict[str, Any] = {
    "ok": bool,
    "state": str,
    "bundle": str,
    "name": str,
    "manifest_sha256": str,
    "variant": str,
    "device": {
        "model": str,
        "l4t": str,
        "name": str,
        "compute_capability": str,
        "sm_count": int,
        "integrated": bool,
        "driver": str,
        "runtime": str,
        "tensorrt": str,
        "memory_bytes": int,
    },
    "key": str,
    "engine": {"path": str, "size": int, "sha256": str},
    "profile_of": [int],
    "built": {
        "workspace_bytes": int,
        "optimization_level": int,
        "profiles": int,
        "seconds": float,
        "attempts": int,
        "timing_cache": str,
        "pinned": bool,
    },
    "selftest": {
        "ok": bool,
        "cases": [
            {
                "bucket": int,
                "case": str,
                "sizes": dict,
                "mode": str,
                "ok": bool,
                "max_abs_error": float,
                "scale": float,
                "limit": float,
                "cosine": float,
                "ms": float,
                "threads": int,
            }
        ],
        "modes": [str],
    },
    "compared": type(None),
    "attempts": [
        {
            "settings": str,
            "workspace_bytes": int,
            "optimization_level": int,
            "profiles": int,
            "outcome": str,
            "seconds": float,
        }
    ],
    "notes": [str],
    "others": {"count": int, "bytes": int},
    "seconds": float,
}


def check_schema(value: Any, schema: Any, where: str = "report") -> None:
    """The very keys, and values of the very types."""
    if isinstance(schema, dict):
        assert value.keys() == schema.keys(), where
        for key, item in schema.items():
            check_schema(value[key], item, f"{where}.{key}")
    elif isinstance(schema, list):
        for index, item in enumerate(value):
            check_schema(item, schema[0], f"{where}[{index}]")
    else:
        assert type(value) is schema, f"{where} is {value!r}"


def serve(rig: Rig, lengths: list[int], mode: str = "default") -> subprocess.CompletedProcess[str]:
    """Opens the bundle in a process of its own and runs it at some lengths."""
    return subprocess.run(
        [sys.executable, "-c", RUN, str(rig.bundle.folder), mode, json.dumps(lengths)],
        env=rig.environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )


def check_served(
    rig: Rig, lengths: list[int], modes: tuple[str, ...] = ("planned", "default", "reduce-overhead")
) -> None:
    """The engine that was finished gives what eager gives."""
    for mode in modes:
        done = serve(rig, lengths, mode)
        assert done.returncode == 0, done.stderr
        for length, line in zip(lengths, done.stdout.splitlines(), strict=True):
            total = TABLE[np.arange(length) % 100].sum(axis=0)
            np.testing.assert_allclose(json.loads(line)[0], [*total, *total], rtol=1e-3, atol=1e-4)
