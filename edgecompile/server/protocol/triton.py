"""Triton's additions to the protocol, for its tools: configurations, statistics and a list of models.

Sources: triton-inference-server/server, docs/protocol/extension_model_configuration.md,
extension_model_repository.md and extension_statistics.md; triton-inference-server/common, protobuf/model_config.proto.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from edgecompile.runtime.format.manifest.schema import Manifest, TensorSpec
from edgecompile.server.protocol.datatypes import NAMES
from edgecompile.server.schedule.scheduler import Scheduler
from edgecompile.server.serving import ServedModel


def describe_config(name: str, manifest: Manifest) -> dict[str, Any]:
    """A model's configuration. To Triton a ``max_batch_size`` of 0 means that shapes are whole, with their batch."""
    return {
        "name": name,
        "platform": "edgecompile",
        "backend": "edgecompile",
        "max_batch_size": 0,
        "input": [_describe(item) for item in manifest.inputs],
        "output": [_describe(item) for item in manifest.outputs],
    }


def _describe(item: TensorSpec) -> dict[str, Any]:
    dims = [size if isinstance(size, int) else -1 for size in item.shape]
    return {
        "name": item.name,
        "data_type": f"TYPE_{NAMES.get(item.dtype, 'INVALID')}",
        "dims": dims,
    }


def describe_index(models: Iterable[ServedModel], ready: bool) -> list[dict[str, str]]:
    """The models and their states; of all, or with ``ready`` of those that take requests."""
    return [
        {
            "name": model.name,
            "version": model.version,
            "state": "READY" if model.ready else "UNAVAILABLE",
            "reason": "" if model.ready else model.model.broken or "it isn't ready",
        }
        for model in models
        if model.ready or not ready
    ]


def describe_statistics(name: str, version: str, scheduler: Scheduler) -> dict[str, Any]:
    """A worker's counts since it began; times in nanoseconds, of requests and not of runs: one of eight that ran
    together counts with the whole run. Copies to and from batches are part of the run."""
    traffic, runs = scheduler.traffic, scheduler.batches
    answered, queue, run = traffic.answered, traffic.queue_s, traffic.run_s
    vain = traffic.snapshot()["refused"] + traffic.failed

    def of(count: int, seconds: float = 0.0) -> dict[str, int]:
        return {"count": count, "ns": round(seconds * 1e9)}

    return {
        "name": name,
        # Triton's versions are whole numbers, and perf_analyzer reads nothing else here.
        "version": str(int(version, 16)),
        "last_inference": round(traffic.last * 1e3),
        "inference_count": sum(rows * count for rows, count in runs.items()),
        "execution_count": sum(runs.values()),
        "inference_stats": {
            "success": of(answered, queue + run),
            "fail": of(vain),
            "queue": of(answered, queue),
            "compute_input": of(answered),
            "compute_infer": of(answered, run),
            "compute_output": of(answered),
            "cache_hit": of(0),
            "cache_miss": of(0),
        },
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": of(count),
                "compute_infer": of(count, scheduler.batch_s[rows]),
                "compute_output": of(count),
            }
            for rows, count in sorted(runs.items())
        ],
    }
