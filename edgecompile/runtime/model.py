"""A bundle opened for running: ``open_bundle(path) -> Model``, ``Model.run(inputs) -> outputs``."""

import dataclasses
import os
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, Iterable, Mapping, Optional, Type

from .call.dispatch import Dispatcher
from .call.inputs import InputChecker
from .call.results import ResultMaker
from .cpu import aoti, libraries
from .cpu.host import Host, describe_host
from .errors import GenerationError, InputError, MemoryLimitError, OutsideBucketsError
from .format import weights
from .format.folder import BundleFolder
from .format.manifest import AOTI_CPU, TENSORRT, Manifest, Tolerance
from .generation.generator import Generator, Options
from .generation.sources import check_encoder
from .lifetime import Lifetime, Unique
from .limits import memory_for, no_memory
from .opening import GPU_FAILURES, VARIANT_VARIABLE, Opened, Request, make_request, open_programs
from .stats.counters import Stats
from .stats.file import StatsWriter, check_schedule
from .warmup import warm_up

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .cpu.aoti import RuntimeLibrary
    from .format.output import Path
    from .generation.chunks import ChunkPlanner
    from .generation.session import Session
    from .generation.stream import TokenStream
    from .text.encoder import Text, TextEncoder, TextOutputs

__all__ = ["VARIANT_VARIABLE", "Model", "open_bundle"]


def open_bundle(
    path: "Path",
    *,
    threads: Optional[int] = None,
    variant: Optional[str] = None,
    verify: str = "auto",
    warmup: bool = True,
    concurrency: Optional[int] = None,
    stats_file: "Optional[Path]" = None,
    stats_every: float = 60.0,
    mode: Optional[str] = None,
    fallback: Optional[str] = None,
    finish: bool = False,
) -> "Model":
    """Opens a bundle, chooses the variant for this machine and loads its programs.

    Args:
        path: the bundle's folder.
        threads: threads of one run. None leaves the number as it is, at first all CPUs that the
            process may use. Models of one process whose runtime library is the same share its
            thread pool, so the last number given holds for all of them.
        variant: the variant to use instead of the best one; None also looks at the environment
            variable EDGECOMPILE_VARIANT.
        verify: "auto" compares the SHA-256 of every file that is used; "fast" leaves out the
            weights (their size and header are always checked); "full" compares every file of the
            bundle.
        warmup: load every bucket's program and run it once at its hint now, not at first use.
        concurrency: how many calls of one bucket's program may be in flight at once, further ones
            wait; None means up to 4, no more than the CPUs.
        stats_file: where to write ``Model.stats`` when the model is closed and meanwhile; ``{pid}``
            stands for the process' number, which several processes of one bundle need. The file is
            replaced atomically. What goes wrong is in ``Model.stats["file_error"]``, never raised.
        stats_every: at most so often, in seconds, a call of ``run`` writes the file on its way.
        mode: how a GPU runs. "planned" replays a CUDA graph in buckets of one shape, as padded ones
            are, and queues the runs of others anew; "default" queues every run anew;
            "reduce-overhead" pads each bucket to its upper end and replays graphs only. None looks
            at the environment variable EDGECOMPILE_MODE, and then is "planned". A CPU has one mode.
        fallback: "cpu" takes the best variant for the CPU where the GPU's can't be used, and
            ``Model.info`` says why; None looks at EDGECOMPILE_FALLBACK. Without, that is an error.
        finish: build the GPU's engine first if there is none for this device, which takes minutes.

    Raises:
        BundleError: it is missing, malformed or damaged, or of an unknown format version.
        UnsupportedHostError: no variant can run on this machine.
        GpuUnavailableError: the variant is for a GPU, and what that needs is missing here.
        UnfinishedBundleError: the variant's engine hasn't been built on this device.
        FinishError: building it, which was asked for, failed.
        SelftestError: it was built, and doesn't reproduce the golden vectors.
        NativeError: native code can't be loaded, or a warm-up run failed; of a GPU a GpuError.
        HostLimitError: the system refuses what it takes: an OpenFilesError, FilePermissionError,
            NoExecError or MemoryLimitError.
        InputError: an argument of this function is out of its range, or no file can be written at
            ``stats_file``; a ModeError if the bundle can't be run in ``mode``.
    """
    request = make_request(threads, variant, verify, concurrency, mode, fallback, finish)
    if stats_file is not None:
        check_schedule(stats_file, stats_every, os.fspath(path))
    with memory_for("opening {}".format(os.fspath(path))):
        try:
            return _open(path, request, warmup, stats_file, stats_every)
        except GPU_FAILURES as error:
            instead = request.after(error)
            if instead is None:
                raise
        return _open(path, instead, warmup, stats_file, stats_every)


