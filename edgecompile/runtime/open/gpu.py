"""Opens bundles that have variants for a GPU: which of them this machine's GPU takes, and its programs."""

import platform
from functools import partial
from typing import TYPE_CHECKING, Callable, Dict, Mapping, TypeVar, Union

from ..base.errors import (
    EdgecompileError,
    GpuUnavailableError,
    UnfinishedBundleError,
    UnsupportedHostError,
)
from ..cpu.host import Host, architecture, choose_variant, missing
from ..format.files.folder import BundleFolder
from ..format.manifest.schema import GPU_BACKENDS, TENSORRT, TRITON, Manifest, Variant
from .choose import FALLBACK_VARIABLE, Opener, OpenRequest

if TYPE_CHECKING:
    from ..cpu.programs import Programs
    from ..gpu.programs import GpuPrograms
    from ..triton.programs import TritonPrograms


_Result = TypeVar("_Result")


class GpuOpener(Opener):
    """Opens bundles with variants for a GPU. Each step imports only the modules of its backend."""

    def start(self, manifest: Manifest, request: OpenRequest) -> None:
        """Begins to make the GPU ready, where a variant is likely to need the driver alone.

        That takes some tenths of a second, in a thread.
        """
        arch = architecture(platform.machine())
        likely = [
            variant
            for variant in sorted(manifest.variants, key=lambda variant: variant.rank)
            if variant.arch == arch and request.variant in (None, variant.name)
        ]
        if likely and likely[-1].backend == TRITON and TRITON not in request.without:
            from ..triton.driver import start_driver

            start_driver()

    def judge(self, folder: BundleFolder, host: Host, request: OpenRequest) -> Dict[str, str]:
        """The backends and variants that aren't taken on this machine's GPU, each with the reason.

        Raises:
            BundleError, GpuError, FinishError, SelftestError: that can't be found out.
        """
        if request.variant is not None:
            return dict(request.without)
        without = {**_judge_gpu(folder.manifest, host, request), **request.without}
        return {**_judge_engine(folder, host, request, without), **without}

    def open_variant(
        self, folder: BundleFolder, variant: Variant, host: Host, request: OpenRequest
    ) -> "Union[Programs, GpuPrograms, TritonPrograms]":
        """The programs of the variant that was chosen; the engine is built first where ``finish`` says so."""
        if variant.backend not in GPU_BACKENDS:
            return super().open_variant(folder, variant, host, request)
        try:
            if variant.backend == TRITON:
                from ..triton.variant import open_triton_variant

                check_weights = request.verify != "fast"
                return open_triton_variant(folder, variant, request.mode, check_weights)
            from ..gpu.variant import open_gpu_variant

            load = partial(open_gpu_variant, folder, variant, request.mode)
            return _finished(load, folder, variant, request)
        except (GpuUnavailableError, UnfinishedBundleError) as error:
            if request.after(error) is None:
                _add_hint(error, folder, host)
            raise


def _judge_gpu(manifest: Manifest, host: Host, request: OpenRequest) -> Dict[str, str]:
    """Why this machine's GPU can't run some variants, by name, where it can run others.

    Where it can't run any, that is left to who opens one: its error says more.
    """
    candidates = [x for x in manifest.variants if x.backend == TRITON and not missing(x, host)]
    if len(candidates) < 2 or TRITON in request.without:
        return {}
    from ..triton.variant import find_refusal

    refusals = {variant.name: find_refusal(variant) for variant in candidates}
    if all(refusals.values()):
        return {}
    return {name: error.message for name, error in refusals.items() if error is not None}


def _judge_engine(
    folder: BundleFolder, host: Host, request: OpenRequest, without: Mapping[str, str]
) -> Dict[str, str]:
    """Why TensorRT's engine isn't taken where programs of Triton's kernels can run: it isn't finished
    here, or ``finish`` measured that it is slower."""
    fitting = [
        item
        for item in folder.manifest.variants
        if item.name not in without and item.backend not in without and not missing(item, host)
    ]
    engines = [item for item in fitting if item.backend == TENSORRT]
    if not engines or all(item.backend != TRITON for item in fitting):
        return {}  # before what takes time to be imported
    from ..finish.comparison import explain_slower, find_triton_variant, read_comparison
    from ..gpu.variant import find_engine
    from ..triton.variant import find_refusal

    variant = max(engines, key=lambda item: item.rank)
    rival = find_triton_variant(fitting, variant)
    if rival is None or find_refusal(rival) is not None:
        return {}
    try:
        engine = _finished(partial(find_engine, folder, variant), folder, variant, request)
    except (GpuUnavailableError, UnfinishedBundleError) as error:
        return {TENSORRT: "isn't ready: {}".format(error.message)}
    slower = explain_slower(variant, rival, read_comparison(folder.manifest, rival, engine) or {})
    return {TENSORRT: slower} if slower else {}


def _finished(
    use: Callable[[], _Result], folder: BundleFolder, variant: Variant, request: OpenRequest
) -> _Result:
    """The result of ``use``, which needs an engine; builds that first where the request says so."""
    try:
        return use()
    except UnfinishedBundleError:
        if not request.finish:
            raise
    from ..finish.finish import finish_bundle
    from ..finish.maker import Options

    finish_bundle(folder.path, Options(variant=variant.name), listed=folder.manifest_sha256)
    return use()


def _add_hint(error: EdgecompileError, folder: BundleFolder, host: Host) -> None:
    """Says that the bundle has a variant for the CPU, where it does."""
    try:
        other, _ = choose_variant(folder.manifest, host, None, dict.fromkeys(GPU_BACKENDS, ""))
    except UnsupportedHostError:
        return
    text = 'or let the CPU run it, with the variant {}: fallback="cpu", or {}=cpu'
    parts = [error.hint] if error.hint else []
    error.hint = "; ".join([*parts, text.format(other.name, FALLBACK_VARIABLE)])
