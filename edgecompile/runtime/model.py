"""A bundle opened for running: ``open_bundle(path) -> Model``, ``Model.run(inputs) -> outputs``."""

import os
from typing import TYPE_CHECKING, Any, Iterable, Optional

from .cpu.host import Host, describe_host
from .format.folder import BundleFolder
from .format.schema import TENSORRT
from .generation.generator import Generator
from .generation.options import Options
from .limits import memory_for
from .opened import OpenBundle
from .opening import (
    GPU_FAILURES,
    Opened,
    Request,
    make_request,
    open_programs,
    start_gpu,
)
from .stats.file import check_schedule

if TYPE_CHECKING:
    from .format.output import Path
    from .generation.session import Session
    from .generation.stream import TokenStream
    from .text.encoder import Text, TextEncoder, TextOutputs


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
            are, and queues the runs of others each time; "default" queues every run;
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
            model.schedule_stats(stats_file, stats_every)
        if warmup:
            model.warm_up()
    except BaseException:
        model.close()
        raise
    return model


def _open_folder(folder: BundleFolder, request: Request) -> "Model":
    """Takes ``folder`` over, and opens the bundle within it, where there is one."""
    try:
        start_gpu(folder.manifest, request)
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
            # Here, as only such models pay for it when they start.
            from .generation.sources import check_encoder

            inner = folder.open_inner(spec.encoder)
            try:
                check_encoder(spec, folder.manifest, inner.manifest, inner.path)
            except BaseException:
                inner.close()
                raise
            # Both parts are of one variant: what was chosen for one was built for the other.
            same = request._replace(variant=opened.variant.name)
            model.own_encoder(_open_folder(inner, same))
    except BaseException:
        model.close()
        raise
    return model


class Model(OpenBundle, Generator):
    """An open bundle; made by ``open_bundle``. Every method may be called from any thread.

    A signal handler may call ``close`` whatever it interrupts, except the opening of a bundle, and no
    other method.
    """

    def __init__(
        self, folder: BundleFolder, host: Host, opened: Opened, fallback: Optional[str] = None
    ) -> None:
        """See ``OpenBundle``."""
        super().__init__(folder, host, opened, fallback)
        self._texts: Optional[TextEncoder] = None

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

    def session(self) -> "Session":
        """A conversation: texts that begin as the one before did need only their new part run.

        Raises:
            GenerationError: the model generates nothing, or a GPU runs it.
            UnsupportedHostError: there is no memory for its caches.
        """
        from .generation.session import open_session

        return open_session(self)

    def _stream(self, input_ids: Any, decoder_input_ids: Any, options: Options) -> "TokenStream":
        return self.session()._stream(input_ids, decoder_input_ids, options)
