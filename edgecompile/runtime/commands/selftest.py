"""Repeats on this machine what the build host verified: hashes, golden vectors, rows, streams with state."""

import sys
import time
from typing import Any, Callable, Dict, List, Optional

from ..call.replay import run_cases
from ..call.rows import check_rows
from ..format.manifest.schema import plain
from ..generation.golden import format_generations, replay_generations
from ..model.open_bundle import open_bundle
from ..model.steps import check_steps

#: The numbers of threads that given cases are run with in turn, 0 as the bundle is opened.
_THREADS = (0, 1, 2, 4)


def run_selftest(
    path: str,
    *,
    cases: Optional[str] = None,
    verify: str = "full",
    say: Callable[[str], None] = lambda text: None,
    **how: Any,
) -> Dict[str, Any]:
    """Opens a bundle, runs its golden vectors and judges the outputs.

    Args:
        path: the bundle.
        cases: a folder of ``<bucket>-<case>.npz`` to run instead of the bundle's own vectors, and
            perhaps a ``generation.json``.
        verify: see ``open_bundle``; "full" compares the hash of every file first.
        say: a function that gets a line of text for every step.
        how: threads and variant of ``open_bundle``.

    Returns:
        Plain JSON values: "ok", "tolerance" and "min_cosine" (of the variant that ran), "cases" (each with bucket, case, ok, max_abs_error, scale, limit,
        cosine (the least of its outputs), ms, threads (0: as opened), outputs and, where it failed, error), "missing_buckets" (without a vector; with the
        bundle's own vectors that is a failure), "generation" (of a generative bundle's golden
        generations, see ``generation.golden.replay_generations``), "encoder" (cases of the bundle that
        reads its sources) and "imported" (top-level modules of this process).

    Raises:
        BundleError, UnsupportedHostError, NativeError: the bundle can't be opened at all.
    """
    started = time.perf_counter()
    with open_bundle(path, verify=verify, **how) as model:
        opened = time.perf_counter()
        info = model.info
        say("opened {} as {} in {:.2f} s".format(path, info["variant"], opened - started))
        # What threads race for comes out right with some numbers of threads.
        threads = _THREADS if cases is not None and info["run_threads"] else ()
        results = run_cases(model, cases, threads)
        if cases is None:
            results += check_rows(model)
        results += check_steps(model, cases)
        covered = {item["bucket"] for item in results}
        generated = replay_generations(model, cases)
        inner = [] if cases or model.encoder is None else run_cases(model.encoder)
        absent = [i for i in range(len(model.manifest.buckets)) if i not in covered]
        tolerance, min_cosine = plain(model.tolerance), model.min_cosine
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
