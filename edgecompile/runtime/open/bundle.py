"""A bundle that is open: its programs, files, counters, and the calls that are under way."""

import functools
import os
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional, Sequence, Type, TypeVar

from ..base.errors import InputError, MemoryLimitError, OutsideBucketsError
from ..base.lifetime import Lifetime, Unique
from ..base.limits import no_memory
from ..call.dispatch import Dispatcher
from ..call.inputs import CheckedInputs, InputChecker
from ..call.results import ResultMaker
from ..cpu import libraries, library
from ..cpu.host import Host
from ..cpu.library import Program
from ..format.files import weights
from ..format.files.folder import BundleFolder
from ..format.manifest.schema import Manifest, Tolerance, Variant, plain
from ..stats.counters import Stats
from ..stats.file import StatsWriter
from .choose import Opened, check_threads
from .warmup import warm_up

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..cpu.library import RuntimeLibrary
    from ..format.output import Path
    from ..triton.programs import TritonPrograms

_Self = TypeVar("_Self", bound="OpenBundle")
_Result = TypeVar("_Result")


class OpenBundle(Unique):
    """A bundle's programs, its files and its counters. Every method may be called from any thread.

    A signal handler may call ``close`` whatever it interrupts, except the opening of a bundle, and no
    other method.
    """

    def __init__(
        self, folder: BundleFolder, host: Host, opened: Opened, fallback: Optional[str] = None
    ) -> None:
        """Takes over ``folder`` and the programs; ``fallback`` says why it isn't the GPU's."""
        manifest = folder.manifest
        self._folder = folder
        self._host = host
        self._variant, self._refused = opened.variant, opened.refused
        self._fallback = fallback
        self._programs = opened.programs
        self._checker = InputChecker(manifest)
        # A mode may pad more than the manifest says, and that counts as padding.
        self._dispatcher = Dispatcher(opened.programs.manifest, manifest)
        self._results = ResultMaker(manifest)
        self._encoder: Optional[OpenBundle] = None
        self._stats = Stats(opened.programs.manifest)
        release = folder.read_release()
        self._release = None if release is None else release.number
        self._writer = StatsWriter(
            self._stats,
            manifest,
            folder.manifest_sha256,
            self._variant.name,
            folder.path,
            self._release,
        )
        # The programs go first. What is owned doesn't refer to this object, which goes by itself
        # when nobody refers to it.
        owned = [folder.close, self._writer.finish, opened.programs.close]
        self._life = Lifetime(folder.path, owned)
        _opened.add(self)

    def __repr__(self) -> str:
        manifest = self.manifest
        precision = self._programs.precision or manifest.precision
        axes = sorted(manifest.axes, key=lambda axis: axis != manifest.length_axis)
        sizes = "".join(", {} {}".format(axis, manifest.axes[axis]) for axis in axes)
        closed = ", closed" if self._life.closed else ""
        parts = (manifest.name, precision, self._variant.name, sizes, closed)
        return "<Model {} {} {}{}{}>".format(*parts)

    @property
    def path(self) -> str:
        """The bundle's folder."""
        return self._folder.path

    @property
    def manifest_sha256(self) -> str:
        """SHA-256 of its manifest, by which other files name it."""
        return self._folder.manifest_sha256

    @property
    def release(self) -> Optional[int]:
        """Number of its release, as ``release.json`` says; None: it has none."""
        return self._release

    @property
    def variant(self) -> Variant:
        """The variant that runs."""
        return self._variant

    @property
    def manifest(self) -> Manifest:
        """The bundle's manifest."""
        return self._folder.manifest

    @property
    def encoder(self) -> "Optional[OpenBundle]":
        """The part that reads the source of a text, opened and closed with this one, or None."""
        return self._encoder

    def own_encoder(self, encoder: "OpenBundle") -> None:
        """Takes the part over that reads the source of a text."""
        self._encoder = encoder
        self._life.own(encoder.close)

    @property
    def tolerance(self) -> Tolerance:
        """The tolerance of golden vectors: the manifest's, on a GPU that of its recipe."""
        return self._programs.tolerance

    @property
    def min_cosine(self) -> Optional[float]:
        """The least cosine that an output may have to a golden vector's; None: any."""
        return self._programs.min_cosine

    @property
    def broken(self) -> Optional[str]:
        """Why every further run in this process is refused: an error of CUDA's context; else None."""
        return self._programs.broken or (self._encoder.broken if self._encoder else None)

    @property
    def info(self) -> Dict[str, Any]:
        """The open bundle as plain JSON values: inputs, outputs, buckets, variant, host, …"""
        manifest = self.manifest
        whole = manifest.to_json()
        keys = ("name", "format_version", "precision", "built_by", "inputs", "outputs", "axes")
        result = {key: whole[key] for key in keys}
        result.update(
            path=self._folder.path,
            manifest_sha256=self._folder.manifest_sha256,
            length_axis=manifest.length_axis,
            buckets=whole["buckets"],
            tolerance=whole["tolerance"],
            generation=whole.get("generation"),
            variant=self._variant.name,
            backend=self._variant.backend,
            refused_variants=dict(self._refused),
            fallback=self._fallback,
            loaded_buckets=self._programs.loaded,
            run_threads=self._runtime is not None and self._runtime.sets_run_threads,
            host=self._host.to_json(),
        )
        if "padding" in manifest.plan:
            result["padding"] = manifest.plan["padding"]
        if manifest.text is not None:
            result["text"] = plain(manifest.text)
        if manifest.labels:
            result["labels"] = whole["labels"]
        if manifest.state:
            result["state"] = whole["state"]
        result.update(self._programs.describe())
        return result

    @property
    def _runtime(self) -> "Optional[RuntimeLibrary]":
        """The CPU's runtime library, for profiles; None where a GPU runs."""
        return getattr(self._programs, "runtime", None)

    @property
    def stats(self) -> Dict[str, Any]:
        """Sizes seen, bucket hits, padding and times so far; see ``Stats.snapshot``.

        Also "file_error": why the statistics file couldn't be written the last time, or None.
        """
        counts = self._life.hold(self._stats.snapshot, closed_too=True)
        return dict(counts, file_error=self._writer.error)

    def schedule_stats(self, path: "Path", every: float) -> None:
        """Writes the statistics file to ``path`` on close, and during runs each ``every`` seconds."""
        self._writer.schedule(path, every)

    def reset_stats(self) -> None:
        """Begins to count again, before anybody else uses the model."""
        self._stats.reset()

    def write_stats(self, path: "Path") -> None:
        """Writes the statistics file to ``path`` now; also of a closed model.

        Raises:
            InputError: no file can be written there.
        """
        self._life.hold(self._writer.write, path, closed_too=True)

    def run(
        self,
        inputs: Mapping[str, Any],
        out: "Optional[Mapping[str, NDArray[Any]]]" = None,
        *,
        threads: int = 0,
    ) -> "Dict[str, NDArray[Any]]":
        """Runs the model once.

        Args:
            inputs: an array for every input name, of the dtype and shape that ``info`` tells
                (narrower integers are widened). They are only read, and only during the call,
                except a generative model's caches: these are changed in place.
            out: an array for every output name, to write the results to: of the output's dtype and
                of the very shape that these inputs give. After an error they may hold anything.
            threads: the threads of this run, so that several can go on side by side, each on its
                part of the CPUs; 0: as many as the bundle was opened with. Sums are divided by this
                number, so the last bits of the results depend on it, and on nothing else. Ignored
                where ``info["run_threads"]`` is false: by GPUs, torch, and libraries of older
                bundles.

        Returns:
            A new array for every output name, or those of ``out``.

        Raises:
            InputError: lists everything that is wrong with the inputs, or with ``out``.
            OutsideBucketsError: no bucket takes these sizes.
            NativeError: native code reported a failure; of a GPU a GpuError, after some of which
                every further run is refused.
            MemoryLimitError: there isn't the memory for it.
            ModelClosedError: the model is closed.
        """
        if threads == 0:
            return self._life.hold(self._run, inputs, None, out)
        return self._life.hold(self.with_threads, threads, self._run, inputs, None, out)

    def with_threads(self, threads: int, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """Calls ``work``; what it runs in this thread has so many threads, as ``run`` says."""
        check_threads(threads)
        runtime = self._runtime
        if runtime is None or not runtime.sets_run_threads:
            return work(*arguments)
        runtime.set_run_threads(threads)
        try:
            return work(*arguments)
        finally:
            runtime.set_run_threads(0)

    def run_bucket(self, bucket: int, inputs: Mapping[str, Any]) -> "Dict[str, NDArray[Any]]":
        """Like ``run``, with the program of one bucket even where another would be chosen.

        Raises:
            InputError: also where there is no such bucket.
            OutsideBucketsError: this bucket doesn't take these sizes.
        """
        self._check_bucket(bucket)
        return self._life.hold(self._run, inputs, bucket)

    def check_inputs(self, inputs: Mapping[str, Any]) -> "Dict[str, NDArray[Any]]":
        """The inputs as they would be run; raises what ``run`` does before it runs anything."""
        return dict(self.check_once(inputs))

    def check_once(self, inputs: Mapping[str, Any]) -> CheckedInputs:
        """As ``check_inputs``; ``run`` doesn't check the result again.

        For who owns the arrays: values that change before they were run can crash native code.
        """
        arrays, sizes = self._checker.check(inputs)
        bucket = self._dispatcher.choose(sizes)
        return CheckedInputs(self._checker, self.manifest.inputs, arrays, sizes, bucket)

    def bind(
        self, bucket: int, arrays: "Sequence[NDArray[Any]]", results: "Sequence[NDArray[Any]]"
    ) -> Callable[[], Any]:
        """A run of the bucket's program over arrays that stay; see ``Program.bind``.

        Nothing is checked: the arrays must be what the manifest says.
        """
        program: Any = self._life.hold(self._programs.get, bucket)
        if isinstance(program, Program):
            return program.bind(arrays, results)
        return functools.partial(program.run_into, arrays, results)

    @property
    def batch_texts(self) -> int:
        """The largest number of texts that one run gives a token each; 0: none does."""
        spec = self.manifest.generation
        batch = None if spec is None else spec.batch
        return 0 if batch is None or self._variant.name not in batch.programs else batch.texts

    @property
    def masks_logits(self) -> bool:
        """Whether what ``bind`` gives has ``run_masked``."""
        spec, runtime = self.manifest.generation, self._runtime
        masks = spec is not None and spec.masked_head
        return masks and runtime is not None and runtime.masks_logits

    def bind_batch(
        self, arrays: "Sequence[NDArray[Any]]", results: "Sequence[NDArray[Any]]"
    ) -> Callable[[], Any]:
        """As ``bind``, of the program that runs several texts, where ``batch_texts`` isn't 0."""
        spec = self.manifest.generation
        assert spec is not None
        assert spec.batch is not None
        path, programs = spec.batch.programs[self._variant.name], self._programs
        program: Program = self._life.hold(programs.get_batch, path)  # type: ignore[union-attr]
        return program.bind(arrays, results)

    @property
    def gpu(self) -> "TritonPrograms":
        """The programs of a variant for a GPU; what is asked of them goes through ``hold``."""
        return self._programs  # type: ignore[return-value]

    def hold(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """Calls ``work`` while nothing is given back; raises ModelClosedError once it was."""
        return self._life.hold(work, *arguments)

    def run_bound(self, run: Callable[[], Any], bucket: int, sizes: Mapping[str, int]) -> None:
        """Runs what was bound, and counts it as a call of these sizes."""
        self._life.hold(self._run_bound, run, bucket, sizes)

    def trim(self, most: int) -> None:
        """Gives buffers of a CPU back to the system where more than ``most`` bytes are kept for later runs."""
        programs: Any = self._programs
        self._life.hold(programs.trim, most)

    def _run_bound(self, run: Callable[[], Any], bucket: int, sizes: Mapping[str, int]) -> None:
        started = time.perf_counter_ns()
        run()
        self._count(bucket, sizes, started)

    def _count(self, bucket: int, sizes: Mapping[str, int], started: int) -> None:
        ended = time.perf_counter_ns()
        self._stats.record(bucket, sizes, ended - started)
        self._writer.tick(ended)

    def _run(
        self,
        inputs: Mapping[str, Any],
        bucket: Optional[int],
        out: "Optional[Mapping[str, NDArray[Any]]]" = None,
    ) -> "Dict[str, NDArray[Any]]":
        started = time.perf_counter_ns()
        forced = bucket is not None
        choice: Optional[int] = None
        try:
            if type(inputs) is CheckedInputs and inputs.checker is self._checker:
                arrays, sizes, choice = list(inputs.arrays), inputs.sizes, inputs.bucket
            else:
                arrays, sizes = self._checker.check(inputs)
            if bucket is not None:
                self._dispatcher.check(bucket, sizes)
            else:
                bucket = self._dispatcher.choose(sizes) if choice is None else choice
            program = self._programs.get(bucket)
            fill = self._checker.choose_fill(arrays, sizes, self._dispatcher.fills(bucket))
            padded = self._dispatcher.pad(bucket, arrays, sizes, fill)
            outputs = self._results.run(program, padded, sizes, out)
        except OutsideBucketsError:
            # What doesn't fit a bucket of the caller's choice may well fit another one.
            self._stats.record_refusal(None if forced else sizes)
            raise
        except InputError:
            self._stats.record_refusal()
            raise
        except MemoryError as error:
            if isinstance(error, MemoryLimitError):
                raise
            raise no_memory("running {}".format(self._folder.path)) from error
        self._count(bucket, sizes, started)
        return outputs

    def warm_up(self) -> None:
        """Loads every bucket's program and runs it once at its hint; not counted in ``stats``.

        Raises:
            UnsupportedHostError: the inputs of a bucket need more than half of this machine's memory.
        """
        parts = (self.manifest, self._programs, self._dispatcher, self._host.memory)
        self._life.hold(warm_up, *parts)
        if self._encoder is not None:
            self._encoder.warm_up()

    def open_file(self, name: str) -> int:
        """Opens a file of this very bundle, whatever lies at its path now, and checks its hash.

        Returns:
            A descriptor, which the caller closes.

        Raises:
            DamagedBundleError: it is missing, or differs from its size or hash.
            ModelClosedError: the model is closed.
        """
        return self._life.hold(self._folder.open_checked, name)

    def load(self, bucket: int) -> None:
        """Loads the program of one bucket, if it isn't, without running it.

        Raises:
            InputError: there is no such bucket.
        """
        self._check_bucket(bucket)
        self._life.hold(self._programs.get, bucket)

    def _check_bucket(self, bucket: int) -> None:
        if not 0 <= bucket < len(self._programs):
            text = "there is no bucket {}, only 0..{}".format(bucket, len(self._programs) - 1)
            raise InputError(text)

    def close(self) -> None:
        """Refuses later calls, waits for those under way and frees everything.

        During a call of its own thread, as in a signal handler, it can't wait for that: it returns at
        once, the call goes on to its end, and with the last one everything is freed. A ``close`` that
        was interrupted can be called again.

        Raises:
            GpuError: something couldn't be given back; all else was.
        """
        self._life.close()

    def _after_fork(self) -> None:
        """In a process after a fork, where the threads whose calls were under way don't exist."""
        self._life.after_fork()
        self._programs.after_fork()
        self._stats.reset()
        self._writer.after_fork()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Frees native memory of a model that nobody closed; attributes are missing where
        # __init__ raised.
        life = getattr(self, "_life", None)
        if life is not None:
            life.close()


_opened: "weakref.WeakSet[OpenBundle]" = weakref.WeakSet()


def _after_fork() -> None:
    for module in (library, libraries, weights):
        module.after_fork()
    for bundle in list(_opened):
        bundle._after_fork()


os.register_at_fork(after_in_child=_after_fork)
