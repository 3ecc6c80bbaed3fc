"""Runs in a process of its own: an exported program through torch-tensorrt into an engine.

It is given a JSON file (program, device, precision, inputs, profiles, timing_cache, output, answer) and
writes the answer's file: whatever the libraries print, and even a crash, leaves it in order.

What torch-tensorrt takes differs from release to release, and unknown keywords are taken in silence.
So only those that its signature names are given, and what decides the precision has to be among them.
Facts: https://docs.pytorch.org/TensorRT (user_guide/runtime_performance/serialized_engine,
contributors/autocast, tutorials/runtime_opt/multi_optimization_profiles).
"""

from __future__ import annotations

import inspect
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Shapes = Mapping[str, Sequence[int]]
_LEVEL = 3
_KEPT = 40


class _Refused(Exception):
    """torch-tensorrt gave no engine; the text says why."""


class _Log(logging.Handler):
    """Keeps warnings and errors: the function logs why it fails, and raises something else."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        messages = self.errors if record.levelno >= logging.ERROR else self.warnings
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({record.exc_info[1]})"
        messages.append(text[:2000])
        del messages[:-_KEPT]


def main(request_path: str) -> int:
    """Converts, and writes what came of it."""
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    answer: dict[str, Any] = {"stage": "import", "errors": [], "notes": []}

    def save() -> None:
        Path(request["answer"]).write_text(json.dumps(answer), encoding="utf-8")

    save()
    log = _Log()
    logging.getLogger("torch_tensorrt").addHandler(log)
    try:
        import torch_tensorrt
    except Exception as error:  # libraries that don't go together raise whatever they like
        answer["errors"] = [f"{type(error).__name__}: {error}"]
        save()
        return 0
    answer.update(stage="load", version=str(torch_tensorrt.__version__))
    save()
    program = _load(request)
    answer["stage"] = "convert"
    # In the order of the program, as torch-tensorrt names them.
    answer["placeholders"] = list(program.graph_signature.user_inputs)
    save()
    began = time.monotonic()
    engine = b""
    for kind in ("profiles", "whole"):
        profiles = request[kind]
        if not profiles:
            continue
        log.errors.clear()
        try:
            engine = _convert(torch_tensorrt, program, request, profiles, log)
            break
        except _Refused as refused:
            answer["errors"] = [str(refused)]
            if kind == "profiles":
                answer["notes"].append(f"no engine with a profile for each bucket: {refused}")
    if engine:
        Path(request["output"]).write_bytes(engine)
        answer.update(stage="built", errors=[], profiles=len(profiles))
    answer["seconds"] = time.monotonic() - began
    save()
    return 0


def _load(request: Mapping[str, Any]) -> Any:
    from torch.export.passes import move_to_device_pass

    from edgecompile.export.program import ExportedModel

    exported = ExportedModel.load(Path(request["program"]))
    return move_to_device_pass(exported.program, request["device"])


def _convert(
    torch_tensorrt: Any,
    program: Any,
    request: Mapping[str, Any],
    profiles: Sequence[Mapping[str, Shapes]],
    log: _Log,
) -> bytes:
    """An engine with these profiles; raises _Refused."""
    convert = torch_tensorrt.dynamo.convert_exported_program_to_serialized_trt_engine
    options = {
        **convert_options(convert, request["precision"]),
        "optimization_level": _LEVEL,
        # Its default is one path in /tmp, which others could write before us.
        "timing_cache_path": request["timing_cache"],
        "require_full_compilation": True,
        # What is float32 is verified as such, and the engine that a device builds has no TF32 either.
        "disable_tf32": True,
    }
    parameters = inspect.signature(convert).parameters
    try:
        result = convert(
            program,
            arg_inputs=(),
            kwarg_inputs=_inputs(torch_tensorrt.Input, request["inputs"], profiles),
            **{name: value for name, value in options.items() if name in parameters},
        )
    except Exception as error:  # of whatever class its many parts raise
        # The log has the reason; what is raised may just be that there is no result.
        messages = log.errors or [f"{type(error).__name__}: {error}"]
        raise _Refused("; ".join(messages[-3:])) from None
    engine = b"" if result is None else bytes(memoryview(result))
    if not engine:
        raise _Refused(
            "; ".join(log.errors[-3:]) or "it gave nothing back, and its log says nothing"
        )
    return engine


def convert_options(convert: Callable[..., Any], precision: str) -> dict[str, Any]:
    """Options that make ``convert`` compute in a precision; raises _Refused where there are none.

    The program itself is float32. Newer releases build strongly typed engines and put Casts into the
    program ("autocast"); those before let TensorRT choose among enabled precisions.
    """
    import torch

    parameters = inspect.signature(convert).parameters
    if precision == "fp32":
        return {"use_explicit_typing": True}
    if {"enable_autocast", "low_precision_type"} <= parameters.keys():
        return {
            "use_explicit_typing": True,
            "enable_autocast": True,
            "low_precision_type": torch.float16,
        }
    if "enabled_precisions" in parameters:
        return {
            "use_explicit_typing": False,
            "enabled_precisions": {torch.float32, torch.float16},
        }
    raise _Refused(f"this release can't be told to compute in {precision}")


def _inputs(
    make: Callable[..., Any],
    inputs: Sequence[Mapping[str, str]],
    profiles: Sequence[Mapping[str, Shapes]],
) -> dict[str, Any]:
    """The inputs by name, each with its shapes."""
    import torch

    result = {}
    for item in inputs:
        dtype = getattr(torch, item["dtype"])
        ranges = [
            {f"{key}_shape": tuple(shapes[item["name"]][key]) for key in ("min", "opt", "max")}
            for shapes in profiles
        ]
        distinct = {shape for sizes in ranges for shape in sizes.values()}
        try:
            if len(distinct) == 1:
                spec = make(shape=distinct.pop(), dtype=dtype)
            elif len(ranges) == 1:
                spec = make(**ranges[0], dtype=dtype)
            else:
                spec = make(profiles=ranges, dtype=dtype)
        except (TypeError, ValueError) as error:
            if len(ranges) == 1:
                raise _Refused(f"{item['name']}: {error}") from None
            raise _Refused(f"this release has one profile for an engine ({error})") from None
        result[item["name"]] = spec
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
