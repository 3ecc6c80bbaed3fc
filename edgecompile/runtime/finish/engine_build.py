"""Builds the TensorRT engines of a bundle's ONNX files, one of most, in a process that does nothing else.

TensorRT says why it can't build in its log alone, and returns None; so the log is kept. A build can
end the whole process where memory runs out, which is why it has one of its own: worker.py.
"""

import contextlib
import hashlib
import os
import threading
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ..format.document import shorten
from ..format.output import write_output
from ..format.recipe.schema import Record, ShapeRange
from ..gpu.log import KEPT, BuildFailure, BuildLog, make_logger
from ..gpu.releases import Release, find_release

if TYPE_CHECKING:
    import tensorrt

Tell = Callable[[Dict[str, Any]], None]

_EVERY = 0.2  # seconds between two messages about progress


@dataclass(frozen=True)
class EngineJob(Record):
    """The order for an engine of ``profiles``, each with a range of shapes by input.

    ``float32``: the values that are pinned to it where the builder chooses types, None where the file says them all.
    """

    onnx: str
    profiles: Tuple[Mapping[str, ShapeRange], ...]
    float32: Optional[Tuple[str, ...]]


@dataclass(frozen=True)
class BuildJob(Record):
    """The order for engines, which are written into one file, one behind the other.

    ``output`` is a file that doesn't exist yet, ``timing_cache`` one that may.
    """

    engines: Tuple[EngineJob, ...]
    workspace_bytes: int
    optimization_level: int
    timing_cache: str
    output: str

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> "BuildJob":
        """The inverse of ``to_json``, of our own making: nothing is checked."""
        engines = tuple(
            EngineJob(entry["onnx"], _read_profiles(entry["profiles"]), entry["float32"])
            for entry in document["engines"]
        )
        return BuildJob(**dict(document, engines=engines))


def _read_profiles(
    entries: Sequence[Mapping[str, Mapping[str, Any]]],
) -> Tuple[Mapping[str, ShapeRange], ...]:
    return tuple(
        {
            name: ShapeRange(*(tuple(entry[key]) for key in ("min", "opt", "max")))
            for name, entry in profile.items()
        }
        for profile in entries
    )


def build_engines(job: BuildJob, tell: Tell) -> Dict[str, Any]:
    """Builds, and writes the engines to ``job.output``.

    Args:
        job: the engine to build.
        tell: a function that gets {"progress": ...} and {"note": text} meanwhile, from any thread.

    Returns:
        "size" and "sha256" of the file, "plans" (the bytes of each engine in it), "seconds",
        "timing_cache" ("used", "new" or why not), "warnings".

    Raises:
        BuildFailure: TensorRT refused.
        OSError: the engine can't be written.
    """
    started = time.monotonic()
    digest = hashlib.sha256()
    sizes: List[int] = []
    warnings: List[str] = []
    cache_state = ""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(job.output, flags, 0o600), "wb") as stream:
        try:
            for engine in job.engines:
                plan, state, log = _build_plan(job, engine, tell, started)
                # The later ones use what the first has measured.
                cache_state = cache_state or state
                warnings += log.warnings
                sizes.append(_write_plan(stream, digest, memoryview(plan)))
            stream.flush()
            os.fsync(stream.fileno())
        except BaseException:
            os.unlink(job.output)
            raise
    return {
        "size": sum(sizes),
        "sha256": digest.hexdigest(),
        "plans": sizes,
        "seconds": time.monotonic() - started,
        "timing_cache": cache_state,
        "warnings": warnings[-5:],
    }


def _build_plan(
    job: BuildJob, engine: EngineJob, tell: Tell, started: float
) -> Tuple["tensorrt.IHostMemory", str, BuildLog]:
    """An engine, what became of the timing cache, and the log."""
    import tensorrt

    log = BuildLog()
    logger = make_logger(log)
    builder = tensorrt.Builder(logger)
    release = find_release()
    release.prepare(logger)
    network = release.create_network(builder)
    parser = tensorrt.OnnxParser(network, logger)
    if not parser.parse_from_file(engine.onnx):
        raise BuildFailure(_parser_errors(parser, release, log), log.about_memory())
    config = builder.create_builder_config()
    config.builder_optimization_level = job.optimization_level
    # On by default, and strong types leave it on: float32 would be multiplied with 10 bits of mantissa.
    config.clear_flag(tensorrt.BuilderFlag.TF32)
    config.set_memory_pool_limit(tensorrt.MemoryPoolType.WORKSPACE, job.workspace_bytes)
    _add_profiles(builder, network, config, engine.profiles, log)
    cache_state = _set_timing_cache(config, job.timing_cache)
    release.configure(network, config, engine.float32)
    release.watch(config, lambda: _make_monitor(tell, started))
    plan = builder.build_serialized_network(network, config)
    # Also after a failure: what was measured needn't be measured by the next attempt.
    cache_failure = _save_timing_cache(config, job.timing_cache)
    if plan is None:
        raise log.failure("TensorRT built no engine")
    return plan, cache_failure or cache_state, log


