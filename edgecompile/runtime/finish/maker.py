"""Makes an engine while the lock is held: attempts at building it, then the test, then the stamp.

Nothing here loads CUDA or TensorRT: what does runs in fresh processes (worker.py), so that all the
memory is the builder's, and an end by the system is an event among others.
"""

import contextlib
import os
import signal
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..base.errors import (
    DeviceMemoryError,
    EngineCacheError,
    FinishError,
    GpuError,
    SelftestError,
)
from ..format.files.folder import BundleFolder
from ..format.manifest.schema import Variant
from ..format.recipe.parse import read_recipe, sibling
from ..format.recipe.schema import Recipe, Side
from ..gpu.cache import EngineFolder, FinishedEngine, describe_content, engine_name, is_whole
from ..gpu.device import DeviceIdentity
from ..gpu.log import BuildFailure
from ..stats.file import format_time
from .attempts import Attempt, Way, list_attempts, merge_profiles
from .device_checks import FreeMemory, check_disk, check_memory, disk_errors
from .engine_build import BuildJob, EngineJob
from .worker import WorkerDied, Workers

Say = Callable[[str], None]
#: Signals by which code ends its own process. Others come from outside: of a service manager, say.
_FAULTS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_REPORT = "docs/jetson.md of edgecompile says what to send along with a report"


class Options(NamedTuple):
    """Options of the user; None leaves one to the recipe and to the device.

    ``force``: build again even if it was done, and in spite of predictions and another GPU.
    """

    variant: Optional[str] = None
    workspace: Optional[int] = None
    level: Optional[int] = None
    force: bool = False
    debug: bool = False

    def asked(self) -> Dict[str, Any]:
        """The options that an engine has to have been built with, as the stamp keeps them."""
        return {"workspace_bytes": self.workspace, "level": self.level}


class _UnusableError(Exception):
    """TensorRT can't open or run what it built."""


