"""Starts a bundle: ``open_bundle(path) -> Model``. What takes long begins before numpy is imported."""

import os
from typing import TYPE_CHECKING, Optional, Union

from ..base.errors import InputError
from ..base.limits import memory_for
from ..cpu.host import describe_host
from ..format.files.folder import BundleFolder
from ..format.manifest.schema import GPU_BACKENDS, TENSORRT, Manifest
from ..open.choose import GPU_FAILURES, Opener, OpenRequest, make_open_request
from ..stats.file import check_schedule

if TYPE_CHECKING:
    from ..format.output import Path
    from .model import Model


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
    trust: "Union[bool, Path, None]" = None,
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
        warmup: load every bucket's program and run it once at its hint now, not at first use; at its largest sizes,
            too, where ``tune`` found cuBLASLt faster.
        concurrency: the number of calls of one bucket's program that may be in flight at once,
            further ones wait; None means up to 4, no more than the CPUs.
        stats_file: the file for ``Model.stats``, written when the model is closed and meanwhile;
            ``{pid}`` stands for the process' number, which several processes of one bundle need.
            The file is replaced atomically. What goes wrong is in ``Model.stats["file_error"]``,
            never raised.
        stats_every: at most so often, in seconds, a call of ``run`` writes the file on its way.
        mode: the mode of a GPU. "planned" replays a CUDA graph in buckets of one shape, as padded
            ones are, and queues the runs of others each time; "default" queues every run;
            "reduce-overhead" pads each bucket to its upper end and replays graphs only. None looks
            at the environment variable EDGECOMPILE_MODE, and then is "planned". A CPU has one mode.
        fallback: "cpu" takes the best variant for the CPU where the GPU's can't be used, and
            ``Model.info`` says why; None looks at EDGECOMPILE_FALLBACK. Without, that is an error.
        finish: build the GPU's engine first if there is none for this device, which takes minutes.
        trust: the trust folder whose keys must have signed the bundle. None: the one that
            EDGECOMPILE_TRUST names, or /etc/edgecompile/trust where that exists. False: signatures
            aren't checked, unless /etc/edgecompile/trust is locked. See docs/signing.md.

    Raises:
        BundleError: it is missing, malformed or damaged, or of an unknown format version.
        UntrustedBundleError: signatures are wanted, and they don't suffice.
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
    request = make_open_request(threads, variant, verify, concurrency, mode, fallback, finish)
    try:
        path = os.fsdecode(path)
    except TypeError:
        raise InputError("path is {!r}, must be the path of a bundle".format(path)) from None
    if stats_file is not None:
        check_schedule(stats_file, stats_every, path)
    with memory_for("opening {}".format(path)):
        try:
            return _open(path, request, warmup, stats_file, stats_every, trust)
        except GPU_FAILURES as error:
            instead = request.after(error)
            if instead is None:
                raise
        return _open(path, instead, warmup, stats_file, stats_every, trust)


def _open(
    path: str,
    request: OpenRequest,
    warmup: bool,
    stats_file: "Optional[Path]",
    stats_every: float,
    trust: "Union[bool, Path, None]",
) -> "Model":
    model = open_folder(BundleFolder(path, trust=trust), request)
    try:
        if stats_file is not None:
            model.schedule_stats(stats_file, stats_every)
        if warmup:
            model.warm_up()
    except BaseException:
        model.close()
        raise
    return model


def find_opener(manifest: Manifest) -> Opener:
    """The opener of a bundle. Only where a variant is for a GPU are the GPU's steps imported and taken."""
    if all(variant.backend not in GPU_BACKENDS for variant in manifest.variants):
        return Opener()
    from ..open.gpu import GpuOpener

    return GpuOpener()


def open_folder(folder: BundleFolder, request: OpenRequest) -> "Model":
    """Takes ``folder`` over, and opens the bundle within it, where there is one."""
    try:
        opener = find_opener(folder.manifest)
        opener.start(folder.manifest, request)
        # numpy comes with it, which takes as long as half of making the GPU ready.
        from .model import Model

        if request.verify == "full":
            folder.check_hashes()
        else:
            folder.check_sizes()
        host = describe_host(folder)
        opened = opener.open(folder, host, request)
    except BaseException:
        folder.close()
        raise
    model = Model(folder, host, opened, request.without.get(TENSORRT))
    spec = folder.manifest.generation
    try:
        if spec is not None and spec.encoder:
            # Here, as only such models pay for it when they start.
            from ..generation.sources import check_encoder

            inner = folder.open_inner(spec.encoder)
            try:
                check_encoder(spec, folder.manifest, inner.manifest, inner.path)
            except BaseException:
                inner.close()
                raise
            # Both parts are of one variant: what was chosen for one was built for the other.
            same = request._replace(variant=opened.variant.name)
            model.own_encoder(open_folder(inner, same))
    except BaseException:
        model.close()
        raise
    return model
