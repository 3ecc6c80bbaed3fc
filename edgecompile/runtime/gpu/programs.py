"""The programs of one variant on a GPU: one per bucket, on one stream, with one scratch memory.

Three modes. "planned" is what the buckets' costs were planned for: one of a single shape, as padded
ones are, replays a CUDA graph that was captured for it once; others are queued for each run, at
the very sizes of its inputs, or where the engine allows it replay a graph of sizes that came often. The two others are named as PyTorch's users know them: "default" queues
every run; "reduce-overhead" pads every bucket to its upper end and replays graphs only. An engine
whose runs can't be recorded is queued in all of them.
"""

import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence

from ..call.inputs import InputChecker, make_inputs
from ..errors import EdgecompileError, GpuError, ModeError
from ..format.schema import BucketSpec, Manifest, plain
from .buffers import CacheMemory
from .cuda import Cuda, check_not_forked
from .engines import DEFAULT, MODES, PLANNED, REDUCE_OVERHEAD, Engine
from .lane import GpuLane
from .program import GRAPH_AFTER, GpuProgram, attempt, largest_shape

#: Of a bucket's shapes, those that came last of all that came often.
MOST_GRAPHS = 64
#: Texts that nobody uses any more whose memory is kept for the next ones.
_IDLE_TEXTS = 1


def pad_everything(manifest: Manifest, verified: bool) -> Manifest:
    """The manifest with every bucket of more than one size padded along all of its axes.

    Of a generative one tokens alone are filled up: the rows that they write are overwritten before
    they are seen.

    Args:
        manifest: of a bundle.
        verified: whether its builder has shown that padding changes nothing.

    Raises:
        ModeError: it can't be padded; lists every reason.
    """
    buckets = [_pad_bucket(manifest, bucket) for bucket in manifest.buckets]
    padded = {axis for item in buckets for axis in item.padded(manifest.length_axis)}
    added = any(
        set(new.padded(manifest.length_axis)) != set(old.padded(manifest.length_axis))
        for new, old in zip(buckets, manifest.buckets)
    )
    problems = []
    if added and not verified and manifest.generation is None:
        problems.append("its builder didn't verify that padding changes nothing")
    for spec in manifest.inputs:
        if spec.pad is None and padded.intersection(str(dim) for dim in spec.shape):
            problems.append("the input {} has no pad value".format(spec.name))
    for spec in manifest.outputs:
        if padded and None in spec.shape:
            problems.append("the shape of {} doesn't follow from the inputs'".format(spec.name))
    if problems:
        text = (
            'the mode "{}" pads every bucket to its upper end, which this bundle doesn\'t allow: '
        )
        raise ModeError(
            text.format(REDUCE_OVERHEAD) + "; ".join(problems),
            'open it with mode="default", or build it with buckets of one size each',
        )
    return manifest._replace(buckets=tuple(buckets))


def _pad_bucket(manifest: Manifest, bucket: BucketSpec) -> BucketSpec:
    wide = {axis for axis, extent in bucket.axes.items() if extent.lo < extent.hi}
    if manifest.generation is not None:
        wide &= {manifest.generation.length_axis}
    padded = wide.union(bucket.padded(manifest.length_axis))
    if not padded:
        return bucket
    # In the manifest's order, so that equal buckets are equal.
    names = tuple(axis for axis in manifest.axes if axis in padded)
    return bucket._replace(mode="pad", pad_axes=names)


class GpuText:
    """The caches of one text on the GPU, and the programs that run over them."""

    def __init__(self, programs: "GpuPrograms", caches: CacheMemory) -> None:
        self._owner = programs
        self._programs: Dict[int, GpuProgram] = {}
        self.caches = caches

    def get(self, bucket: int) -> GpuProgram:
        """The program of a bucket; it takes and gives the inputs that are no caches.

        Raises:
            GpuError: it can't be made, or this process is a fork.
        """
        program = self._programs.get(bucket)
        if program is None:
            program = self._programs[bucket] = self._owner.open_program(bucket, self.caches)
        return program

    @property
    def graphs(self) -> int:
        """How many are captured."""
        return sum(program.graphs for program in self._programs.values())

    @property
    def nbytes(self) -> int:
        """Bytes of its memory on the GPU."""
        return self.caches.nbytes + sum(program.nbytes for program in self._programs.values())

    def close(self) -> None:
        """Gives everything back; raises the first GpuError, after all the rest was tried."""
        failed: List[EdgecompileError] = []
        programs, self._programs = self._programs, {}
        for program in programs.values():
            attempt(failed, program.close)
        attempt(failed, self.caches.close)
        if failed:
            raise failed[0]


