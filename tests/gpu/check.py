"""Runs the CUDA half of the runtime on a real GPU, with torch's programs in TensorRT's place.

A small transformer encoder in fp16, a program per bucket: correctness against eager of every length,
then times of eager, of our default mode, of a graph per bucket and of one padded shape. Each way to
make programs (ahead of time, torch.compile, eager) has a process of its own, for one that crashes
takes nothing along. The report is one JSON object on standard output.

    python3 -m tests.gpu.check > gpu.json          about five to ten minutes on a machine with a GPU
    python3 -m tests.gpu.check --fake LIB          the same on a fake of libcudart: computes on the CPU

Needs torch with CUDA and numpy; transformers' BERT is used where it is there and can be captured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("aoti", "aoti-hidden", "compile", "eager")


def say(text: str) -> None:
    """A line for people."""
    print(text, file=sys.stderr, flush=True)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kinds", default=",".join(KINDS), help="default: %(default)s")
    parser.add_argument(
        "--all", action="store_true", help="don't stop at the first kind that works"
    )
    parser.add_argument("--models", default="bert,plain", help="default: %(default)s")
    parser.add_argument("--edges", default="16,32,64,128", help="upper ends of the buckets")
    parser.add_argument("--lengths", default="8,16,24,32,48,64,96,128", help="what is run")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--budget", type=float, default=540.0, help="seconds for all of it")
    parser.add_argument("--fake", metavar="LIB", help="a fake of libcudart instead of a GPU")
    parser.add_argument("--child", metavar="OUTPUT", help=argparse.SUPPRESS)
    parser.add_argument("--task", default="check", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def describe() -> dict[str, Any]:
    """This machine and its Python."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
    }


def run_child(options: argparse.Namespace, kind: str, model: str, task: str, limit: float) -> Any:
    """Its report, with how it ended under "ended"."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "report.json"
        command = [sys.executable, __file__, "--child", str(output), "--task", task]
        command += ["--kinds", kind, "--models", model]
        for name in ("edges", "lengths", "width", "layers", "heads", "rounds"):
            command += ["--" + name, str(getattr(options, name))]
        if options.fake:
            command += ["--fake", options.fake]
        started = time.monotonic()
        try:
            done = subprocess.run(command, stdout=2, timeout=max(limit, 5), check=False)
            ended: Any = done.returncode  # of a signal its negative number
        except subprocess.TimeoutExpired:
            ended = f"ended after {limit:.0f} s"
        report: dict[str, Any] = {"kind": kind, "model": model}
        if output.is_file():
            report = json.loads(output.read_text())
        report.update(ended=ended, seconds=round(time.monotonic() - started, 1))
        return report


def works(report: dict[str, Any]) -> bool:
    """Whether programs of this kind ran in both modes and were measured."""
    stages = report.get("stages", {})
    return all(stages.get(name, {}).get("ok") for name in ("default", "graphs", "timings"))


def main(options: argparse.Namespace) -> int:
    """The parent: one process after another; 0 if one kind works."""
    began = time.monotonic()
    kinds, models = options.kinds.split(","), options.models.split(",")
    report: dict[str, Any] = {"gpu_check_version": 1, **describe(), "attempts": []}
    report["options"] = {k: v for k, v in vars(options).items() if k not in ("child", "task")}
    models = choose_models(options, models, report)
    working = None
    for kind in kinds:
        for model in models:
            left = options.budget - (time.monotonic() - began)
            # Something is kept for eager, which always comes last and is quick.
            limit = left if kind == kinds[-1] else min(left - 90, 0.6 * left)
            if limit < 20:
                say(f"{kind}: no time left")
                continue
            say(f"{kind}, {model}: up to {limit:.0f} s")
            attempt = run_child(options, kind, model, "check", limit)
            report["attempts"].append(attempt)
            say(f"{kind}, {model}: {summarise(attempt)}")
            if works(attempt):
                working = working or attempt
                break
        if working and not options.all:
            break
    if options.budget - (time.monotonic() - began) > 30:
        report["sticky"] = run_child(options, "eager", models[-1], "sticky", 60)
    report["works"] = None if working is None else [working["kind"], working["model"]]
    report["seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(report, indent=1))
    return 0 if working else 1


def choose_models(
    options: argparse.Namespace, models: list[str], report: dict[str, Any]
) -> list[str]:
    """Those that torch itself can capture, asked in processes of their own."""
    report["probes"] = {}
    good = []
    for model in models:
        probe = run_child(options, "eager", model, "probe", 120)
        report["probes"][model] = probe
        if probe.get("ok"):
            good.append(model)
        say(f"model {model}: {'ok' if probe.get('ok') else probe.get('error', 'ended')}")
    return good or models[-1:]


def summarise(attempt: dict[str, Any]) -> str:
    """One line about a process."""
    stages = attempt.get("stages", {})
    bad = [f"{name}: {item['error'][:200]}" for name, item in stages.items() if not item["ok"]]
    if "now" in attempt:
        bad.append(f"ended ({attempt['ended']}) in {attempt['now']}")
    means = stages.get("timings", {}).get("result", {}).get("mean_of_medians_ms", {})
    times = ", ".join(f"{name} {value:.3f} ms" for name, value in means.items())
    return "; ".join([*([times] if times else []), *bad]) or f"ended with {attempt.get('ended')}"


def child(options: argparse.Namespace) -> int:
    """One process: the whole check of a kind, a probe of a model, or what comes after a fault."""
    sys.path.insert(0, str(ROOT))
    output = Path(options.child)
    kind, model = options.kinds, options.models
    if options.fake:
        os.environ["EDGECOMPILE_CUDART"] = options.fake
    with tempfile.TemporaryDirectory() as folder:
        from tests.gpu.stages import Settings
        from tests.gpu.tasks import check, find_libcudart, probe, sticky

        find_libcudart()
        settings = Settings(
            kind=kind,
            model=model,
            edges=tuple(int(item) for item in options.edges.split(",")),
            lengths=tuple(int(item) for item in options.lengths.split(",")),
            width=options.width,
            layers=options.layers,
            heads=options.heads,
            rounds=options.rounds,
            fake=bool(options.fake),
            folder=folder,
        )
        task = {"check": check, "probe": probe, "sticky": sticky}[options.task]
        report = task(settings, output)
        report["settings"] = dataclasses.asdict(settings)
        output.write_text(json.dumps(report, indent=1))
        # A GPU that was broken on purpose makes torch's farewell fail.
        sys.stderr.flush()
        os._exit(0 if report.get("ok") else 1)


if __name__ == "__main__":
    chosen = parse()
    sys.exit(child(chosen) if chosen.child else main(chosen))
