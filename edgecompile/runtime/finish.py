"""Finishes a bundle on its device: builds the TensorRT engine, tests it, and puts its stamp on it.

This process needs neither CUDA nor TensorRT: everything that does happens in fresh ones, so that all
the memory is the builder's, and an end by the system is an event among others. Whatever moment
this process is killed at, running it again goes on from what was whole.
"""

import contextlib
import errno
import os
import platform
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from .attempts import Attempt, list_attempts, merge_profiles
from .cpu import architecture
from .device import DeviceIdentity
from .engine_cache import (
    EngineFolder,
    FinishedEngine,
    cache_root,
    describe_content,
    engine_name,
    is_whole,
)
from .engine_checks import check_device, check_disk, check_memory
from .errors import (
    DeviceDiskError,
    DeviceMemoryError,
    EngineCacheError,
    FinishError,
    SelftestError,
    UnsupportedHostError,
)
from .files import BundleFolder
from .finish_progress import ProgressLine
from .manifest import TENSORRT, Manifest, Variant
from .model import VARIANT_VARIABLE
from .recipe import Recipe, read_recipe, sibling
from .stats_file import format_time
from .trt_build import BuildFailure, BuildJob
from .worker_process import Message, WorkerDied, run_worker

Say = Callable[[str], None]


class Options(NamedTuple):
    """What the user asks for; None leaves it to the recipe and to the device.

    ``force``: build anew even if it was done, and in spite of predictions and another GPU.
    """

    variant: Optional[str] = None
    workspace: Optional[int] = None
    level: Optional[int] = None
    force: bool = False
    debug: bool = False


_NOTHING = Options()