class EngineMaker:
    """Makes the engine of one variant on one device. ``attempts`` tells what was tried."""

    def __init__(self, folder: BundleFolder, variant: Variant, options: Options, say: Say) -> None:
        """Asks a fresh process for the device, and looks up the folder of its engine."""
        self.folder = folder
        self.manifest = folder.manifest
        self.variant = variant
        recipe = read_recipe(folder, variant)
        self.options = options
        self.say = say
        self.workers = Workers(recipe.predicted.build_seconds, options.debug)
        self.identity = DeviceIdentity(**self.workers.describe()["device"])
        self.recipe: Recipe = recipe.for_tensorrt(self.identity.tensorrt)
        content = describe_content(self.manifest, variant, self.recipe)
        self.engines = EngineFolder(content, self.identity)
        self.attempts: List[Dict[str, Any]] = []
        self.notes: List[str] = []
        self.room = FreeMemory(0)
        self.crashes = 0

    def refusal(self, engine: FinishedEngine) -> str:
        """Why TensorRT doesn't take an engine that is whole and whose key fits; "" if it does."""
        request = {
            "path": engine.path,
            "sha256": engine.sha256,
            "size": engine.size,
            "plans": engine.plans,
        }
        try:
            return str(self.workers.run("accept", request)["refusal"])
        except BuildFailure:  # too little memory now: that says nothing of the engine
            return ""
        except WorkerDied as died:
            return str(died) if died.signal in _FAULTS else ""

    def make(self, lock: int) -> FinishedEngine:
        """A new engine, or one that was built before and not tested yet, with its stamp.

        Args:
            lock: the descriptor of the cache's lock.

        Raises:
            EdgecompileError: one of those of ``finish_bundle``.
        """
        with disk_errors(self.engines.path):
            return self._make(lock)

    def _make(self, lock: int) -> FinishedEngine:
        served, _ = self.engines.read_stamp()
        built, _ = self.engines.read_stamp(tested=False)
        usable = built is not None and built.stamp.get("asked") == self.options.asked()
        if built is not None and usable and not self.options.force and self._takes(built):
            self.say("built before, not tested yet: {}".format(built.path))
        else:
            built = None
        names = [engine_name(item.sha256) for item in (served, built) if item is not None]
        self.engines.tidy(names)
        if built is None:
            built = self._build(lock, Way(len(self.recipe.profiles)))
        tested: Optional[Dict[str, Any]] = None
        while tested is None:
            try:
                tested = self._test(built, lock, served)
            except (_UnusableError, SelftestError) as error:
                wrong = isinstance(error, SelftestError)
                way = self._narrower(built, wrong)
                if way is None and wrong:
                    raise
                reason = str(error).partition("\nhint: ")[0]
                if way is None:
                    raise GpuError(reason) from None
                text = "the engine was dropped, another is built with {}: {}"
                self.note(text.format(way, reason))
                built = self._build(lock, way)
        entries = dict(built.stamp)
        entries.update(selftest=tested, finished=format_time(time.time()))
        self.engines.write_stamp(entries, tested=True)
        engine, reason = self.engines.read_stamp()
        if engine is None:
            raise EngineCacheError("the engine is gone again: {}".format(reason))
        self.engines.tidy([engine_name(engine.sha256)], untested=True)
        self.say("finished: {}".format(engine.path))
        return engine

    def _narrower(self, built: FinishedEngine, wrong: bool) -> Optional[Way]:
        """The limits for the engine built in place of one that is wrong or can't be used; None: nothing helps.

        TensorRT 8.6 sometimes can't open what it built with several profiles, or calculates wrongly with it.
        """
        record = built.stamp["built"]
        way = Way(record["profiles"], record.get("pinned", False))
        chooses = self.recipe.float32 is not None and self.recipe.precision == "fp16"
        if wrong and not chooses:
            return None
        if wrong and any(graph.float32 for graph in self.recipe.graphs) and not way.pinned:
            return way._replace(pinned=True)
        least = len(self.recipe.graphs)
        fewer = max((way.profiles + 1) // 2, least)
        return way._replace(profiles=fewer) if way.profiles > least else None

    def _scratch_name(self) -> str:
        return self.engines.join("building-{}-{}.tmp".format(os.getpid(), os.urandom(4).hex()))

    def _takes(self, built: FinishedEngine) -> bool:
        if not is_whole(built):
            return False
        refusal = self.refusal(built)
        if refusal:
            self.say("{}: {}".format(built.path, refusal))
        return not refusal

    def _build(self, lock: int, way: Way) -> FinishedEngine:
        recipe = self.recipe
        for name in (*(graph.onnx for graph in recipe.graphs), recipe.weights):
            os.close(self.folder.open_checked(self._path(name)))
        check_disk(self.engines.path, recipe)
        # Now, not when this began: it may have waited for another process, which used much.
        described = self.workers.describe()
        self.room = FreeMemory(described["free_bytes"], described["host_bytes"])
        allowed = check_memory(
            self.manifest,
            recipe,
            self.identity,
            self.room,
            self.options.workspace,
            self.options.force,
        )
        for note in allowed.notes:
            self.note(note)
        level = recipe.optimization_level if self.options.level is None else self.options.level
        attempts = list(list_attempts(recipe, allowed.workspace, level, way.profiles))
        self.crashes = 0
        for number, attempt in enumerate(attempts):
            self.say("{}: {}".format("trying again" if number else "building", attempt))
            if len(attempt.groups) < len(recipe.profiles):
                self.note("buckets share profiles: {}".format(attempt.groups_text()))
            built = self._attempt(attempt, way.pinned, allowed.short, lock)
            if built is not None:
                return built
        lines = ["{}: {}".format(item["settings"], item["outcome"]) for item in self.attempts]
        if self.crashes == len(attempts):
            raise FinishError(
                "TensorRT's builder crashed at every attempt:\n  {}".format("\n  ".join(lines)),
                _REPORT,
            )
        text = "{:,} MiB of {:,} MiB were free".format(
            self.room.gpu >> 20, self.identity.memory_bytes >> 20
        )
        if self.room.host is not None:
            text += ", {:,} MiB of main memory".format(self.room.host >> 20)
        raise DeviceMemoryError(
            "the memory doesn't do for building the engine ({}); tried\n  {}".format(
                text, "\n  ".join(lines)
            ),
            "end other programs, add swap space, or build the bundle with fewer or smaller buckets",
        )

    def _attempt(
        self, attempt: Attempt, pinned: bool, short: bool, lock: int
    ) -> Optional[FinishedEngine]:
        """The engine, built and in place; None where memory ran out.

        ``short``: it was predicted to, so a failure without a clear reason counts as that.
        """
        started = time.monotonic()
        output = self._scratch_name()
        job = BuildJob(
            engines=tuple(self._engine_job(graph, attempt, pinned) for graph in self.recipe.graphs),
            workspace_bytes=attempt.workspace_bytes,
            optimization_level=attempt.optimization_level,
            timing_cache=self.engines.timing_cache,
            output=output,
        )
        entry = dict(attempt.to_json(), settings=str(attempt), outcome="", seconds=0.0)
        self.attempts.append(entry)
        result: Dict[str, Any] = {}
        try:
            result = self.workers.run("build", {"job": job.to_json()}, lock)
            entry["outcome"] = "built"
        except (BuildFailure, WorkerDied) as failure:
            entry["outcome"] = str(failure)
            self.say("  " + str(failure))
            if not _for_want_of_memory(failure, short):
                raise FinishError(str(failure), _REPORT) from None
            self.crashes += isinstance(failure, WorkerDied) and failure.signal in _FAULTS
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
        built = dict(attempt.to_json(), seconds=result["seconds"], attempts=len(self.attempts))
        built.update(timing_cache=result["timing_cache"], pinned=pinned)
        return self._adopt(output, result, attempt.profile_of(), built)

    def _engine_job(self, graph: Side, attempt: Attempt, pinned: bool) -> EngineJob:
        groups = [group for group in attempt.groups if group[0] in graph.buckets]
        return EngineJob(
            onnx=os.path.join(os.path.abspath(self.folder.path), self._path(graph.onnx)),
            profiles=tuple(merge_profiles(self.recipe.profiles, groups)),
            float32=graph.float32 if pinned or graph.float32 is None else (),
        )

    def _adopt(
        self,
        output: str,
        result: Mapping[str, Any],
        profile_of: Sequence[int],
        built: Mapping[str, Any],
    ) -> FinishedEngine:
        path = self.engines.adopt(output, result["sha256"])
        sizes = result.get("plans", ())
        plans = {"plans": list(sizes)} if len(sizes) > 1 else {}
        entries = {
            "bundle": {
                "name": self.manifest.name,
                "manifest_sha256": self.folder.manifest_sha256,
                "variant": self.variant.name,
            },
            "engine": {"size": result["size"], "sha256": result["sha256"], **plans},
            "profile_of": list(profile_of),
            "asked": self.options.asked(),
            "built": dict(built),
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
            "plans": built.plans,
            "profile_of": list(built.profile_of),
            "padding": self.recipe.padding,
            "tensors": dict(built.tensors),
        }
        try:
            result = self.workers.run("selftest", request, lock)
        except BuildFailure as failure:
            if not failure.memory:
                self._refuse(built, served)
                raise _UnusableError(str(failure)) from None
            text = "the engine was built, but can't be tested: {}".format(failure)
            hint = "end other programs and run finish again: it goes on from here"
            raise DeviceMemoryError(text, hint) from None
        except WorkerDied as died:
            if died.signal in _FAULTS:
                self._refuse(built, served)  # it would end the next process too
            raise FinishError("the engine can't be tested: {}".format(died)) from None
        for line in result["lines"]:
            self.say("  " + line)
        if not result["ok"]:
            outcome = "nothing serves this bundle"
            if self._refuse(built, served):
                outcome = "the one from before still serves"
            raise SelftestError(
                "the engine doesn't reproduce the golden vectors and isn't served: {}; {}".format(
                    result["worst"], outcome
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

    def note(self, text: str) -> None:
        """Keeps a note for the report, and says it."""
        self.notes.append(text)
        self.say("note: " + text)


def _for_want_of_memory(failure: Exception, short: bool) -> bool:
    # Whatever signal ended the builder, memory is the commonest cause, and less of it is tried.
    if isinstance(failure, WorkerDied):
        return failure.signal != 0
    if not isinstance(failure, BuildFailure):
        return False
    # Without memory TensorRT 8.6 speaks of kernels and handles as well.
    return short if failure.memory is None else failure.memory