def _open(
    path: "Path",
    request: Request,
    warmup: bool,
    stats_file: "Optional[Path]",
    stats_every: float,
) -> "Model":
    model = _open_folder(BundleFolder(os.fspath(path)), request)
    try:
        if stats_file is not None:
            model._writer.schedule(stats_file, stats_every)
        if warmup:
            model.warm_up()
    except BaseException:
        model.close()
        raise
    return model


def _open_folder(folder: BundleFolder, request: Request) -> "Model":
    """Takes ``folder`` over, and opens the bundle within it, where there is one."""
    try:
        if request.verify == "full":
            folder.check_hashes()
        else:
            folder.check_sizes()
        host = describe_host(folder)
        opened = open_programs(folder, host, request)
    except BaseException:
        folder.close()
        raise
    model = Model(folder, host, opened, request.without.get(TENSORRT))
    spec = folder.manifest.generation
    try:
        if spec is not None and spec.encoder:
            inner = folder.open_inner(spec.encoder)
            try:
                check_encoder(spec, folder.manifest, inner.manifest, inner.path)
            except BaseException:
                inner.close()
                raise
            # Both parts are of one variant: what was chosen for one was built for the other.
            same = dataclasses.replace(request, variant=opened.variant.name)
            model._encoder = _open_folder(inner, same)
            model._life.own(model._encoder.close)
    except BaseException:
        model.close()
        raise
    return model


