"""The GPU of a device profile: its table in the profile's file, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgecompile.files import plain_fields
from edgecompile.targets.schema import GPU_KEYS, check_table

#: What a GPU may compute in, the widest first.
GPU_PRECISIONS = ("fp32", "fp16", "int8")
#: The default.
GPU_PRECISION = "fp16"


@dataclass(frozen=True)
class GpuSpec:
    """A GPU, for estimates and for telling whether a device is the one that was built for.

    Attributes:
        compute_capability: such as "8.7".
        clock_mhz: of its multiprocessors, sustained.
        bandwidth_gbs: of its memory, 1e9 bytes per second.
        memory_gib: GiB that it can use; a Jetson's is the whole machine's, which the CPU uses too.
        models: one of these is part of what the device tree calls a Jetson, or CUDA another GPU.
        peak_gflops: (precision, 1e9 dense operations per second) pairs; a multiply-add is two.
        sm_count: multiprocessors; None: any number.
    """

    compute_capability: str
    clock_mhz: float
    bandwidth_gbs: float
    memory_gib: float
    models: tuple[str, ...]
    peak_gflops: tuple[tuple[str, float], ...]
    sm_count: int | None = None

    @property
    def memory_bytes(self) -> int:
        """``memory_gib`` in bytes."""
        return int(self.memory_gib * 2**30)

    def to_json(self) -> dict[str, Any]:
        """A table as a profile has it."""
        table = {key: value for key, value in plain_fields(self).items() if value is not None}
        return {**table, "peak_gflops": dict(self.peak_gflops)}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> GpuSpec:
        """Reads a table that :func:`gpu_problems` found nothing wrong with."""
        return cls(
            compute_capability=table["compute_capability"],
            clock_mhz=float(table["clock_mhz"]),
            bandwidth_gbs=float(table["bandwidth_gbs"]),
            memory_gib=float(table["memory_gib"]),
            models=tuple(table["models"]),
            peak_gflops=tuple((name, float(v)) for name, v in table["peak_gflops"].items()),
            sm_count=table.get("sm_count"),
        )


def gpu_problems(table: object) -> list[str]:
    """Every problem of a profile's ``[gpu]``, each with the key."""
    problems = [f"gpu.{text}" for text in check_table(table, GPU_KEYS, "table gpu")]
    peaks = table.get("peak_gflops") if isinstance(table, Mapping) else None
    if isinstance(peaks, Mapping):
        problems += [
            f"gpu.peak_gflops.{name}: missing" for name in GPU_PRECISIONS if name not in peaks
        ]
    return problems
