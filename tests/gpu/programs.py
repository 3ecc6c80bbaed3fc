"""The ways in which torch makes a program of the encoder for a bucket."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from edgecompile.runtime.format.schema import Manifest
from tests.gpu.torch_engine import Program

#: From the fastest on. "aoti-hidden" is "aoti" whose link hides what static libraries export: a
#: libstdc++ that is linked statically must not answer for the process' own.
KINDS = ("aoti", "aoti-hidden", "compile", "eager")
_WRAPPER = """#!/bin/sh
for word in "$@"; do
  if [ "$word" = -shared ]; then exec {0} "$@" -Wl,--exclude-libs,ALL; fi
done
exec {0} "$@"
"""


def prepare_kind(kind: str, folder: Path) -> None:
    """Settings that have to precede the import of torch's compiler."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
    if kind == "aoti-hidden":
        # Named like the compiler that it stands for: torch looks at the name.
        wrapper = folder / "bin" / "g++"
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        wrapper.write_text(_WRAPPER.format(os.environ.get("CXX") or shutil.which("g++") or "g++"))
        wrapper.chmod(0o755)
        os.environ["CXX"] = str(wrapper)


def make_programs(
    kind: str, model: torch.nn.Module, manifest: Manifest, device: str, folder: Path
) -> tuple[list[Program], list[float]]:
    """A program for each bucket, and the seconds that each took.

    Those of buckets of mode exact take every length of the bucket, the others only the largest.
    """
    programs: list[Program] = []
    seconds = []
    for index, bucket in enumerate(manifest.buckets):
        started = time.perf_counter()
        extent = bucket.axes["length"]
        low = extent.hi if bucket.mode == "pad" else extent.lo
        inputs = tuple(
            torch.ones((1, extent.hi), dtype=torch.int64, device=device) for _ in manifest.inputs
        )
        if kind == "eager":
            programs.append(model)
        elif kind == "compile":
            compiled = torch.compile(model, dynamic=low < extent.hi)
            with torch.no_grad():
                compiled(*inputs)
            programs.append(compiled)
        else:
            programs.append(_compile_ahead(model, inputs, low, extent.hi, folder / f"{index}.pt2"))
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return programs, seconds


def _compile_ahead(
    model: torch.nn.Module, inputs: tuple[Any, ...], low: int, high: int, path: Path
) -> Program:
    shapes: Any = None
    if low < high:
        # 0 and 1 are special to torch.export, and a length of 1 isn't asked of these programs.
        length = torch.export.Dim("length", min=max(low, 2), max=high)
        shapes = tuple({1: length} for _ in inputs)
    with torch.no_grad():
        exported = torch.export.export(model, inputs, dynamic_shapes=shapes, strict=False)
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path))
    # Without its bookkeeping about threads, which asks events that a capture forbids to ask.
    try:
        program = torch._inductor.aoti_load_package(str(path), run_single_threaded=True)
    except TypeError:  # a torch that is older than this argument
        program = torch._inductor.aoti_load_package(str(path))
    with torch.no_grad():
        program(*inputs)
    return program
