"""An engine for this machine's own GPU, made of the exported program by torch-tensorrt.

The whole program becomes one engine, with a profile for each bucket where the installed release can
make several, else with one over the whole range. The engine goes into the bundle beside the ONNX, and
is tested like any other before something serves it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompile.buckets.ranges import Bucket
from edgecompile.errors import CompileError, MissingDependencyError
from edgecompile.export.program import ExportedModel
from edgecompile.files import file_sha256, plain
from edgecompile.runtime.finish.attempts import merge_profiles
from edgecompile.runtime.format.recipe_schema import ShippedEngine
from edgecompile.runtime.gpu.device import DeviceIdentity
from edgecompile.tensorrt.recipes import engine_profiles
from edgecompile.tensorrt.workers import ask

#: Where the program's weights are while it is converted.
_DEVICE = "cuda:0"
_MODULE = "edgecompile.tensorrt.torch_tensorrt_worker"


@dataclass(frozen=True)
class BuiltEngine:
    """An engine made by torch-tensorrt.

    Attributes:
        path: the engine.
        shipped: what the recipe says of it.
        device: that it was made on and for.
        profiles: how many it has.
        size_bytes: of the file.
        seconds: that the conversion took.
        notes: what a person should know.
    """

    path: Path
    shipped: ShippedEngine
    device: DeviceIdentity
    profiles: int
    size_bytes: int
    seconds: float
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "made_by": self.shipped.made_by,
            "device": self.device.to_json(),
            "profiles": self.profiles,
            "profile_of": list(self.shipped.profile_of),
            "size_bytes": self.size_bytes,
            "seconds": round(self.seconds, 3),
            "notes": list(self.notes),
        }


def build_engine(
    exported: ExportedModel,
    buckets: Sequence[Bucket],
    precision: str,
    device: DeviceIdentity,
    folder: Path,
) -> BuiltEngine:
    """Converts a program, in a fresh process.

    Args:
        exported: the program for at least the buckets' whole range.
        buckets: of the bundle, in its order.
        precision: fp32 or fp16.
        device: what :func:`edgecompile.tensorrt.torch_tensorrt_check.need_torch_tensorrt` found.
        folder: where the files go; made if missing.

    Raises:
        MissingDependencyError: torch-tensorrt can't be imported.
        CompileError: it gave no engine: operators that it can't convert, or whatever it says.
        OSError: the files can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    exported.save(folder / "program")
    profiles = engine_profiles(exported.inputs, buckets)
    whole = merge_profiles(profiles, [tuple(range(len(profiles)))])
    output = folder / "engine.plan"
    output.unlink(missing_ok=True)
    request = {
        "program": str(folder.resolve() / "program"),
        "device": _DEVICE,
        "precision": precision,
        "inputs": [{"name": spec.name, "dtype": spec.dtype} for spec in exported.inputs],
        "profiles": plain(profiles) if len(profiles) > 1 else [],
        "whole": plain(whole),
        "timing_cache": str(folder.resolve() / "timing.cache"),
        "output": str(output.resolve()),
    }
    answer, ending = ask([sys.executable, "-m", _MODULE], request, folder, env=_environment())
    if answer["stage"] != "built":
        raise _failure(answer, ending, exported.name)
    placeholders = answer["placeholders"]
    names = [spec.name for spec in exported.inputs]
    tensors = dict(zip(names, placeholders, strict=True))
    tensors.update({spec.name: f"output{i}" for i, spec in enumerate(exported.outputs)})
    count = int(answer["profiles"])
    path = output.rename(folder / f"engine-{file_sha256(output)[:16]}.plan")
    return BuiltEngine(
        path=path,
        shipped=ShippedEngine(
            file=path.name,
            made_by=f"torch-tensorrt {answer['version']}",
            device=device.key_json(),
            profile_of=tuple(i if count > 1 else 0 for i in range(len(buckets))),
            tensors=tensors,
        ),
        device=device,
        profiles=count,
        size_bytes=path.stat().st_size,
        seconds=float(answer["seconds"]),
        notes=tuple(answer["notes"]),
    )


def _environment() -> dict[str, str]:
    """This one, where the process finds the packages that are found here: its working folder is
    another one, so relative paths would not be."""
    package = str(Path(__file__).resolve().parents[2])
    folders = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([package, *folders])}


def _failure(
    answer: Mapping[str, Any], ending: str, name: str
) -> CompileError | MissingDependencyError:
    stage = answer["stage"]
    messages = [str(text) for text in answer.get("errors", ())] + ([ending] if ending else [])
    messages = messages or ["it said nothing"]
    if stage == "import":
        return MissingDependencyError(
            "torch_tensorrt can't be imported: " + "; ".join(messages),
            hint="it needs the torch and the CUDA that it was built for",
        )
    return CompileError(
        f"torch-tensorrt made no engine of '{name}', it failed at the stage '{stage}': "
        + "; ".join(messages),
        hint="it takes the program as a whole, so every operator counts; without `backend` the "
        "engine is built from the ONNX",
    )
