"""Repeats on this machine what the build host verified: hashes, then golden vectors."""

import os
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Protocol, Tuple

from ..errors import EdgecompileError
from ..format.compare import compare_arrays
from ..format.golden import Case, list_cases, read_case
from ..format.manifest import Manifest, Tolerance
from ..generation.golden import format_generations, replay_generations
from ..model import open_bundle

if TYPE_CHECKING:
    from numpy.typing import NDArray


def run_selftest(
    path: str,
    *,
    cases: Optional[str] = None,
    threads: Optional[int] = None,
    variant: Optional[str] = None,
    verify: str = "full",
    say: Callable[[str], None] = lambda text: None,
) -> Dict[str, Any]:
    """Opens a bundle, runs its golden vectors and judges the outputs.

    Args:
        path: the bundle.
        cases: a folder of ``<bucket>-<case>.npz`` to run instead of the bundle's own vectors, and
            perhaps a ``generation.json``.
        threads: see ``open_bundle``.
        variant: see ``open_bundle``.
        verify: see ``open_bundle``; "full" compares the hash of every file first.
        say: gets a line of text for every step.

    Returns:
        Plain JSON values: "ok", "tolerance" and "min_cosine" (of the variant that ran), "cases" (each with bucket, case, ok, max_abs_error, scale, limit,
        cosine (the least of its outputs), ms, outputs and, where it failed, error), "missing_buckets" (without a vector; with the
        bundle's own vectors that is a failure), "generation" (of a generative bundle's golden
        generations, see ``generation.golden.replay_generations``), "encoder" (cases of the bundle that
        reads its sources) and "imported" (top-level modules of this process).

    Raises:
        BundleError, UnsupportedHostError, NativeError: the bundle can't be opened at all.
    """
    started = time.perf_counter()
    with open_bundle(path, threads=threads, variant=variant, verify=verify) as model:
        opened = time.perf_counter()
        info = model.info
        say("opened {} as {} in {:.2f} s".format(path, info["variant"], opened - started))
        results = run_cases(model, cases)
        covered = {item["bucket"] for item in results}
        generated = replay_generations(model, cases)
        inner = [] if cases or model.encoder is None else run_cases(model.encoder)
        absent = [i for i in range(len(model.manifest.buckets)) if i not in covered]
        tolerance, min_cosine = model.tolerance.to_json(), model.min_cosine
    failed = [item for item in results if not item["ok"]]
    return {
        "ok": not failed
        and bool(results)
        and (cases is not None or not absent)
        and all(item["ok"] for item in (*generated, *inner)),
        "bundle": path,
        "name": info["name"],
        "manifest_sha256": info["manifest_sha256"],
        "variant": info["variant"],
        "threads": info["threads"],
        "verify": verify,
        "tolerance": tolerance,
        "min_cosine": min_cosine,
        "open_seconds": opened - started,
        "cases": results,
        "failed": len(failed),
        "missing_buckets": absent,
        "generation": generated,
        "encoder": inner,
        "host": info["host"],
        "imported": sorted({name.partition(".")[0] for name in sys.modules}),
    }


_Loader = Callable[[], Case]


class Runner(Protocol):
    """What the cases are run with: an open ``Model``, or an engine that isn't finished yet."""

    @property
    def manifest(self) -> Manifest:
        """The bundle's."""
        ...

    @property
    def tolerance(self) -> Tolerance:
        """Of what runs here."""
        ...

    @property
    def min_cosine(self) -> Optional[float]:
        """The least cosine of an output; None: any."""
        ...

    def open_file(self, name: str) -> int:
        """See ``Model.open_file``."""
        ...

    def run_bucket(self, bucket: int, inputs: Mapping[str, Any]) -> "Dict[str, NDArray[Any]]":
        """See ``Model.run_bucket``."""
        ...


def run_cases(model: Runner, cases: Optional[str] = None) -> List[Dict[str, Any]]:
    """What became of each golden vector, or of each in the folder ``cases``; see ``run_selftest``."""
    return [_run_case(model, *item) for item in _cases(model, cases)]