def _parser_errors(parser: "tensorrt.OnnxParser", release: Release, log: BuildLog) -> str:
    lines = []
    for index in range(min(parser.num_errors, KEPT)):
        error = parser.get_error(index)
        text = "node {} {} ({}): {}"
        name, kind = release.node_of(error)
        named = (shorten(name, 120) or "-", shorten(kind) or "-")
        lines.append(text.format(error.node(), *named, shorten(error.desc(), 300)))
    reasons = lines or log.errors or ["it gave no reason"]
    return "TensorRT's parser refuses the ONNX: " + "\n  ".join(reasons)


def _add_profiles(
    builder: "tensorrt.Builder",
    network: "tensorrt.INetworkDefinition",
    config: "tensorrt.IBuilderConfig",
    profiles: Tuple[Mapping[str, ShapeRange], ...],
    log: BuildLog,
) -> None:
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    expected = profiles[0].keys()
    if {item.name for item in inputs} != set(expected):
        text = "the ONNX has the inputs {}, the recipe has {}"
        names = ", ".join(shorten(item.name) for item in inputs)
        raise BuildFailure(text.format(names, ", ".join(expected)), False)
    varying = [item.name for item in inputs if any(size < 0 for size in item.shape)]
    for index, ranges in enumerate(profiles):
        profile = builder.create_optimization_profile()
        for name in varying:
            shapes = ranges[name]
            profile.set_shape(name, shapes.min, shapes.opt, shapes.max)
        if config.add_optimization_profile(profile) != index:
            raise log.failure("TensorRT refuses the optimization profile {}".format(index))


def _set_timing_cache(config: "tensorrt.IBuilderConfig", path: str) -> str:
    """Gives the builder what was measured before; "used", "new", or why it wasn't taken."""
    data, state = b"", "new"
    try:
        with open(path, "rb") as stream:
            data = stream.read()
    except FileNotFoundError:
        pass
    except OSError as error:
        state = "can't be read: {}".format(error.strerror)
    for blob in (data, b""):
        cache = config.create_timing_cache(blob)
        if cache is not None and config.set_timing_cache(cache, False):
            return "used" if blob else state
        if blob:
            state = "the one from before isn't of this TensorRT and device: started empty"
    return "TensorRT takes none"


def _save_timing_cache(config: "tensorrt.IBuilderConfig", path: str) -> str:
    """Writes what was measured; why it couldn't, or ""."""
    cache = config.get_timing_cache()
    if cache is None:
        return ""
    try:
        write_output(path, bytes(memoryview(cache.serialize())))
    except OSError as error:  # it saves time, no more
        return "can't be kept: {}".format(error.strerror)
    return ""


def _write_plan(stream: IO[bytes], digest: "hashlib._Hash", plan: memoryview) -> int:
    view = plan.cast("B")
    for start in range(0, len(view), 1 << 20):
        piece = view[start : start + (1 << 20)]
        digest.update(piece)
        stream.write(piece)
    return len(view)


class Phases:
    """The progress of a build, from the phases within phases that TensorRT reports.

    A phase of N steps counts for one step of its parent; the fraction of the outermost one is that
    of the build. TensorRT reports from several threads at once, so every method takes a lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: Dict[str, Tuple[Optional[str], int]] = {}
        self._done: Dict[str, int] = {}

    def start(self, name: str, parent: Optional[str], steps: int) -> None:
        """A phase begins."""
        with self._lock:
            self._open[name] = (parent, max(steps, 1))
            self._done[name] = 0

    def step(self, name: str, step: int) -> None:
        """Step ``step``, counted from 0, is done."""
        with self._lock:
            if name in self._done:
                self._done[name] = max(self._done[name], step + 1)

    def finish(self, name: str) -> None:
        """A phase ends."""
        with self._lock:
            self._open.pop(name, None)
            self._done.pop(name, None)

    def fraction(self) -> float:
        """The finished part of the outermost phase, 0 to 1; parallel phases aren't added."""
        best: Dict[Optional[str], float] = {}
        with self._lock:
            # Children begin after their parents, so the last ones come first here.
            for name, (parent, steps) in reversed(list(self._open.items())):
                own = min((self._done[name] + best.get(name, 0.0)) / steps, 1.0)
                best[parent] = max(best.get(parent, 0.0), own)
        return best.get(None, 0.0)


def _make_monitor(tell: Tell, started: float) -> "tensorrt.IProgressMonitor":
    import tensorrt

    phases = Phases()
    lock = threading.Lock()
    last = [0.0]

    def report(name: str) -> None:
        with lock:  # one message at a time, so that fractions come in order
            now = time.monotonic()
            if now - last[0] >= _EVERY:
                last[0] = now
                progress = {"phase": shorten(name, 80), "fraction": phases.fraction()}
                tell({"progress": dict(progress, seconds=now - started)})

    # The bindings take an exception in step_complete for False, which cancels the build. No word about
    # progress is worth that, so nothing of ours gets out of the three.
    class Monitor(tensorrt.IProgressMonitor):
        def __init__(self) -> None:
            tensorrt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: Optional[str], num_steps: int) -> None:
            with contextlib.suppress(Exception):
                phases.start(phase_name, parent_phase, num_steps)
                report(phase_name)

        def step_complete(self, phase_name: str, step: int) -> bool:
            with contextlib.suppress(Exception):
                phases.step(phase_name, step)
                report(phase_name)
            return True

        def phase_finish(self, phase_name: str) -> None:
            with contextlib.suppress(Exception):
                phases.finish(phase_name)

    return Monitor()
