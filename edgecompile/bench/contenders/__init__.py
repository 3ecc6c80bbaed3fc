"""Those that a bundle is measured against, each in a process of its own.

A contender has a module here, which prepares what its process loads, and one of (mostly) the same
name in ``worker/``, which runs there. Adding one means these two modules and a line below.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from edgecompile.bench.contenders.aoti import Aoti
from edgecompile.bench.contenders.base import Contender, Launch, Workshop
from edgecompile.bench.contenders.bundle import BundleContender, read_bundle
from edgecompile.bench.contenders.eager import Eager
from edgecompile.bench.contenders.executorch import PYTHON_VARIABLE, Executorch
from edgecompile.bench.contenders.onnx_runtime import OnnxRuntime
from edgecompile.bench.contenders.open_vino import OpenVino
from edgecompile.errors import BenchError, MissingDependencyError

__all__ = [
    "CONTENDERS",
    "BundleContender",
    "Contender",
    "Launch",
    "Workshop",
    "available_contenders",
    "check_needs",
    "read_bundle",
    "resolve_contenders",
]

CONTENDERS: Final[Mapping[str, Contender]] = {
    item.name: item
    for item in (
        Eager("eager"),
        Eager("torch-compile", compile=True),
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


def available_contenders() -> tuple[str, ...]:
    """Names of those whose packages are installed."""
    return tuple(name for name, item in CONTENDERS.items() if not _missing(item))


def resolve_contenders(names: Sequence[str]) -> tuple[Contender, ...]:
    """The contenders by name, each once; the path of another bundle (``….ecb``) is one, too.

    Raises:
        BenchError: unknown names.
    """
    found: dict[str, Contender] = {}
    unknown = []
    for name in names:
        if name in CONTENDERS:
            found[name] = CONTENDERS[name]
        elif name.rstrip("/").endswith(".ecb"):
            path = Path(name)
            label = path.stem
            while label in found:
                label += "'"
            found[label] = BundleContender(label, path)
        else:
            unknown.append(name)
    if unknown:
        raise BenchError(
            "unknown contenders: " + ", ".join(unknown),
            hint="there are " + ", ".join(CONTENDERS) + ", and paths of other bundles",
        )
    return tuple(found.values())


def check_needs(contenders: Sequence[Contender]) -> None:
    """Makes sure that all packages are there.

    Raises:
        MissingDependencyError: names every missing package of every contender.
    """
    missing = {item.name: names for item in contenders if (names := _missing(item))}
    if missing:
        listed = "; ".join(f"{name} needs {', '.join(names)}" for name, names in missing.items())
        lacking = {package for names in missing.values() for package in names}
        extra = "executorch" if lacking == {"executorch"} else "bench"
        hint = f"pip install 'edgecompile[{extra}]', or leave them out"
        if "executorch" in lacking:
            hint += (
                f"; ${PYTHON_VARIABLE} may name another environment's Python that has executorch"
            )
        raise MissingDependencyError(f"contenders lack Python packages: {listed}", hint=hint)


def _missing(contender: Contender) -> tuple[str, ...]:
    return tuple(name for name in contender.needs if importlib.util.find_spec(name) is None)
