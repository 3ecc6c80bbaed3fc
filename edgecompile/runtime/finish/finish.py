"""Finishes a bundle on its device: builds the TensorRT engine, tests it, and puts its stamp on it.

Whatever moment it is killed at, running it again goes on from what was whole; gpu/cache.py says
what lies where, maker.py does the work.
"""

import json
import os
import platform
import subprocess
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..base.children import child_command
from ..base.errors import EngineCacheError, UnsupportedHostError
from ..cpu.host import VARIANT_VARIABLE, architecture
from ..format.document import shorten
from ..format.files.folder import BundleFolder
from ..format.manifest.schema import TENSORRT, Manifest, Variant
from ..gpu.cache import (
    FinishedEngine,
    cache_root,
    is_whole,
)
from .comparison import describe_triton_variant, find_triton_variant, read_comparison
from .device_checks import check_device
from .maker import EngineMaker, Options, Say

_NOTHING = Options()


def finish_bundle(
    path: str,
    options: Options = _NOTHING,
    say: Say = lambda text: None,
    listed: Optional[str] = None,
) -> Dict[str, Any]:
    """Builds and tests the engine of a bundle's TensorRT variant, unless that was done before.

    Args:
        path: the bundle.
        options: see ``Options``.
        say: a function that gets a line of text for every step.
        listed: the SHA-256 of the manifest, where the caller has checked its signatures; None: they are
            checked here.

    Returns:
        Plain JSON values; docs/jetson.md lists them.

    Raises:
        BundleError: the bundle is malformed or damaged.
        UnsupportedHostError: it has no TensorRT variant for this machine.
        GpuUnavailableError: there is no ``tensorrt``, no libcudart or no GPU.
        WrongDeviceError: the recipe is for another device, JetPack or TensorRT.
        DeviceMemoryError, DeviceDiskError: there is too little of it.
        EngineCacheError: the folder of engines can't be used.
        SelftestError: the engine doesn't reproduce the golden vectors; it isn't served.
        FinishError: TensorRT failed.
    """
    started = time.monotonic()
    folder = BundleFolder(path, listed=listed)
    try:
        folder.check_sizes()
        maker = EngineMaker(folder, choose_variant(folder.manifest, options.variant), options, say)
        state, engine = _finish(maker)
        report = _report(maker, state, engine)
    finally:
        folder.close()
    report["seconds"] = time.monotonic() - started
    return report


def _finish(maker: EngineMaker) -> Tuple[str, FinishedEngine]:
    """Finishes; returns the steps taken, and the engine."""
    maker.say("device: {}".format(maker.identity))
    for note in check_device(maker.recipe, maker.identity, maker.options.force):
        maker.note(note)
    engine, _ = _finished(maker)
    rival = find_triton_variant(maker.manifest.variants, maker.variant)
    if engine is not None and (
        rival is None or read_comparison(maker.manifest, rival, engine) is not None
    ):
        maker.say("finished already: {}".format(engine.path))
        return "already finished", engine
    with maker.engines.locked(maker.say) as lock:
        # Whoever held it before may have done the work.
        engine, reason = _finished(maker)
        state = "already finished"
        if engine is not None:
            maker.say("finished already: {}".format(engine.path))
        else:
            _tell_why(maker, reason)
            state, engine = "finished", maker.make(lock)
        if rival is not None and read_comparison(maker.manifest, rival, engine) is None:
            engine = _compare(maker, rival, engine, lock)
    return state, engine


def _compare(
    maker: EngineMaker, rival: Variant, engine: FinishedEngine, lock: int
) -> FinishedEngine:
    """The engine, its stamp with the times of runs beside those of the programs that need none."""
    maker.say("measuring it beside the variant {}".format(rival.name))
    command, where = child_command("edgecompile.runtime.measure.variants")
    command += [os.path.abspath(maker.folder.path), maker.folder.manifest_sha256]
    command += [maker.variant.name, rival.name]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, pass_fds=[lock], **where
        )
        report = json.loads(done.stdout)
    except (OSError, ValueError):
        report = {"error": "the process that measures gave no answer"}
    if "error" in report:
        maker.note("not measured beside {}: {}".format(rival.name, report["error"]))
        return engine
    for name, count in report["wrong"].items():
        if count:
            text = "the variant {} fails {} golden vectors and isn't compared"
            maker.note(text.format(name, count))
    entries = dict(engine.stamp)
    compared = {"rival": describe_triton_variant(maker.manifest, rival), "ms": report["ms"]}
    maker.engines.write_stamp({**entries, "compared": compared}, tested=True)
    stamped, reason = maker.engines.read_stamp()
    if stamped is None:
        raise EngineCacheError("the engine is gone again: {}".format(reason))
    return stamped