def finish_bundle(
    path: str, options: Options = _NOTHING, say: Say = lambda text: None
) -> Dict[str, Any]:
    """Builds and tests the engine of a bundle's TensorRT variant, unless that was done before.

    Args:
        path: the bundle.
        options: see ``Options``.
        say: gets a line of text for every step.

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
    folder = BundleFolder(path)
    try:
        run = _Run(folder, options, say)
        report = run.finish()
    finally:
        folder.close()
    report["seconds"] = time.monotonic() - started
    return report


class _Run:
    def __init__(self, folder: BundleFolder, options: Options, say: Say) -> None:
        self.folder = folder
        self.options = options
        self.say = say
        self.notes: List[str] = []
        self.attempts: List[Dict[str, Any]] = []
        folder.check_sizes()
        self.manifest: Manifest = folder.manifest
        self.variant: Variant = choose_variant(folder.manifest, options.variant)
        self.recipe: Recipe = read_recipe(folder, self.variant)
        self.identity = DeviceIdentity(**self._describe()["device"])
        self.free = 0
        content = describe_content(self.manifest, self.variant, self.recipe)
        self.engines = EngineFolder(content, self.identity)

    def finish(self) -> Dict[str, Any]:
        """The report."""
        self.say("device: {}".format(self.identity))
        for note in check_device(self.recipe, self.identity, self.options.force):
            self._note(note)
        engine, _ = self._finished()
        if engine is None:
            with self.engines.locked(self.say) as lock:
                # Whoever held it before may have done the work.
                engine, reason = self._finished()
                if engine is None:
                    self._tell_why(reason)
                    with _disk_errors(self.engines.path):
                        return self._finish_locked(lock)
        self.say("finished already: {}".format(engine.path))
        return self._report("already finished", engine)

    def _describe(self) -> Dict[str, Any]:
        try:
            return self._work("describe", {})
        except BuildFailure as failure:
            text = "there isn't even the memory to ask CUDA what it has: {}".format(failure)
            raise DeviceMemoryError(text, "end other programs first") from None
        except WorkerDied as died:
            raise FinishError(str(died)) from None

    def _finished(self) -> Tuple[Optional[FinishedEngine], str]:
        if self.options.force:
            return None, "--force builds anew"
        engine, reason = self.engines.read_stamp()
        if engine is None:
            return None, reason
        asked = engine.stamp.get("asked")
        if asked != self._asked() and self._asked() != {"workspace_bytes": None, "level": None}:
            return None, "it was finished with other options"
        if not is_whole(engine):
            return None, "{} is damaged".format(engine.path)
        return engine, ""

    def _asked(self) -> Dict[str, Any]:
        return {"workspace_bytes": self.options.workspace, "level": self.options.level}

    def _tell_why(self, reason: str) -> None:
        self.say("no finished engine: " + reason)
        now = self.identity.key_json()
        for key, stamp, _ in self.engines.others():
            before = stamp.get("device")
            if stamp.get("content") == self.engines.content and isinstance(before, dict):
                changed = [
                    "{} was {}, is {}".format(name, before.get(name), value)
                    for name, value in now.items()
                    if before.get(name) != value
                ]
                self._note("finished before, as {}: {}".format(key[:12], "; ".join(changed)))

    def _finish_locked(self, lock: int) -> Dict[str, Any]:
        served, _ = self.engines.read_stamp()
        built, _ = self.engines.read_stamp(tested=False)
        usable = built is not None and built.stamp.get("asked") == self._asked()
        if built is not None and usable and not self.options.force and is_whole(built):
            self.say("built before, not tested yet: {}".format(built.path))
        else:
            built = None
        names = [engine_name(item.sha256) for item in (served, built) if item is not None]
        self.engines.tidy(names)
        if built is None:
            built = self._build(lock)
        tested = self._test(built, lock, served)
        entries = dict(built.stamp)
        entries.update(selftest=tested, finished=format_time(time.time()))
        self.engines.write_stamp(entries, tested=True)
        engine, reason = self.engines.read_stamp()
        if engine is None:
            raise EngineCacheError("the engine is gone again: {}".format(reason))
        self.engines.tidy([engine_name(engine.sha256)], untested=True)
        self.say("finished: {}".format(engine.path))
        return self._report("finished", engine)

    def _build(self, lock: int) -> FinishedEngine:
        recipe = self.recipe
        for name in (recipe.onnx, recipe.weights):
            self._check_hash(sibling(self.variant, name))
        check_disk(self.engines.path, recipe)
        # Now, not when this began: it may have waited for another process, which used much.
        self.free = int(self._describe()["free_bytes"])
        workspace, notes = check_memory(
            self.manifest,
            recipe,
            self.identity,
            self.free,
            self.options.workspace,
            self.options.force,
        )
        for note in notes:
            self._note(note)
        level = recipe.optimization_level if self.options.level is None else self.options.level
        for number, attempt in enumerate(list_attempts(recipe, workspace, level)):
            self.say("{}: {}".format("trying again" if number else "building", attempt))
            if len(attempt.groups) < len(recipe.profiles):
                self._note("buckets share profiles: {}".format(_groups_text(attempt)))
            built = self._attempt(attempt, lock)
            if built is not None:
                return built
        lines = ["{}: {}".format(item["settings"], item["outcome"]) for item in self.attempts]
        raise DeviceMemoryError(
            "the memory doesn't do for building the engine ({:,} MiB of {:,} MiB were free); "
            "tried\n  {}".format(
                self.free >> 20, self.identity.memory_bytes >> 20, "\n  ".join(lines)
            ),
            "end other programs, add swap space, or build the bundle with fewer or smaller buckets",
        )

    def _attempt(self, attempt: Attempt, lock: int) -> Optional[FinishedEngine]:
        """The engine, built and in place; None where memory ran out."""
        started = time.monotonic()
        output = self.engines.join("building-{}-{}.tmp".format(os.getpid(), os.urandom(4).hex()))
        job = BuildJob(
            onnx=os.path.join(os.path.abspath(self.folder.path), self._path(self.recipe.onnx)),
            profiles=tuple(merge_profiles(self.recipe.profiles, attempt.groups)),
            workspace_bytes=attempt.workspace_bytes,
            optimization_level=attempt.optimization_level,
            timing_cache=self.engines.timing_cache,
            output=output,
        )
        entry = dict(attempt.to_json(), settings=str(attempt), outcome="", seconds=0.0)
        self.attempts.append(entry)
        result: Dict[str, Any] = {}
        try:
            result = self._work("build", {"job": job.to_json()}, lock)
            entry["outcome"] = "built"
        except (BuildFailure, WorkerDied) as failure:
            entry["outcome"] = str(failure)
            self.say("  " + str(failure))
            if not _for_want_of_memory(failure):
                hint = "docs/jetson.md of edgecompile says what to send along with a report"
                raise FinishError(str(failure), hint) from None
            return None
        finally:
            entry["seconds"] = time.monotonic() - started
            if not result:
                with contextlib.suppress(OSError):
                    os.unlink(output)
        self.say(
            "built {:,} MiB in {:.0f} s, timing cache: {}".format(
                result["size"] >> 20, result["seconds"], result["timing_cache"]
            )
        )
        return self._adopt(attempt, output, result)

    def _adopt(self, attempt: Attempt, output: str, result: Mapping[str, Any]) -> FinishedEngine:
        path = self.engines.adopt(output, result["sha256"])
        built = dict(attempt.to_json(), seconds=result["seconds"], attempts=len(self.attempts))
        entries = {
            "bundle": {
                "name": self.manifest.name,
                "manifest_sha256": self.folder.manifest_sha256,
                "variant": self.variant.name,
            },
            "engine": {"size": result["size"], "sha256": result["sha256"]},
            "profile_of": list(attempt.profile_of()),
            "asked": self._asked(),
            "built": dict(built, timing_cache=result["timing_cache"]),
        }
        self.engines.write_stamp(entries, tested=False)
        engine, reason = self.engines.read_stamp(tested=False)
        if engine is None or engine.path != path:
            raise EngineCacheError("the engine is gone again: {}".format(reason or path))
        return engine

    def _test(
        self, built: FinishedEngine, lock: int, served: Optional[FinishedEngine]
    ) -> Dict[str, Any]:
        self.say("testing the engine on the golden vectors")
        request = {
            "bundle": os.path.abspath(self.folder.path),
            "manifest_sha256": self.folder.manifest_sha256,
            "variant": self.variant.name,
            "engine": built.path,
            "sha256": built.sha256,
            "size": built.size,
            "profile_of": list(built.profile_of),
            "padding": self.recipe.padding,
        }
        try:
            result = self._work("selftest", request, lock)
        except BuildFailure as failure:
            text = "the engine was built, but can't be tested: {}".format(failure)
            hint = "end other programs and run finish again: it goes on from here"
            raise DeviceMemoryError(text, hint) from None
        except WorkerDied as died:
            if died.signal not in (0, 9):
                self._refuse(built, served)  # it would end the next process too
            raise FinishError("the engine can't be tested: {}".format(died)) from None
        for line in result["lines"]:
            self.say("  " + line)
        if not result["ok"]:
            kept = "nothing serves this bundle"
            if self._refuse(built, served):
                kept = "the one from before still serves"
            raise SelftestError(
                "the engine doesn't reproduce the golden vectors and isn't served: {}; {}".format(
                    result["worst"], kept
                ),
                "run finish again with another --level, or build the bundle with another precision",
            )
        tested: Dict[str, Any] = {key: result[key] for key in ("ok", "cases", "modes")}
        return tested

    def _refuse(self, built: FinishedEngine, served: Optional[FinishedEngine]) -> bool:
        """Drops an engine, and the measurements that would lead to the same one again.

        True if another one, from before, is left.
        """
        keep = []
        if served is not None and served.sha256 != built.sha256:
            keep.append(engine_name(served.sha256))
        self.engines.tidy(keep, untested=True)
        with contextlib.suppress(OSError):
            os.unlink(self.engines.timing_cache)
        return bool(keep)

    def _path(self, name: str) -> str:
        return sibling(self.variant, name)

    def _check_hash(self, name: str) -> None:
        fd = self.folder.open(name)
        try:
            self.folder.check_hash(name, fd)
        finally:
            os.close(fd)

    def _work(self, task: str, request: Mapping[str, Any], lock: int = -1) -> Dict[str, Any]:
        line = ProgressLine(self.recipe.predicted.build_seconds)

        def tell(message: Message) -> None:
            if "progress" in message:
                line.show(message["progress"])

        try:
            whole = dict(request, debug=self.options.debug)
            return run_worker(task, whole, keep_open=[lock] if lock >= 0 else [], tell=tell)
        finally:
            line.end()

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.say("note: " + text)

    def _report(self, state: str, engine: FinishedEngine) -> Dict[str, Any]:
        others = self.engines.others()
        size = sum(item[2] for item in others)
        if others:
            text = "engines of other bundles or devices in {}: {}, {:,} MiB"
            self.say(text.format(os.path.join(cache_root(), "engines"), len(others), size >> 20))
        return {
            "ok": True,
            "state": state,
            "bundle": self.folder.path,
            "name": self.manifest.name,
            "manifest_sha256": self.folder.manifest_sha256,
            "variant": self.variant.name,
            "device": self.identity.to_json(),
            "key": self.engines.key,
            "engine": {"path": engine.path, "size": engine.size, "sha256": engine.sha256},
            "profile_of": list(engine.profile_of),
            "built": engine.stamp.get("built"),
            "selftest": engine.stamp.get("selftest"),
            "attempts": self.attempts,
            "notes": self.notes,
            "others": {"count": len(others), "bytes": size},
        }


def choose_variant(manifest: Manifest, wanted: Optional[str]) -> Variant:
    """The TensorRT variant for this machine: the one named, or that of the highest rank.

    Raises:
        UnsupportedHostError: there is none; names what there is.
    """
    wanted = wanted or os.environ.get(VARIANT_VARIABLE) or None
    arch = architecture(platform.machine())
    fitting = [
        item
        for item in manifest.variants
        if item.backend == TENSORRT and item.arch == arch and wanted in (None, item.name)
    ]
    if fitting:
        return max(fitting, key=lambda item: item.rank)
    listed = [
        "{} (backend {}, for {})".format(item.name, item.backend, item.arch)
        for item in manifest.variants
    ]
    which = "no TensorRT variant" if wanted is None else "no TensorRT variant {!r}".format(wanted)
    raise UnsupportedHostError(
        "the bundle has {} for {}, only {}".format(which, arch, ", ".join(listed)),
        "variants of other backends need no finishing",
    )


def _for_want_of_memory(failure: Exception) -> bool:
    # Whatever signal ended the builder, memory is the commonest cause, and less of it is tried.
    if isinstance(failure, WorkerDied):
        return failure.signal != 0
    return isinstance(failure, BuildFailure) and failure.memory


def _groups_text(attempt: Attempt) -> str:
    return ", ".join("+".join(str(bucket) for bucket in group) for group in attempt.groups)


@contextlib.contextmanager
def _disk_errors(path: str) -> Any:
    try:
        yield
    except OSError as error:
        text = "{}: {}".format(error.filename or path, error.strerror or error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DeviceDiskError(text, "make space and run finish again") from None
        raise EngineCacheError(text) from None


def format_finish(report: Mapping[str, Any]) -> List[str]:
    """The report for people, a line each."""
    built, tested = report["built"] or {}, report["selftest"] or {}
    engine = report["engine"]
    text = "{}: {} for {}, {:,} MiB, {} profiles, optimization level {}"
    lines = [
        text.format(
            report["state"],
            report["variant"],
            report["device"]["model"] or report["device"]["name"],
            engine["size"] >> 20,
            built.get("profiles"),
            built.get("optimization_level"),
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
    return lines
