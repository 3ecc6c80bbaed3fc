"""A real parse and build of the ONNX file, by TensorRT-RTX, where that is installed.

TensorRT-RTX is NVIDIA's TensorRT for desktop cards. Its parser and builder run without a GPU and take
strongly typed networks and profiles as a Jetson's TensorRT does. Its engines run on no Jetson, and
on this machine on nothing: what is found out here is that the file parses and builds.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgecompile.buckets.ranges import Bucket
from edgecompile.errors import MissingDependencyError
from edgecompile.files import plain_fields
from edgecompile.models.specs import InputSpec
from edgecompile.tensorrt.recipes import engine_profiles
from edgecompile.tensorrt.workers import ask

#: What a build proves; the words stand in reports and documentation.
STATUS = "built, not executed, not Jetson"

#: Compute capability that is built for: Ampere, as Orin's 8.7, which RTX itself refuses.
_CAPABILITY = "SM80"
_LEVEL = 3  # the builder's optimization level, of 0 to 5
_WORKER = Path(__file__).with_name("rtx_worker.py")
_SHOWN = 20
#: What a report takes from the answer as it is.
_FIGURES = ("parse_seconds", "build_seconds", "engine_bytes", "peak_bytes", "layers")
#: A build that hangs is no reason for ours to: it only tells more than is known anyway.
_PATIENCE_S = 1800.0


@dataclass(frozen=True)
class RtxError:
    """An objection of TensorRT-RTX to a node; ``node`` is empty where it names none."""

    node: str
    operator: str
    text: str

    def __str__(self) -> str:
        where = f"{self.operator} {self.node}".strip()
        return f"{where}: {self.text}" if where else self.text

    def to_json(self) -> str:
        """As a report has it."""
        return str(self)


@dataclass(frozen=True)
class RtxReport:
    """The result of a build by TensorRT-RTX.

    Attributes:
        status: :data:`STATUS`, or that and where it failed.
        ok: whether an engine was built.
        version: of TensorRT-RTX.
        compute_capability: that was built for.
        profiles: how many.
        parse_seconds, build_seconds: None where it didn't get that far.
        engine_bytes: size of the engine.
        scratch_bytes: by profile; None: it doesn't tell without a GPU.
        peak_bytes: largest resident memory of the process that built.
        layers: of the parsed network.
        missing_inputs: of the ONNX file, those that the network hasn't.
        errors: what was said against it.
        warnings: others that the builder gave, each once.
    """

    status: str
    ok: bool
    version: str
    compute_capability: str
    profiles: int
    parse_seconds: float | None = None
    build_seconds: float | None = None
    engine_bytes: int | None = None
    scratch_bytes: tuple[int, ...] | None = None
    peak_bytes: int | None = None
    layers: int | None = None
    missing_inputs: tuple[str, ...] = ()
    errors: tuple[RtxError, ...] = ()
    warnings: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return plain_fields(self)


def bucket_profiles(
    buckets: Sequence[Bucket], inputs: Sequence[InputSpec]
) -> list[dict[str, dict[str, list[int]]]]:
    """One optimization profile per bucket: by input, the shapes min, opt and max.

    Inputs of fixed shape have no place in a profile.
    """
    varying = [spec for spec in inputs if any(isinstance(dim, str) for dim in spec.shape)]
    return [
        {name: shapes.to_json() for name, shapes in profile.items()}
        for profile in engine_profiles(varying, buckets)
    ]


def has_rtx(python: str = sys.executable) -> bool:
    """Whether that interpreter finds TensorRT-RTX; nothing of it is loaded here."""
    code = "import importlib.util as u, sys; sys.exit(u.find_spec('tensorrt_rtx_bindings') is None)"
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0


def check_rtx(
    onnx: Path,
    profiles: Sequence[Mapping[str, Mapping[str, Sequence[int]]]],
    *,
    python: str = sys.executable,
) -> RtxReport:
    """Parses and builds an ONNX file with all profiles, in a fresh process: it prints, and may crash.

    Args:
        onnx: the file, its weights beside it.
        profiles: from :func:`bucket_profiles`.
        python: the interpreter that has ``tensorrt_rtx_bindings``.

    Returns:
        Also where the build fails: the report says at what.

    Raises:
        MissingDependencyError: the interpreter lacks TensorRT-RTX.
    """
    if not has_rtx(python):
        raise MissingDependencyError(
            "TensorRT-RTX isn't installed", hint="pip install 'edgecompile[rtx]'"
        )
    with tempfile.TemporaryDirectory(prefix="edgecompile-rtx-") as name:
        request = {
            "onnx": str(onnx.resolve()),
            "profiles": profiles,
            "compute_capability": _CAPABILITY,
            "level": _LEVEL,
        }
        command = [python, "-I", str(_WORKER)]
        answer, ending = ask(command, request, Path(name), timeout=_PATIENCE_S)
    return _report(answer, ending, onnx, len(profiles))


def _report(answer: Mapping[str, Any], ending: str, onnx: Path, profiles: int) -> RtxReport:
    stage = answer["stage"]
    messages = [(level, text.strip()) for level, text in answer.get("messages", ())]
    errors = [
        RtxError(str(e.get("node", "")), str(e.get("operator", "")), str(e.get("text", "")))
        for e in answer.get("errors", ())
    ]
    ok = stage == "built"
    if not ok:
        errors += [RtxError("", "", text) for level, text in messages if level != "WARNING"]
        errors += [RtxError("", "", ending)] if ending else []
    figures = {name: answer[name] for name in _FIGURES if name in answer}
    if "scratch_bytes" in answer:
        figures["scratch_bytes"] = tuple(answer["scratch_bytes"])
    return RtxReport(
        status=STATUS if ok else f"not built: it failed at the stage '{stage}'",
        ok=ok,
        version=str(answer.get("version", "")),
        compute_capability=_CAPABILITY,
        profiles=profiles,
        missing_inputs=_missing(onnx, answer.get("inputs")),
        errors=tuple(dict.fromkeys(errors)),
        warnings=tuple(dict.fromkeys(t for level, t in messages if level == "WARNING"))[:_SHOWN],
        **figures,
    )


def _missing(path: Path, inputs: Sequence[str] | None) -> tuple[str, ...]:
    import onnx

    if inputs is None:
        return ()
    proto = onnx.load(str(path), load_external_data=False)
    return tuple(value.name for value in proto.graph.input if value.name not in inputs)