def _finished(maker: EngineMaker) -> Tuple[Optional[FinishedEngine], str]:
    options = maker.options.asked()
    if maker.options.force:
        return None, "--force builds it again"
    engine, reason = maker.engines.read_stamp()
    if engine is None:
        return None, reason
    if engine.stamp.get("asked") != options and options != Options().asked():
        return None, "it was finished with other options"
    if not is_whole(engine):
        return None, "{} is damaged".format(engine.path)
    refusal = maker.refusal(engine)
    if refusal:
        return None, "{}: {}".format(engine.path, refusal)
    return engine, ""


def _compare_devices(before: Mapping[str, Any], now: Mapping[str, Any]) -> List[str]:
    """Differences between two ``DeviceIdentity.key_json``, for people."""
    return [
        "{} was {}, is {}".format(name, shorten(before.get(name)), value)
        for name, value in now.items()
        if before.get(name) != value
    ]


def _tell_why(maker: EngineMaker, reason: str) -> None:
    maker.say("no finished engine: " + reason)
    now = maker.identity.key_json()
    for key, stamp, _ in maker.engines.others():
        before = stamp.get("device")
        if stamp.get("content") == maker.engines.content and isinstance(before, dict):
            changed = _compare_devices(before, now)
            maker.note("finished before, as {}: {}".format(key[:12], "; ".join(changed)))


def _report(maker: EngineMaker, state: str, engine: FinishedEngine) -> Dict[str, Any]:
    others = maker.engines.others()
    size = sum(item[2] for item in others)
    if others:
        text = "engines of other bundles or devices in {}: {}, {:,} MiB"
        maker.say(text.format(os.path.join(cache_root(), "engines"), len(others), size >> 20))
    return {
        "ok": True,
        "state": state,
        "bundle": maker.folder.path,
        "name": maker.manifest.name,
        "manifest_sha256": maker.folder.manifest_sha256,
        "variant": maker.variant.name,
        "device": maker.identity.to_json(),
        "key": maker.engines.key,
        "engine": {"path": engine.path, "size": engine.size, "sha256": engine.sha256},
        "profile_of": list(engine.profile_of),
        "built": engine.stamp.get("built"),
        "selftest": engine.stamp.get("selftest"),
        "compared": engine.stamp.get("compared"),
        "attempts": maker.attempts,
        "notes": maker.notes,
        "others": {"count": len(others), "bytes": size},
    }


def choose_variant(manifest: Manifest, name: Optional[str]) -> Variant:
    """The TensorRT variant for this machine: the one named, or that of the highest rank.

    Raises:
        UnsupportedHostError: there is none; names what there is.
    """
    name = name or os.environ.get(VARIANT_VARIABLE) or None
    arch = architecture(platform.machine())
    fitting = [
        item
        for item in manifest.variants
        if item.backend == TENSORRT and item.arch == arch and name in (None, item.name)
    ]
    if fitting:
        return max(fitting, key=lambda item: item.rank)
    listed = [
        "{} (backend {}, for {})".format(item.name, item.backend, item.arch)
        for item in manifest.variants
    ]
    which = "no TensorRT variant" if name is None else "no TensorRT variant {!r}".format(name)
    raise UnsupportedHostError(
        "the bundle has {} for {}, only {}".format(which, arch, ", ".join(listed)),
        "variants of other backends need no finishing",
    )


def format_finish(report: Mapping[str, Any]) -> List[str]:
    """The report for people, a line each."""
    built, tested = report["built"] or {}, report["selftest"] or {}
    engine = report["engine"]
    text = "{}: {} for {}, {:,} MiB, {} profiles, {}"
    lines = [
        text.format(
            report["state"],
            report["variant"],
            report["device"]["model"] or report["device"]["name"],
            engine["size"] >> 20,
            built.get("profiles"),
            "optimization level {}".format(built.get("optimization_level")),
        ),
        "engine {}".format(engine["path"]),
        "sha256 {}".format(engine["sha256"]),
    ]
    if tested:
        lines.append(
            "golden vectors: {} cases ok, modes {}".format(
                len(tested.get("cases", [])), ", ".join(tested.get("modes", []))
            )
        )
    if report["compared"]:
        times = report["compared"]["ms"].items()
        runs = ", ".join("{} {:.3f} ms".format(name, ms) for name, ms in times)
        lines.append("a run, mean of the buckets: " + runs)
    return lines
