"""A real parse and build of the ONNX file, by TensorRT-RTX, where that is installed.

TensorRT-RTX is NVIDIA's TensorRT for desktop cards. Its parser and builder run without a GPU and take
strongly typed networks and profiles as a Jetson's TensorRT does. Its engines run on no Jetson, and
on this machine on nothing: what is found out here is that the file parses and builds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgecompile.buckets.plan import Bucket
from edgecompile.buckets.ranges import AxisRange
from edgecompile.errors import MissingDependencyError
from edgecompile.models.specs import InputSpec

__all__ = ["STATUS", "RtxError", "RtxReport", "bucket_profiles", "check_rtx", "has_rtx"]

#: What a build proves; the words stand in reports and documentation.
STATUS = "built, not executed, not Jetson"

#: Compute capability that is built for: Ampere, as Orin's 8.7, which RTX itself refuses.
_CAPABILITY = "SM80"
_WORKER = Path(__file__).with_name("rtx_worker.py")
_SHOWN = 20
#: A build that hangs is no reason for ours to: it only tells more than is known anyway.
_PATIENCE_S = 1800.0


@dataclass(frozen=True)
class RtxError:
    """What TensorRT-RTX said against a node; ``node`` is empty where it names none."""

    node: str
    operator: str
    text: str

    def __str__(self) -> str:
        where = f"{self.operator} {self.node}".strip()
        return f"{where}: {self.text}" if where else self.text


@dataclass(frozen=True)
class RtxReport:
    """What came of it.

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
        return {
            "status": self.status,
            "ok": self.ok,
            "version": self.version,
            "compute_capability": self.compute_capability,
            "profiles": self.profiles,
            "parse_seconds": self.parse_seconds,
            "build_seconds": self.build_seconds,
            "engine_bytes": self.engine_bytes,
            "scratch_bytes": None if self.scratch_bytes is None else list(self.scratch_bytes),
            "peak_bytes": self.peak_bytes,
            "layers": self.layers,
            "missing_inputs": list(self.missing_inputs),
            "errors": [str(error) for error in self.errors],
            "warnings": list(self.warnings),
        }


def bucket_profiles(
    buckets: Sequence[Bucket], inputs: Sequence[InputSpec]
) -> list[dict[str, dict[str, list[int]]]]:
    """One optimization profile per bucket: by input, the shapes min, opt and max.

    Inputs of fixed shape have no place in a profile.
    """
    profiles = []
    for bucket in buckets:
        spans = dict(bucket.axes)
        padded = bucket.pad_axes if bucket.mode == "pad" else ()
        profiles.append(
            {
                spec.name: {
                    key: [
                        dim if isinstance(dim, int) else _size(spans[dim], edge, dim in padded)
                        for dim in spec.shape
                    ]
                    for key, edge in (("min", "lo"), ("opt", "hint"), ("max", "hi"))
                }
                for spec in inputs
                if any(isinstance(dim, str) for dim in spec.shape)
            }
        )
    return profiles


def _size(span: AxisRange, edge: str, padded: bool) -> int:
    """A padded axis comes at its upper edge: that is what its kernels are tuned for."""
    size: int = getattr(span, "hi" if padded and edge == "hint" else edge)
    return size


def has_rtx(python: str = sys.executable) -> bool:
    """Whether that interpreter finds TensorRT-RTX; nothing of it is loaded here."""
    code = "import importlib.util as u, sys; sys.exit(u.find_spec('tensorrt_rtx_bindings') is None)"
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0


def check_rtx(
    onnx: Path,
    profiles: Sequence[Mapping[str, Mapping[str, Sequence[int]]]],
    *,
    level: int = 3,
    compute_capability: str = _CAPABILITY,
    python: str = sys.executable,
) -> RtxReport:
    """Parses and builds an ONNX file with all profiles, in a fresh process: it prints, and may crash.

    Args:
        onnx: the file, its weights beside it.
        profiles: from :func:`bucket_profiles`.
        level: the builder's optimization level, 0 to 5.
        compute_capability: RTX's name of it.
        python: the interpreter that has ``tensorrt_rtx_bindings``.

    Returns:
        Also where the build fails: the report says at what.

    Raises:
        MissingDependencyError: the interpreter hasn't got TensorRT-RTX.
    """
    if not has_rtx(python):
        raise MissingDependencyError(
            "TensorRT-RTX isn't installed", hint="pip install 'edgecompile[rtx]'"
        )
    with tempfile.TemporaryDirectory(prefix="edgecompile-rtx-") as name:
        request, answer = Path(name, "request.json"), Path(name, "answer.json")
        request.write_text(
            json.dumps(
                {
                    "onnx": str(onnx.resolve()),
                    "profiles": [
                        {n: {k: list(v) for k, v in s.items()} for n, s in shapes.items()}
                        for shapes in profiles
                    ],
                    "compute_capability": compute_capability,
                    "level": level,
                    "answer": str(answer),
                }
            ),
            encoding="utf-8",
        )
        command = [python, "-I", str(_WORKER), str(request)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                cwd=name,
                errors="replace",
                timeout=_PATIENCE_S,
            )
        except subprocess.TimeoutExpired:
            late = f"it took more than {_PATIENCE_S:.0f} s"
            done = subprocess.CompletedProcess(command, -9, "", late)
        found = json.loads(answer.read_text(encoding="utf-8")) if answer.is_file() else {}
    return _report(found, done, onnx, len(profiles), compute_capability)


def _report(
    found: Mapping[str, Any],
    done: subprocess.CompletedProcess[str],
    onnx: Path,
    profiles: int,
    capability: str,
) -> RtxReport:
    stage = str(found.get("stage", "start"))
    messages = [(level, text.strip()) for level, text in found.get("messages", ())]
    errors = [
        RtxError(str(e.get("node", "")), str(e.get("operator", "")), str(e.get("text", "")))
        for e in found.get("errors", ())
    ]
    ok = stage == "built"
    if not ok:
        errors += [RtxError("", "", text) for level, text in messages if level != "WARNING"]
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            errors.append(RtxError("", "", f"the process ended with {done.returncode}: {last}"))
    scratch = found.get("scratch_bytes")
    return RtxReport(
        status=STATUS if ok else f"not built: it failed at the stage '{stage}'",
        ok=ok,
        version=str(found.get("version", "")),
        compute_capability=capability,
        profiles=profiles,
        parse_seconds=found.get("parse_seconds"),
        build_seconds=found.get("build_seconds"),
        engine_bytes=found.get("engine_bytes"),
        scratch_bytes=None if scratch is None else tuple(scratch),
        peak_bytes=found.get("peak_bytes"),
        layers=found.get("layers"),
        missing_inputs=_missing(onnx, found.get("inputs")),
        errors=tuple(dict.fromkeys(errors)),
        warnings=tuple(dict.fromkeys(t for level, t in messages if level == "WARNING"))[:_SHOWN],
    )


def _missing(path: Path, inputs: Sequence[str] | None) -> tuple[str, ...]:
    import onnx

    if inputs is None:
        return ()
    proto = onnx.load(str(path), load_external_data=False)
    return tuple(value.name for value in proto.graph.input if value.name not in inputs)
