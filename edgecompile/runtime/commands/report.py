"""``report``: a machine, a bundle's self-test and its times there, as one table and one JSON file to post."""

import functools
import json
import os
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from ... import __version__
from ..base.errors import InputError
from ..call.inputs import make_inputs
from ..format.document import shorten
from ..format.output import check_output, write_output
from ..measure.board import describe_board, read_state
from ..measure.peers import find_peers, open_peer, peer_version
from ..measure.rounds import check_budget, measure_medians, what_ran
from ..measure.workload import Run, plan_runs
from ..model.open_bundle import open_bundle
from .selftest import run_selftest

KIND = "edgecompile-report"
LEAST_ROUNDS = 5
_PAUSE = 0.01  # seconds
_OWN = "edgecompile"


class _Contender(NamedTuple):
    """One runtime with one number of threads; ``run`` takes the inputs of a length."""

    name: str
    threads: int
    run: Callable[[Any], Any]


def make_report(
    path: str,
    *,
    onnx: Optional[str] = None,
    threads: Sequence[int] = (),
    seconds: float = 30.0,
    seed: int = 0,
    output: Optional[str] = None,
    say: Callable[[str], None] = lambda text: None,
    **how: Any,
) -> Dict[str, Any]:
    """Describes this machine, tests a bundle on it, and times it with several numbers of threads.

    Args:
        path: Path of the bundle.
        onnx: Path of an ONNX file of the same model. onnxruntime and openvino, where they are
            installed, run it in the same rounds.
        threads: Numbers of threads; none: 1, 2, 4 and so on to the number of usable CPUs.
        seconds: Time of the measurement.
        seed: Seed of the inputs' values and of the order of runs.
        output: Path of the JSON file to write.
        say: Takes a line of text for every step.
        how: The arguments ``variant`` and ``verify`` of ``open_bundle``.

    Returns:
        Plain JSON values. "machine", "before" and "after" describe the device; "selftest" says "ok",
        "cases" and "failed"; "times" holds an entry for each runtime and number of threads: "runtime",
        "threads" (0: a GPU), "ms" (the median of each length, in the order of "lengths") and, for a peer,
        "error_of_scale": the largest difference from the bundle's outputs, as a share of their
        largest value (None: the file's outputs have other shapes).

    Raises:
        BundleError, UnsupportedHostError, NativeError: the bundle can't be opened.
        InputError: the ONNX file isn't this model's, no peer is installed, or a number is out of its
            range.
    """
    check_budget(seconds, 0)
    file = None if output is None else check_output(output, "--output", path)
    peers = _choose_peers(onnx)
    before = read_state()
    tested = run_selftest(path, say=say, **how)
    counts = _thread_counts(threads, tested["host"]["cpus"])
    with open_bundle(path, **how) as model:
        manifest, info = model.manifest, model.info
        if not info["run_threads"]:
            counts = [0]  # as a GPU runs
        runs, _ = plan_runs(manifest, None)
        inputs = [make_inputs(manifest, run[1], seed + i) for i, run in enumerate(runs)]
        contenders = [_Contender(_OWN, n, functools.partial(model.run, threads=n)) for n in counts]
        errors: Dict[str, Optional[float]] = {}
        for name in peers:
            opened = [_Contender(name, n, open_peer(name, str(onnx), n or 1)) for n in counts]
            errors[name] = _compare(model.run, opened[0].run, inputs)
            contenders += opened
        say("timing {} lengths: {}".format(len(runs), _names(contenders)))
        medians = measure_medians(
            [contender.run for contender in contenders],
            inputs,
            before=_settle,
            seconds=seconds,
            least=LEAST_ROUNDS,
            seed=seed,
        )
    report = {
        "kind": KIND,
        "version": 1,
        "edgecompile": __version__,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {**tested["host"], **describe_board()},
        "bundle": {
            **{key: info[key] for key in ("name", "manifest_sha256", "variant")},
            **what_ran(info),
        },
        "selftest": {
            "ok": tested["ok"],
            "cases": len(tested["cases"]),
            "failed": tested["failed"],
        },
        "lengths": _lengths(runs),
        "times": [
            _entry(contender, times, errors) for contender, times in zip(contenders, medians)
        ],
        "before": before,
        "after": read_state(),
    }
    if file is not None:
        write_output(file, json.dumps(report, indent=1, allow_nan=False).encode() + b"\n")
        say("wrote " + file)
    return report