def _cases(model: Runner, cases: Optional[str]) -> List[Tuple[int, str, _Loader]]:
    manifest = model.manifest
    if cases is not None:
        return [
            (bucket, name, lambda file=file: _load_file(model, file))  # type: ignore[misc]
            for bucket, name, file in list_cases(cases)
        ]
    return [
        (item.bucket, item.case, lambda item=item: _load_golden(model, item.file))  # type: ignore[misc]
        for item in sorted(manifest.golden, key=lambda item: (item.bucket, item.case))
    ]


def _load_file(model: Runner, file: str) -> Case:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_case(fd, file, model.manifest)
    finally:
        os.close(fd)


def _load_golden(model: Runner, name: str) -> Case:
    fd = model.open_file(name)
    try:
        return read_case(fd, name, model.manifest)
    finally:
        os.close(fd)


def _run_case(model: Runner, bucket: int, name: str, load: _Loader) -> Dict[str, Any]:
    result: Dict[str, Any] = {
        "bucket": bucket,
        "case": name,
        "ok": False,
        "max_abs_error": None,
        "scale": None,
        "limit": None,
        "cosine": None,
        "ms": None,
        "outputs": {},
    }
    try:
        case = load()
        started = time.perf_counter_ns()
        outputs = model.run_bucket(bucket, case.inputs)
        result["ms"] = (time.perf_counter_ns() - started) / 1e6
    except EdgecompileError as error:
        result["error"] = str(error)
        return result
    except OSError as error:
        result["error"] = "can't be read: {}".format(error.strerror)
        return result
    agreements = {
        key: compare_arrays(outputs[key], want, model.tolerance, model.min_cosine)
        for key, want in case.outputs.items()
    }
    # The case is as bad as its worst output: a failed one, or the one nearest to its limit.
    worst = max(
        agreements.values(),
        key=lambda item: (not item.ok, item.max_abs_error / item.limit if item.limit else 0.0),
    )
    result.update(
        ok=all(item.ok for item in agreements.values()),
        max_abs_error=worst.max_abs_error,
        scale=worst.scale,
        limit=worst.limit,
        cosine=min((a.cosine for a in agreements.values() if a.cosine is not None), default=None),
        outputs={key: item.to_json() for key, item in agreements.items()},
    )
    reasons = ["{} {}".format(key, item.reason) for key, item in agreements.items() if item.reason]
    if reasons:
        result["error"] = "; ".join(reasons)
    return result


def format_selftest(report: Dict[str, Any]) -> List[str]:
    """The verdict table for people, a line each."""
    lines = [
        "{:>6}  {:<24} {:>10} {:>10} {:>10} {:>9}  verdict".format(
            "bucket", "case", "max error", "limit", "max|want|", "ms"
        )
    ]
    for item, name in [
        *((item, str(item["bucket"])) for item in report["cases"]),
        *((item, "enc {}".format(item["bucket"])) for item in report["encoder"]),
    ]:
        numbers = [
            "-" if item[key] is None else "{:.3g}".format(item[key])
            for key in ("max_abs_error", "limit", "scale", "ms")
        ]
        verdict = "ok" if item["ok"] else "FAILED: " + item.get("error", "")
        lines.append(
            "{:>6}  {:<24} {:>10} {:>10} {:>10} {:>9}  {}".format(
                name, item["case"], *numbers, verdict
            )
        )
    if report["missing_buckets"]:
        text = ", ".join(str(index) for index in report["missing_buckets"])
        lines.append("buckets without a vector: " + text)
    lines += format_generations(report["generation"])
    good = len(report["cases"]) - report["failed"]
    text = "{}: {} of {} cases ok, variant {}, {} threads"
    verdict = "PASSED" if report["ok"] else "FAILED"
    lines.append(
        text.format(verdict, good, len(report["cases"]), report["variant"], report["threads"])
    )
    return lines