class GpuPrograms:
    """One program per bucket; safe from several threads, except ``close``.

    The interface is that of ``programs.Programs``.
    """

    def __init__(
        self,
        cuda: Cuda,
        engine: Engine,
        manifest: Manifest,
        profile_of: Sequence[int],
        mode: str = PLANNED,
        zero_copy: Optional[bool] = None,
    ) -> None:
        """Takes over ``engine``; allocates the scratch memory and nothing of any bucket.

        Args:
            cuda: the loaded libcudart.
            engine: what computes.
            manifest: of the bundle; for "reduce-overhead" what ``pad_everything`` made of it.
            profile_of: the profile of the engine for each bucket.
            mode: one of ``engines.MODES``.
            zero_copy: let the GPU reach into the CPU's memory instead of copying; None: where both
                share their memory.

        Raises:
            GpuError: CUDA reported a failure, too little memory for example.
        """
        assert mode in MODES and len(profile_of) == len(manifest.buckets)
        self.manifest = manifest
        self.mode = mode
        #: Whether programs change the caches of a text in place, so that it can stay on the GPU.
        self.keeps_texts = False
        #: Buckets in which the first run of many rows loads a library, which warming up does.
        self.warms_largest: Sequence[int] = ()
        self._texts: List[GpuText] = []
        self._idle: Deque[GpuText] = deque()
        #: What ``describe`` tells of the engine beside what every engine has.
        self.details: Callable[[], Dict[str, Any]] = dict
        #: What the engine computes in, where that is known.
        self.precision = ""
        #: What golden vectors are judged by; a recipe has its own.
        self.tolerance = manifest.tolerance
        self.min_cosine: Optional[float] = None
        self._cuda = cuda
        self._engine = engine
        self._profile_of = tuple(profile_of)
        self._programs: List[Optional[GpuProgram]] = [None] * len(manifest.buckets)
        self._checker = InputChecker(manifest)
        self._forked = False
        self._closed = False
        self._lock = threading.Lock()
        self._scratch = 0
        lane: Optional[GpuLane] = None
        try:
            self.device = cuda.device()
            self.zero_copy = self.device.integrated if zero_copy is None else zero_copy
            sizes = [engine.scratch_bytes(profile) for profile in set(profile_of)]
            self.scratch_bytes = max([*sizes, 256])
            lane = GpuLane(cuda)
            self._scratch = cuda.malloc(self.scratch_bytes)
        except BaseException as error:
            if lane is not None:
                cuda.destroy_stream(lane.stream)
            engine.close()
            if isinstance(error, GpuError) and lane is not None:
                text = "{}: {} bytes of scratch memory: {}"
                text = text.format(engine.label, self.scratch_bytes, error.message)
                raise GpuError(text, error.hint, error.name, error.number, error.sticky) from None
            raise
        self._lane = lane

    def after_fork(self) -> None:
        """In a process after a fork, where CUDA can't be used: every run is refused."""
        self._forked = True
        self._lock = threading.Lock()
        self._engine.abandon()

    def __len__(self) -> int:
        return len(self._programs)

    @property
    def broken(self) -> Optional[str]:
        """Why every further run is refused, or None: see ``OpenBundle.broken``."""
        return self._lane.broken

    @property
    def loaded(self) -> List[int]:
        """The buckets whose programs are loaded."""
        return [i for i, item in enumerate(self._programs) if item is not None]

    @property
    def engine(self) -> Engine:
        """The engine that computes."""
        return self._engine

    def describe(self) -> Dict[str, Any]:
        """For ``Model.info``, plain JSON values; sizes in bytes."""
        loaded: List[Any] = [item for item in self._programs if item is not None]
        loaded += self._texts
        return {
            "mode": self.mode,
            "gpu_precision": self.precision,
            "tolerance": plain(self.tolerance),
            "min_cosine": self.min_cosine,
            "gpu": self.device.to_json(),
            **self.details(),
            "zero_copy": self.zero_copy,
            "scratch_bytes": self.scratch_bytes,
            "buffer_bytes": sum(item.nbytes for item in loaded),
            "graphs": sum(item.graphs for item in loaded),
            # The calling thread's; it waits for the GPU, which runs one bucket at a time.
            "threads": 1,
            "concurrency": 1,
        }

    def get(self, bucket: int) -> GpuProgram:
        """The program of a bucket, which must exist.

        Raises:
            GpuError: it can't be made, or this process is a fork.
        """
        if self._forked:
            check_not_forked()
        return self._programs[bucket] or self._load(bucket)

    def _load(self, bucket: int) -> GpuProgram:
        with self._lock:
            program = self._programs[bucket]
            if program is None:
                self._lane.check()
                program = self._make(bucket)
                self._programs[bucket] = program
            return program

    def _open(self, bucket: int, *options: Any) -> GpuProgram:
        with self._lane.lock:
            try:
                context = self._engine.open(
                    self._profile_of[bucket], self._scratch, self.scratch_bytes, self._lane.stream
                )
                return GpuProgram(
                    self._lane, context, self.manifest, bucket, self.zero_copy, *options
                )
            except GpuError as error:
                self._lane.note(error)
                raise

    def _make(self, bucket: int) -> GpuProgram:
        often = self.mode == PLANNED and self._engine.keeps_graphs
        program = self._open(bucket, MOST_GRAPHS if often and not self._replays(bucket) else 0)
        if self._replays(bucket):
            extents = self.manifest.buckets[bucket].axes
            sizes = {axis: extent.hi for axis, extent in extents.items()}
            try:
                # What is in memory by chance could be indices outside their tables.
                program.capture(self._checker.check(make_inputs(self.manifest, sizes))[0])
            except BaseException:
                failed: List[EdgecompileError] = []
                attempt(failed, program.close)
                raise
        return program

    def _replays(self, bucket: int) -> bool:
        """Whether a bucket's program runs as a graph, which has one shape."""
        if self.manifest.generation is not None:
            return False  # what is copied with each run is all of the caches
        if not self._engine.records:
            return False
        spec = self.manifest.buckets[bucket]
        padded = spec.padded(self.manifest.length_axis)
        one_shape = all(e.lo == e.hi or axis in padded for axis, e in spec.axes.items())
        return self.mode == REDUCE_OVERHEAD or (self.mode == PLANNED and one_shape)

    def take_text(self) -> GpuText:
        """The memory of a text, zeros: the one that was given back last, or a new one.

        Raises:
            GpuError: there isn't enough memory, or this process is a fork.
        """
        if self._forked:
            check_not_forked()
        with self._lock:
            self._lane.check()
            try:
                text = self._idle.pop()
            except IndexError:
                try:
                    text = GpuText(self, self._make_caches())
                except GpuError as error:
                    self._lane.note(error)
                    raise
                self._texts.append(text)
            while len(self._idle) > _IDLE_TEXTS:
                spare = self._idle.popleft()
                self._texts.remove(spare)
                spare.close()
        with self._lane.lock:
            try:
                text.caches.clear(self._lane.stream)
            except GpuError as error:
                self._lane.note(error)
                self.give_back(text)
                raise
        return text

    def give_back(self, text: GpuText) -> None:
        """Leaves a text for the next one. It takes no lock: whoever collects garbage may call it."""
        self._idle.append(text)

    def _make_caches(self) -> CacheMemory:
        spec, manifest = self.manifest.generation, self.manifest
        assert spec is not None
        inputs = [item for item in manifest.inputs if item.name in spec.caches]
        shapes = {
            item.name: (spec.max_context, *largest_shape(item, manifest.buckets[0])[1:])
            for item in inputs
        }
        return CacheMemory(self._cuda, shapes, {item.name: item.dtype for item in inputs})

    def open_program(self, bucket: int, caches: CacheMemory) -> GpuProgram:
        """A bucket's program over a text's caches, for ``GpuText``; the caller closes it.

        A run of one token, and of other single lengths, is a graph from its second time on; of other
        lengths those that come often are. The mode "default" has none.
        """
        if self._forked:
            check_not_forked()
        self._lane.check()
        spec, axis = self.manifest.buckets[bucket], self.manifest.length_axis
        assert axis is not None
        one_length = axis in spec.padded(axis) or spec.axes[axis].lo == spec.axes[axis].hi
        graphs = MOST_GRAPHS if self.mode != DEFAULT and self._engine.keeps_graphs else 0
        return self._open(bucket, graphs, 1 if one_length else GRAPH_AFTER, caches)

    def close(self) -> None:
        """Gives everything back; runs must be over. A second call does nothing.

        Raises:
            GpuError: the first failure, unless nothing works any more; the rest was tried too.
        """
        if self._closed:
            return
        self._closed = True
        if self._forked:
            return  # none of it is this process' to give back
        failed: List[EdgecompileError] = []
        for bucket, program in enumerate(self._programs):
            if program is not None:
                attempt(failed, program.close)
                self._programs[bucket] = None
        for text in self._texts:
            attempt(failed, text.close)
        self._texts.clear()
        self._idle.clear()
        attempt(failed, self._engine.close)
        attempt(failed, lambda: self._cuda.free(self._scratch))
        attempt(failed, lambda: self._cuda.destroy_stream(self._lane.stream))
        for error in failed:
            self._lane.note(error)  # of another model's run, which broke this one's GPU too
        if failed and not self._lane.broken:
            raise failed[0]