class Model(Unique, Generator):
    """An open bundle; made by ``open_bundle``. Every method may be called from any thread.

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
        self._dispatcher = Dispatcher(opened.programs.manifest)
        self._results = ResultMaker(manifest)
        self._generates = manifest.generation is not None
        self._planner: Optional[ChunkPlanner] = None
        self._encoder: Optional[Model] = None
        self._stats = Stats(opened.programs.manifest)
        self._writer = StatsWriter(
            self._stats, manifest, folder.manifest_sha256, self._variant.name, folder.path
        )
        self._texts: Optional[TextEncoder] = None
        # The programs go first. What is owned doesn't refer to this object, which goes by itself
        # when nobody refers to it.
        owned = [folder.close, self._writer.finish, opened.programs.close]
        self._life = Lifetime(folder.path, owned)
        _models.add(self)

    def __repr__(self) -> str:
        manifest = self.manifest
        precision = self._programs.precision or manifest.precision
        axes = sorted(manifest.axes, key=lambda axis: axis != manifest.length_axis)
        sizes = "".join(", {} {}".format(axis, manifest.axes[axis]) for axis in axes)
        closed = ", closed" if self._life.closed else ""
        parts = (manifest.name, precision, self._variant.name, sizes, closed)
        return "<Model {} {} {}{}{}>".format(*parts)

    @property
    def manifest(self) -> Manifest:
        """The bundle's manifest."""
        return self._folder.manifest

    @property
    def encoder(self) -> "Optional[Model]":
        """What reads the source of a text, opened and closed with this model; None: nothing does."""
        return self._encoder

    @property
    def tolerance(self) -> Tolerance:
        """What golden vectors are judged by: the manifest's, on a GPU that of its recipe."""
        return self._programs.tolerance

    @property
    def min_cosine(self) -> Optional[float]:
        """The least cosine that an output may have to a golden vector's; None: any."""
        return self._programs.min_cosine

    @property
    def info(self) -> Dict[str, Any]:
        """What was opened, as plain JSON values: inputs, outputs, buckets, variant, host, …"""
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
            host=self._host.to_json(),
        )
        if "padding" in manifest.plan:
            result["padding"] = manifest.plan["padding"]
        if manifest.text is not None:
            result["text"] = manifest.text.to_json()
        if manifest.labels:
            result["labels"] = whole["labels"]
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

    def write_stats(self, path: "Path") -> None:
        """Writes the statistics file to ``path`` now; also of a closed model.

        Raises:
            InputError: no file can be written there.
        """
        self._life.hold(self._writer.write, path, closed_too=True)

    def run(
        self, inputs: Mapping[str, Any], out: "Optional[Mapping[str, NDArray[Any]]]" = None
    ) -> "Dict[str, NDArray[Any]]":
        """Runs the model once.

        Args:
            inputs: an array for every input name, of the dtype and shape that ``info`` tells
                (narrower integers are widened). They are only read, and only during the call,
                except a generative model's caches: these are changed in place.
            out: an array for every output name, to write the results to: of the output's dtype and
                of the very shape that these inputs give. After an error they may hold anything.

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
        return self._life.hold(self._run, inputs, None, out)

    def encode_texts(
        self, texts: "Iterable[Text]", *, prompt: Optional[str] = None, truncate: bool = True
    ) -> "TextOutputs":
        """Runs texts: tokenizes them, batches those of like length, gives the outputs by text.

        Args:
            texts: strings; or pairs of them, for models that read two texts at once.
            prompt: which of the bundle's prompts goes before each text; None: its default one.
            truncate: whether to cut texts that are longer than the bundle takes; the result says
                which those were.

        Raises:
            InputError: what was given isn't text, or is too long and isn't to be cut.
            TokenizerError: the bundle holds no tokenizer, or takes more than texts give; a
                TokenizersMissingError where the Python package tokenizers isn't installed.
            NativeError, ModelClosedError: as ``run``.
        """
        return self._text_encoder().encode(self, texts, prompt, truncate)

    def _text_encoder(self) -> "TextEncoder":
        # Two threads may both make one at first; they are alike.
        if self._texts is None:
            from .text.encoder import TextEncoder

            self._texts = TextEncoder(self)
        return self._texts

    def run_bucket(self, bucket: int, inputs: Mapping[str, Any]) -> "Dict[str, NDArray[Any]]":
        """Like ``run``, with the program of one bucket even where another would be chosen.

        Raises:
            InputError: also where there is no such bucket.
            OutsideBucketsError: this bucket doesn't take these sizes.
        """
        self._check_bucket(bucket)
        return self._life.hold(self._run, inputs, bucket)

    def session(self) -> "Session":
        """A conversation: texts that begin as the one before did need only their new part run.

        Raises:
            GenerationError: the model generates nothing, or a GPU runs it.
            UnsupportedHostError: there is no memory for its caches.
        """
        from .generation.chunks import ChunkPlanner
        from .generation.session import Session

        spec = self.manifest.generation
        if spec is None:
            hint = "build it as a language model: edgecompile build --task causal-lm"
            raise GenerationError("{} generates nothing".format(self._folder.path), hint)
        if self._variant.backend == TENSORRT:
            text = "the variant {} runs on a GPU, where caches can't be changed in place"
            raise GenerationError(text.format(self._variant.name), "name a variant for the CPU")
        if self._variant.backend != AOTI_CPU:
            text = "the variant {} is run by {}, which this loop can't drive"
            text = text.format(self._variant.name, self._variant.backend)
            raise GenerationError(text, "name a variant of the native runtime")
        if self._planner is None:
            self._planner = ChunkPlanner(self.manifest, spec)
        return Session(self, spec, self._planner)

    def _stream(self, input_ids: Any, decoder_input_ids: Any, options: Options) -> "TokenStream":
        return self.session()._stream(input_ids, decoder_input_ids, options)

    def _check(self, inputs: Mapping[str, Any]) -> "Dict[str, NDArray[Any]]":
        """The inputs as they would be run; raises what ``run`` does before it runs anything."""
        arrays, sizes = self._checker.check(inputs)
        self._dispatcher.choose(sizes)
        return {spec.name: array for spec, array in zip(self.manifest.inputs, arrays)}

    def _run(
        self,
        inputs: Mapping[str, Any],
        bucket: Optional[int],
        out: "Optional[Mapping[str, NDArray[Any]]]" = None,
    ) -> "Dict[str, NDArray[Any]]":
        started = time.perf_counter_ns()
        forced = bucket is not None
        try:
            arrays, sizes = self._checker.check(inputs)
            if bucket is None:
                bucket = self._dispatcher.choose(sizes)
            else:
                self._dispatcher.check(bucket, sizes)
            program = self._programs.get(bucket)
            if self._generates:
                self._checker.check_rows(arrays, sizes, self._dispatcher.padded_sizes(bucket))
            padded = self._dispatcher.pad(bucket, arrays, sizes)
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
        ended = time.perf_counter_ns()
        self._stats.record(bucket, sizes, ended - started)
        self._writer.tick(ended)
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

    def _begin_anew(self) -> None:
        """In a process after a fork, where the threads whose calls were under way don't exist."""
        self._life.begin_anew()
        self._programs.begin_anew()
        self._stats.reset()
        self._writer.begin_anew()

    def __enter__(self) -> "Model":
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


_models: "weakref.WeakSet[Model]" = weakref.WeakSet()


def _begin_anew() -> None:
    for module in (aoti, libraries, weights):
        module.begin_anew()
    for model in list(_models):
        model._begin_anew()


os.register_at_fork(after_in_child=_begin_anew)
