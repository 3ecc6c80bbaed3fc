"""Other runtimes that a bundle is measured beside, by name.

Each has a module here, which prepares what its process loads, and one in ``workers/``, which runs there.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from benchmarks.baselines.aoti import Aoti
from benchmarks.baselines.compiled import TorchModule
from benchmarks.baselines.executorch import PYTHON_VARIABLE, Executorch
from benchmarks.baselines.onnx_runtime import OnnxRuntime
from benchmarks.baselines.open_vino import OpenVino
from benchmarks.baselines.workshop import Workshop
from edgecompile.bench.baselines import EAGER
from edgecompile.bench.process import Baseline
from edgecompile.errors import BenchError, MissingDependencyError

__all__ = ["KINDS", "Kind", "missing_packages", "prepare_baselines"]


class Kind(Protocol):
    """One way to make a baseline of a model."""

    @property
    def name(self) -> str:
        """The name in reports."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Python packages that must be importable, by the names they are imported by."""

    @property
    def precision(self) -> str:
        """The format that weights are multiplied in: ``fp32``, ``bf16`` or ``int8``."""

    def prepare(self, workshop: Workshop) -> Baseline:
        """Makes what its process will load, or finds it in the cache.

        Raises:
            EdgecompileError: the model can't be exported or compiled this way.
        """


KINDS: Final[Mapping[str, Kind]] = {
    item.name: item
    for item in (
        TorchModule(EAGER),
        TorchModule("torch-compile", compile=True),
        Aoti(),
        OnnxRuntime("onnxruntime"),
        OnnxRuntime("onnxruntime-opset23", opset=23),
        OnnxRuntime("onnxruntime-int8", opset=23, precision="int8"),
        OnnxRuntime("onnxruntime-int8-reduced", opset=23, precision="int8", reduce_range=True),
        OpenVino(),
        OpenVino("openvino-bf16", precision="bf16"),
        OpenVino("openvino-int8", precision="int8", needs=(*OpenVino.needs, "nncf")),
        Executorch(),
    )
}


def prepare_baselines(names: Sequence[str], workshop: Workshop) -> list[str | Baseline]:
    """For ``bench_bundle``: the baselines by name; bundles (``….ecb``) stay names.

    Raises:
        BenchError: unknown names.
        MissingDependencyError: names every missing package of every baseline.
    """
    unknown = [n for n in names if n not in KINDS and not n.rstrip("/").endswith(".ecb")]
    if unknown:
        raise BenchError(
            "unknown baselines: " + ", ".join(unknown),
            hint="there are " + ", ".join(KINDS) + ", and paths of other bundles",
        )
    missing = {name: missing_packages(KINDS[name]) for name in names if name in KINDS}
    if any(missing.values()):
        listed = "; ".join(f"{name} needs {', '.join(p)}" for name, p in missing.items() if p)
        raise MissingDependencyError(
            f"baselines lack Python packages: {listed}",
            hint="pip install -r benchmarks/requirements.txt, or leave them out; "
            f"${PYTHON_VARIABLE} names the Python of an environment that has executorch",
        )
    return [KINDS[name].prepare(workshop) if name in KINDS else name for name in names]


def missing_packages(kind: Kind) -> tuple[str, ...]:
    """Packages that aren't installed."""
    return tuple(name for name in kind.needs if importlib.util.find_spec(name) is None)
