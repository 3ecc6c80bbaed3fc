"""The programs of one variant on a GPU: one per bucket, on one stream, with one scratch memory.

Three modes. "planned" is what the buckets' costs were planned for: one of a single shape, as padded
ones are, replays a CUDA graph that was captured for it once; others are queued for each run, at
the very sizes of its inputs. The two others are named as PyTorch's users know them: "default" queues
every run; "reduce-overhead" pads every bucket to its upper end and replays graphs only.
"""

import threading
from typing import Any, Callable, Dict, List, Optional, Sequence

from ..base.errors import EdgecompileError, GpuError, ModeError
from ..call.inputs import InputChecker, make_inputs
from ..format.manifest.schema import BucketSpec, Manifest, plain
from ..format.sums import axes_of
from .cuda import Cuda, check_not_forked
from .engines import MODES, PLANNED, REDUCE_OVERHEAD, Engine
from .program import GpuProgram, attempt
from .shared_stream import SharedStream


def pad_everything(manifest: Manifest, verified: bool) -> Manifest:
    """The manifest with every bucket of more than one size padded along all of its axes.

    Of a generative one tokens alone are filled up: the rows that they write are overwritten before
    they are seen.

    Args:
        manifest: the manifest of a bundle.
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
        # What is computed from a padded axis isn't padded with it.
        along = [dim for dim in spec.shape if padded.intersection(axes_of(dim, manifest.axes))]
        if any(spec.pad is None or dim not in manifest.axes for dim in along):
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
            engine: the engine that computes.
            manifest: the manifest of the bundle; for "reduce-overhead" the result of
                ``pad_everything``.
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
        #: Texts are kept by who generates.
        self.keeps_texts = False
        #: Buckets whose first large run loads something.
        self.warms_largest: Sequence[int] = ()
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
        shared: Optional[SharedStream] = None
        try:
            self.device = cuda.device()
            self.zero_copy = self.device.integrated if zero_copy is None else zero_copy
            sizes = [engine.scratch_bytes(profile) for profile in set(profile_of)]
            self.scratch_bytes = max([*sizes, 256])
            shared = SharedStream(cuda)
            self._scratch = cuda.malloc(self.scratch_bytes)
        except BaseException as error:
            if shared is not None:
                cuda.destroy_stream(shared.stream)
            engine.close()
            if isinstance(error, GpuError) and shared is not None:
                text = "{}: {} bytes of scratch memory: {}"
                text = text.format(engine.label, self.scratch_bytes, error.message)
                raise GpuError(text, error.hint, error.name, error.number, error.sticky) from None
            raise
        self._shared = shared

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
        return self._shared.broken

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
        loaded = [item for item in self._programs if item is not None]
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
                self._shared.check()
                program = self._make(bucket)
                self._programs[bucket] = program
            return program

    def _make(self, bucket: int) -> GpuProgram:
        with self._shared.lock:
            try:
                context = self._engine.open(
                    self._profile_of[bucket], self._scratch, self.scratch_bytes, self._shared.stream
                )
                program = GpuProgram(self._shared, context, self.manifest, bucket, self.zero_copy)
            except GpuError as error:
                self._shared.note(error)
                raise
        if self._replays(bucket):
            extents = self.manifest.buckets[bucket].axes
            sizes = {axis: extent.hi for axis, extent in extents.items()}
            try:
                # What is in memory by chance could be indices outside their tables.
                program.capture(self._checker.check(make_inputs(self.manifest, sizes))[0])
            except BaseException:
                attempt([], program.close)
                raise
        return program

    def _replays(self, bucket: int) -> bool:
        """Whether a bucket's program runs as a graph, which has one shape."""
        spec = self.manifest.buckets[bucket]
        padded = spec.padded(self.manifest.length_axis)
        one_shape = all(e.lo == e.hi or axis in padded for axis, e in spec.axes.items())
        return self.mode == REDUCE_OVERHEAD or (self.mode == PLANNED and one_shape)

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
        attempt(failed, self._engine.close)
        attempt(failed, lambda: self._cuda.free(self._scratch))
        attempt(failed, lambda: self._cuda.destroy_stream(self._shared.stream))
        for error in failed:
            self._shared.note(error)  # of another model's run, which broke this one's GPU too
        if failed and not self._shared.broken:
            raise failed[0]
