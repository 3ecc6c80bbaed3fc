"""The device's side of benchmarks/run plans: the standard library, numpy and a bundle's own runtime.

    python3 BUNDLE device.py JOB

JOB is a JSON file that plans.py writes. One JSON object a line goes to stdout: what was
opened, then the nanoseconds of every run of each round. The process ends when its stdin does, so
that its CPU time can be read before. The runtime comes from BUNDLE, the first of the job.
"""

import json
import platform
import random
import sys
import time
from contextlib import ExitStack

import numpy as np

import edgecompile.runtime
from edgecompile.runtime import open_bundle
from edgecompile.runtime.call.inputs import make_inputs

FRAMEWORKS = ("torch", "onnx", "onnxruntime", "openvino", "transformers")


def say(**message):
    """One line for the driver."""
    print(json.dumps(message), flush=True)


def sizes_of(job, length):
    """The size of every axis of a run."""
    return dict(job["sizes"], **{job["axis"]: length})


def largest_error(job, models):
    """How far the policies' outputs are apart, in units of what the bundles allow.

    Every policy runs every length once, which also warms all of them up.
    """
    worst = 0.0
    manifest = models[0].manifest
    for length in sorted(set(job["lengths"])):
        inputs = make_inputs(manifest, sizes_of(job, length), job["seed"])
        reference, *others = [model.run(inputs) for model in models]
        for outputs in others:
            for name, want in reference.items():
                allowed = manifest.tolerance.limit(float(np.abs(want).max()))
                difference = float(np.abs(outputs[name] - want).max())
                # A NaN must not pass for a small difference.
                share = difference / allowed if difference == difference else float("inf")
                worst = max(worst, share)
    return worst


def run_round(job, models, number):
    """Every policy runs the same inputs in the same order; who comes when is drawn each time."""
    order = list(job["lengths"])
    draw = random.Random("{} {}".format(job["seed"], number))
    draw.shuffle(order)
    names = list(models)
    draw.shuffle(names)
    manifest = models[names[0]].manifest
    seed = 1000 * (job["seed"] + 1 + number)
    inputs = [make_inputs(manifest, sizes_of(job, n), seed + i) for i, n in enumerate(order)]
    nanoseconds = {}
    for name in names:
        run = models[name].run
        for i in range(job["lead_in"]):
            run(inputs[i % len(inputs)])
        times = []
        for item in inputs:
            started = time.perf_counter_ns()
            run(item)
            times.append(time.perf_counter_ns() - started)
        nanoseconds[name] = times
    say(round=number, lengths=order, ns=nanoseconds)


def main(path):
    with open(path, encoding="utf-8") as stream:
        job = json.load(stream)
    with ExitStack() as stack:
        models = {
            name: stack.enter_context(open_bundle(bundle, threads=job["threads"]))
            for name, bundle in job["bundles"].items()
        }
        error = largest_error(job, list(models.values()))
        info = next(iter(models.values())).info
        say(
            opened={
                "runtime": edgecompile.runtime.__file__,
                "loaded": [name for name in FRAMEWORKS if name in sys.modules],
                "variant": info["variant"],
                "threads": info["threads"],
                "python": platform.python_version(),
                "numpy": np.__version__,
                # inf has no place in JSON
                "error_share": min(error, 1e9),
            }
        )
        began = time.perf_counter()
        number = 0
        while number < job["rounds"] or time.perf_counter() - began < job["seconds"]:
            run_round(job, models, number)
            number += 1
        say(done=number)
        sys.stdin.read()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
