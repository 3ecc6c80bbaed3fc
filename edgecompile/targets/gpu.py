"""The GPU of a device profile: its table in the profile's file, read and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgecompile.errors import TargetError
from edgecompile.files import plain_fields
from edgecompile.targets.schema import GPU_KEYS, check_table

#: Products of e4m3.
FP8 = "fp8"
#: What a GPU may compute in by TensorRT's engines, the widest first.
GPU_PRECISIONS = ("fp32", "fp16", "int8")
#: The same of programs that Triton compiles; int8 are weights alone.
TRITON_PRECISIONS = ("fp32", "bf16", "fp16", "int8", FP8)
#: The least compute capability whose tensor cores multiply fp8.
_FP8_SINCE = 8.9
#: Of a bundle with both, whose int8 would be of two kinds.
BOTH_PRECISIONS = ("fp32", "fp16")
#: The default.
GPU_PRECISION = "fp16"

#: Of a device's memory, what the system and other programs leave at best.
FREE_SHARE = 0.75
#: The CUDA context and the libraries of TensorRT on a Jetson, as users report it.
CONTEXT_BYTES = 500 << 20

#: By compute capability: KiB of shared memory that a block may have, and threads that a
#: multiprocessor holds. CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
_LIMITS: Mapping[str, tuple[int, int]] = {
    "8.0": (163, 2048),
    "8.6": (99, 1536),
    "8.7": (163, 1536),
    "8.9": (99, 1536),
    "9.0": (227, 2048),
}
#: Multiprocessors where a profile doesn't say: those of the smaller Orin modules.
_MULTIPROCESSORS = 8
#: KiB of the second-level cache where a profile doesn't say.
_L2_KIB = 4096


@dataclass(frozen=True)
class GpuFacts:
    """The numbers of a GPU that shape its code.

    Attributes:
        compute_capability: 87 for 8.7.
        multiprocessors: the number of them; the smallest of a class of devices.
        shared_memory: bytes that a block may have.
        threads: the threads that a multiprocessor holds at once.
        l2: bytes of the second-level cache.
    """

    compute_capability: int
    multiprocessors: int
    shared_memory: int
    threads: int
    l2: int


@dataclass(frozen=True)
class GpuSpec:
    """A GPU, for estimates and for telling whether a device is the one that was built for.

    Attributes:
        compute_capability: such as "8.7".
        clock_mhz: the sustained clock rate of its multiprocessors.
        bandwidth_gbs: the bandwidth of its memory, 1e9 bytes per second.
        memory_gib: GiB that it can use; a Jetson's is the whole machine's, which the CPU uses too.
        models: one of these is part of what the device tree calls a Jetson, or CUDA another GPU.
        peak_gflops: (precision, 1e9 dense operations per second) pairs; a multiply-add is two.
        sm_count: multiprocessors; None: any number.
        cubins: compute capabilities that Triton's code is assembled for; (): its own alone.
        l2_kib: KiB of the second-level cache; None: not stated.
        ptxas: release of CUDA whose ptxas assembles; empty: the one that Triton brings.
    """

    compute_capability: str
    clock_mhz: float
    bandwidth_gbs: float
    memory_gib: float
    models: tuple[str, ...]
    peak_gflops: tuple[tuple[str, float], ...]
    sm_count: int | None = None
    cubins: tuple[str, ...] = ()
    l2_kib: int | None = None
    ptxas: str = ""

    @property
    def facts(self) -> GpuFacts:
        """The facts that shape Triton's code: the least of all GPUs that it is assembled for.

        Raises:
            TargetError: Triton's code can't be made for it.
        """
        archs = self.cubins or (self.compute_capability,)
        unknown = [name for name in archs if name not in _LIMITS]
        if unknown:
            raise _no_triton(unknown)
        shared = min(_LIMITS[name][0] for name in archs)
        threads = min(_LIMITS[name][1] for name in archs)
        return GpuFacts(
            compute_capability=int(self.compute_capability.replace(".", "")),
            multiprocessors=self.sm_count or _MULTIPROCESSORS,
            shared_memory=shared << 10,
            threads=threads,
            l2=(self.l2_kib or _L2_KIB) << 10,
        )

    @property
    def triton_precisions(self) -> tuple[str, ...]:
        """The ones of :data:`TRITON_PRECISIONS` that all GPUs have for which Triton's code is assembled."""
        least = min(map(float, self.cubins or (self.compute_capability,)))
        return tuple(name for name in TRITON_PRECISIONS if name != FP8 or least >= _FP8_SINCE)

    @property
    def memory_bytes(self) -> int:
        """``memory_gib`` in bytes."""
        return int(self.memory_gib * 2**30)

    def to_json(self) -> dict[str, Any]:
        """A table as a profile has it."""
        table = {
            key: value for key, value in plain_fields(self).items() if value not in (None, [], "")
        }
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
            cubins=tuple(table.get("cubins", ())),
            l2_kib=table.get("l2_kib"),
            ptxas=table.get("ptxas", ""),
        )


def profile_bytes(weight_bytes: int, precision: str) -> int:
    """The bytes that one more profile adds to an engine of TensorRT.

    By TensorRT 8.6.0 on an H100: in fp32 MiniLM's engine grew by 5 MB a profile, BERT-base's by 6. In fp16 the kernels of
    each profile want some weights in an order of their own: 0.1 to 0.9 of them, 0.35 in an encoder of MiniLM's sizes
    (docs/benchmarks/gpu-tensorrt.md). int8 wasn't looked at; fp16's share is taken.

    Args:
        weight_bytes: the size of the weights, as the engine stores them.
        precision: one of :data:`GPU_PRECISIONS`.
    """
    return (5 << 20) + (0 if precision == "fp32" else int(0.35 * weight_bytes))


def _no_triton(names: Sequence[str]) -> TargetError:
    """Why there is no Triton code for some compute capabilities."""
    old = [name for name in names if float(name) < 8]
    listed = ", ".join(names)
    if old:
        return TargetError(
            f"Triton makes no code for compute capability {listed}: it needs 8.0 or later (Ampere), "
            "whose tensor cores and asynchronous copies its kernels are written for",
            hint="7.2 (Xavier) and 7.5 (Turing) are served by TensorRT: leave `backend` out",
        )
    return TargetError(
        f"nothing is known of compute capability {listed}",
        hint=f"known are {', '.join(_LIMITS)}; the PTX of one of these runs on later ones",
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
