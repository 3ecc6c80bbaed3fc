"""Times a bundle for a GPU beside eager PyTorch, torch.compile and TensorRT, in one run.

    benchmarks/run gpu BUNDLE [--torch FOLDER] [--beside PYTHON,BUNDLE] [--lengths 16,...] [--batches 1,8]

Two clocks. "call": numpy arrays in, numpy arrays out, as a program calls it. "device": inputs and outputs
stay on the GPU, and each run is waited for. All engines take turns, round by round, and each figure is the
median of all rounds, in microseconds. torch's model is that of a folder's config.json, in float16 with
weights of its own. A bundle beside it, such as TensorRT's, is run by a Python of its own, which takes its turns
with the rest. Where a bundle's runs are graphs, each is captured for the very sizes. With ``--multiprocessors``, the bundle runs on a part of the GPU (a green context),
the others on all of it. ``--smoke`` runs golden
vectors in every mode instead and compares graphs with plain runs bit by bit. Needs numpy; with --torch, torch with
CUDA and transformers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.engines import (
    Beside,
    captured,
    open_models,
    own_engines,
    serve,
    take_turns,
    torch_engines,
    use_part,
    waiting,
)
from benchmarks.gpu.single import open_single
from edgecompile.runtime.base.errors import EdgecompileError, GpuError, ModeError
from edgecompile.runtime.call.inputs import InputChecker
from edgecompile.runtime.call.inputs import make_inputs as make_arrays
from edgecompile.runtime.commands.selftest import run_selftest
from edgecompile.runtime.gpu.engines import DEFAULT, MODES
from edgecompile.runtime.gpu.program import GpuProgram
from edgecompile.runtime.model.model import Model

LENGTHS = (16, 32, 64, 128, 256, 512)
COLD = """
import json, sys, time
started = time.perf_counter()
from edgecompile.runtime import open_bundle
imported = time.perf_counter()
model = open_bundle(sys.argv[1], warmup=False)
opened = time.perf_counter()
from edgecompile.runtime.call.inputs import make_inputs
manifest = model.manifest
sizes = {axis: extent.lo for axis, extent in manifest.axes.items()}
model.run(make_inputs(manifest, sizes))
answered = time.perf_counter()
maps = {line.split("/")[-1].strip() for line in open("/proc/self/maps") if ".so" in line}
print(json.dumps({"answered_at": answered, "import_ms": (imported - started) * 1e3, "open_ms": (opened - imported) * 1e3,
                  "first_run_ms": (answered - opened) * 1e3,
                  "libraries": sorted(x for x in maps if "cuda" in x or "torch" in x or "nv" in x)}))
"""


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="benchmarks/run gpu", description="Time a GPU bundle.")
    add = parser.add_argument
    add("bundle", help="with a variant for this GPU")
    add("--lengths", type=_numbers, default=LENGTHS, help="in tokens, with commas between them")
    add("--batches", type=_numbers, default=(1, 8), help="those that the bundle takes are run")
    add("--torch", type=Path, metavar="FOLDER", help="time torch with this model, too")
    add("--autotune", action="store_true", help="and with its max-autotune: minutes a size")
    add("--beside", action="append", default=[], metavar="PYTHON,BUNDLE", help="time it, too")
    add(
        "--multiprocessors", type=int, default=0, metavar="N", help="give the bundle N of the GPU's"
    )
    add("--serve", action="store_true", help="answer another process of this program")
    add("--rounds", type=int, default=60, help="runs of each engine at each size (default 60)")
    add("--cold", type=int, default=5, help="starts of processes (default 5)")
    add("--smoke", action="store_true", help="check results, time nothing")
    add("--json", type=Path, metavar="FILE", help="write every figure here")
    return parser.parse_args(arguments)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def axis_sizes(model: Model, length: int, batch: int) -> dict[str, int] | None:
    """Sizes of a run, or None where the bundle doesn't take them."""
    manifest = model.manifest
    sizes = {axis: extent.lo for axis, extent in manifest.axes.items()}
    if manifest.length_axis is not None:
        sizes[manifest.length_axis] = length
    others = [axis for axis in manifest.axes if axis != manifest.length_axis]
    if batch > 1 and not others:
        return None
    for axis in others:
        sizes[axis] = batch
    fits = any(bucket.contains(sizes) for bucket in manifest.buckets)
    return sizes if fits else None