def _choose_peers(onnx: Optional[str]) -> List[str]:
    if onnx is None:
        return []
    if not os.path.isfile(onnx):
        raise InputError("{}: isn't a file".format(shorten(onnx, 1024)))
    peers = find_peers()
    if not peers:
        hint = "install one of them here, or leave --onnx out"
        raise InputError("neither onnxruntime nor openvino is installed", hint)
    return peers


def _thread_counts(asked: Sequence[int], cpus: int) -> List[int]:
    if any(count < 1 for count in asked):
        raise InputError("--threads is {}, must be at least 1".format(min(asked)))
    if asked:
        return sorted(set(asked))
    doubled = [1 << power for power in range(cpus.bit_length())]
    return sorted({*(count for count in doubled if count <= cpus), cpus})


def _lengths(runs: Sequence[Run]) -> List[Optional[int]]:
    return [length for length, _, _ in runs]


def _names(contenders: Sequence[_Contender]) -> str:
    return ", ".join("{} on {}".format(item.name, item.threads) for item in contenders)


def _compare(own: Callable[[Any], Any], other: Any, inputs: Sequence[Any]) -> Optional[float]:
    worst = 0.0
    for item in inputs:
        wanted, found = list(own(item).values()), other(item)
        if [array.shape for array in wanted] != [array.shape for array in found]:
            return None
        for want, have in zip(wanted, found):
            scale = float(np.max(np.abs(want), initial=0.0)) or 1.0
            error = np.abs(want.astype(np.float64) - have.astype(np.float64))
            worst = max(worst, float(np.max(error, initial=0.0)) / scale)
    return worst


def _settle(run: Callable[[Any], Any], item: Any) -> None:
    """The other runtimes' threads spin for a while after their run; caches hold their weights."""
    time.sleep(_PAUSE)
    run(item)


def _entry(
    contender: _Contender, times: List[float], errors: Dict[str, Optional[float]]
) -> Dict[str, Any]:
    entry: Dict[str, Any] = {"runtime": contender.name, "threads": contender.threads, "ms": times}
    if contender.name in errors:
        entry["runtime_version"] = peer_version(contender.name)
        entry["error_of_scale"] = errors[contender.name]
    return entry


def format_report(report: Dict[str, Any]) -> List[str]:
    """The report for people, a line each."""
    machine, tested = report["machine"], report["selftest"]
    state = ["load {:g} before, {:g} after".format(*_states(report, "load"))]
    if report["after"]["temperature_c"] is not None:
        degrees = [value or 0.0 for value in _states(report, "temperature_c")]
        state.append("{:.0f} C before, {:.0f} C after".format(*degrees))
    if machine["governors"]:
        state.append("governor " + " and ".join(machine["governors"]))
    verdict = "PASSED" if tested["ok"] else "FAILED"
    good = tested["cases"] - tested["failed"]
    lines = [
        "machine   {}, {} CPUs".format(machine["board"] or machine["arch"], machine["cpus"]),
        "          {}, {}, kernel {}".format(
            machine["model"] or "CPU unknown", machine["system"] or "?", machine["kernel"]
        ),
        "state     " + ", ".join(state),
        "bundle    {name}, variant {variant}".format(**report["bundle"]),
        "selftest  {}: {} of {} cases ok".format(verdict, good, tested["cases"]),
        "",
        "{:<14} {:>7}".format("median ms", "threads") + "".join(map(_column, report["lengths"])),
    ]
    for item in report["times"]:
        row = "{:<14} {:>7}".format(item["runtime"], item["threads"] or "-")
        lines.append(row + "".join("{:>10.3f}".format(ms) for ms in item["ms"]))
    told = {}
    for item in report["times"]:
        if "error_of_scale" in item:
            told[item["runtime"]] = item["error_of_scale"]
    for name, error in told.items():
        text = "other outputs" if error is None else "{:.1e} of the outputs' scale".format(error)
        lines.append("{} differs from the bundle by: {}".format(name, text))
    return lines


def _states(report: Dict[str, Any], key: str) -> List[Any]:
    return [report["before"][key], report["after"][key]]


def _column(length: Optional[int]) -> str:
    return "{:>10}".format("-" if length is None else length)