def smoke(path: str) -> dict[str, Any]:
    """Golden vectors in every mode, and graphs beside plain runs, at the edges of every bucket."""
    report: dict[str, Any] = {"modes": {}, "differing": [], "runs": 0}
    for mode in MODES:
        try:
            result = run_selftest(path, mode=mode)
        except EdgecompileError as error:
            # A bundle may not allow its buckets to be padded.
            report["modes"][mode] = {"ok": isinstance(error, ModeError), "error": str(error)}
            continue
        cases = [
            {key: case.get(key) for key in ("bucket", "case", "ok", "max_abs_error", "cosine")}
            for case in result["cases"]
        ]
        report["modes"][mode] = {
            "ok": result["ok"], "tolerance": result["tolerance"], "cases": cases,
        }  # fmt: skip
    with open_single(path) as model:
        report["info"] = model.info
        checker, programs = InputChecker(model.manifest), model._programs
        for index, bucket in enumerate(model.manifest.buckets):
            for end in ("lo", "hi"):
                sizes = {axis: getattr(extent, end) for axis, extent in bucket.axes.items()}
                if bucket.mode == "pad":
                    sizes = {axis: extent.hi for axis, extent in bucket.axes.items()}
                inputs = make_arrays(model.manifest, sizes, 7)
                program = programs.get(index)
                assert isinstance(program, GpuProgram)
                plain = program.run(checker.check(inputs)[0])
                with captured(program) as executable:
                    cuda, stream = program._cuda, program._shared.stream
                    cuda.launch(executable, stream)
                    assert program._buffers is not None and program._now is not None
                    program._buffers.fetch(program._now.fetched, stream)
                    cuda.synchronize(stream)
                graph = [np.array(view) for view in program._now.targets]
                report["runs"] += 1
                for spec, one, other in zip(model.manifest.outputs, plain, graph, strict=True):
                    if not np.array_equal(one, other.astype(one.dtype), equal_nan=True):
                        report["differing"].append([index, end, spec.name])
                    if not np.isfinite(one).all():
                        report["differing"].append([index, end, spec.name, "not finite"])
    report["ok"] = not report["differing"] and all(x.get("ok") for x in report["modes"].values())
    return report


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every figure."""
    report: dict[str, Any] = {"bundle": os.path.basename(arguments.bundle), "sizes": []}
    report["cold"] = cold_starts(arguments.bundle, arguments.cold)
    print(report["cold"], flush=True)
    others = torch_engines(arguments.torch, arguments.autotune) if arguments.torch else None
    beside = [Beside(text) for text in arguments.beside]
    models, plain = open_models(arguments.bundle), open_single(arguments.bundle)
    report["info"] = models[DEFAULT].info
    settle, seen = waiting(plain), []
    for batch in arguments.batches:
        for length in arguments.lengths:
            sizes = axis_sizes(models[DEFAULT], length, batch)
            if sizes is None or sizes in seen:
                continue
            seen.append(sizes)
            engines, close = own_engines(models, plain, sizes)
            for other in beside:
                engines.update(other.engines(sizes))
            if others is not None:
                engines.update(others(make_arrays(models[DEFAULT].manifest, sizes, 7)))
            figures = take_turns(engines, arguments.rounds, settle)
            close()
            report["sizes"].append({"sizes": sizes, "us": figures})
            print(sizes, figures, flush=True)
            save(report, arguments.json)  # whoever ends it early has what there is
    if not seen:
        raise SystemExit("the bundle takes none of these sizes: give --lengths and --batches")
    for other in beside:
        other.close()
    for model in (*models.values(), plain):
        model.close()
    return report


def save(report: dict[str, Any], path: Path | None) -> str:
    """The report as text, and in a file."""
    text = json.dumps(report, indent=1, default=str)
    if path is not None:
        path.write_text(text + "\n", encoding="utf-8")
    return text


def cold_starts(path: str, count: int) -> dict[str, Any]:
    """Medians of processes from their start to their first answer, in milliseconds."""
    rows = []
    for _ in range(count):
        started = time.perf_counter()  # one clock for all processes
        child = subprocess.run(
            [sys.executable, "-c", COLD, path], capture_output=True, text=True, check=False
        )
        whole = (time.perf_counter() - started) * 1e3
        if child.returncode != 0:
            raise GpuError(f"a fresh process failed: {child.stderr[-2000:]}")
        row = json.loads(child.stdout)
        # Until its answer; a process with a GPU takes long to end, too.
        row["answer_ms"] = (row.pop("answered_at") - started) * 1e3
        rows.append({"process_ms": whole, **row})
    if not rows:
        return {}
    figures = {
        key: round(statistics.median(row[key] for row in rows), 1)
        for key in rows[0]
        if key.endswith("_ms")
    }
    return {**figures, "libraries": rows[0]["libraries"]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it."""
    options = parse_arguments(arguments)
    if options.multiprocessors:
        use_part(options.multiprocessors)
    if options.serve:
        serve(options.bundle)
        return 0
    report = smoke(options.bundle) if options.smoke else measure(options)
    text = save(report, options.json)
    if options.smoke or options.json is None:
        print(text)
    return 0 if report.get("ok", True) else 1


if __name__ == "__main__":
    sys.exit(main())
