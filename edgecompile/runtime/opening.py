"""Chooses the variant of a bundle to open, by the caller's wishes and the machine."""

import os
import platform
from typing import TYPE_CHECKING, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

from .cpu.host import VARIANT_VARIABLE, Host, architecture, choose_variant, missing
from .cpu.loaders import find_loader
from .errors import (
    EdgecompileError,
    FinishError,
    GpuError,
    GpuUnavailableError,
    InputError,
    SelftestError,
    UnfinishedBundleError,
    UnsupportedHostError,
)
from .format.folder import BundleFolder
from .format.schema import AOTI_CPU, GPU_BACKENDS, NOTHING, TENSORRT, TRITON, Manifest, Variant
from .gpu.engines import MODES, PLANNED

if TYPE_CHECKING:
    from .cpu.programs import Programs
    from .gpu.programs import GpuPrograms

MODE_VARIABLE = "EDGECOMPILE_MODE"
FALLBACK_VARIABLE = "EDGECOMPILE_FALLBACK"
FALLBACKS = ("cpu",)
VERIFY_LEVELS = ("fast", "auto", "full")
MAX_THREADS = 4096

#: What the CPU is taken for instead, where that was asked for.
GPU_FAILURES = (GpuError, UnfinishedBundleError, FinishError, SelftestError)


class Request(NamedTuple):
    """The checked options of ``open_bundle``; see there. ``concurrency`` 0: the default.

    ``without`` has the backends that mustn't be used, each with the reason.
    """

    threads: Optional[int] = None
    variant: Optional[str] = None
    verify: str = "auto"
    concurrency: int = 0
    mode: str = PLANNED
    fallback: Optional[str] = None
    finish: bool = False
    without: Mapping[str, str] = NOTHING

    def after(self, error: EdgecompileError) -> "Optional[Request]":
        """The variant to try after the GPU failed; None: raise the error.

        A variant that was asked for by name isn't replaced by another one.
        """
        if self.fallback is None or self.variant is not None or self.without:
            return None
        reason = "can't be used here: {}".format(error.message)
        return self._replace(without=dict.fromkeys(GPU_BACKENDS, reason))


class Opened(NamedTuple):
    """A variant, why each of the others can't run here, and the programs."""

    variant: Variant
    refused: Dict[str, List[str]]
    programs: "Union[Programs, GpuPrograms]"


def make_request(
    threads: Optional[int],
    variant: Optional[str],
    verify: str,
    concurrency: Optional[int],
    mode: Optional[str],
    fallback: Optional[str],
    finish: bool,
) -> Request:
    """Checks the arguments of ``open_bundle`` and looks at the environment for the absent ones.

    Raises:
        InputError: one is out of its range.
    """
    fallback = fallback if fallback is not None else os.environ.get(FALLBACK_VARIABLE) or None
    mode = mode if mode is not None else os.environ.get(MODE_VARIABLE) or PLANNED
    for name, value in (("threads", threads), ("concurrency", concurrency)):
        if value is not None:
            check_threads(value, name)
    _check_choice("verify", verify, VERIFY_LEVELS)
    _check_choice("mode", mode, MODES)
    if fallback is not None:
        _check_choice("fallback", fallback, FALLBACKS)
    return Request(
        threads=threads,
        variant=variant if variant is not None else os.environ.get(VARIANT_VARIABLE) or None,
        verify=verify,
        concurrency=concurrency or 0,
        mode=mode,
        fallback=fallback,
        finish=bool(finish),
    )


def _check_choice(name: str, value: object, choices: Tuple[str, ...]) -> None:
    if not (isinstance(value, str) and value in choices):
        raise InputError("{} is {!r}, must be one of {}".format(name, value, choices))


def check_threads(count: object, name: str = "threads") -> None:
    """Raises InputError unless ``count`` is a number of threads."""
    if not (isinstance(count, int) and 1 <= count <= MAX_THREADS):
        text = "{} is {!r}, must be an integer from 1 to {}"
        raise InputError(text.format(name, count, MAX_THREADS))


def start_gpu(manifest: Manifest, request: Request) -> None:
    """Begins to make the GPU ready, where a variant is likely to need the driver alone.

    That takes some tenths of a second, in a thread; hashes, imports and the choice go on meanwhile.
    """
    arch = architecture(platform.machine())
    likely = [
        variant
        for variant in sorted(manifest.variants, key=lambda variant: variant.rank)
        if variant.arch == arch and request.variant in (None, variant.name)
    ]
    if likely and likely[-1].backend == TRITON and TRITON not in request.without:
        from .triton.driver import start_driver

        start_driver()


def open_programs(folder: BundleFolder, host: Host, request: Request) -> Opened:
    """Chooses the variant and opens its programs; loads none of them.

    Raises:
        UnsupportedHostError: no variant can run on this machine.
        BundleError, NativeError, GpuError, FinishError, SelftestError: it can't be opened.
    """
    without = judge_backends(folder, host, request)
    variant, refused = choose_variant(folder.manifest, host, request.variant, without)
    programs: Union[Programs, GpuPrograms]
    if variant.backend == TRITON:
        from .triton.variant import open_triton_variant

        try:
            programs = open_triton_variant(folder, variant, request.mode, request.verify != "fast")
        except GpuUnavailableError as error:
            if request.after(error) is None:
                _add_hint(error, folder, host)
            raise
    elif variant.backend == TENSORRT:
        # Here alone: who runs on the CPU doesn't wait for these imports.
        from .gpu.variant import open_gpu_variant

        try:
            try:
                programs = open_gpu_variant(folder, variant, request.mode)
            except UnfinishedBundleError:
                if not request.finish:
                    raise
                _finish(folder, variant)
                programs = open_gpu_variant(folder, variant, request.mode)
        except (GpuUnavailableError, UnfinishedBundleError) as error:
            if request.after(error) is None:
                _add_hint(error, folder, host)
            raise
    else:
        # torch's programs are opened by who registered for them: this package never imports torch.
        if variant.backend == AOTI_CPU:
            from .cpu.programs import open_cpu_variant as open_variant
        else:
            open_variant = find_loader(variant.backend).open
        programs = open_variant(
            folder,
            variant,
            request.threads,
            request.concurrency or min(4, max(host.cpus, 1)),
            # Under "full" too: what was hashed then may have been exchanged since.
            request.verify != "fast",
        )
    return Opened(variant, refused, programs)


def judge_backends(folder: BundleFolder, host: Host, request: Request) -> Dict[str, str]:
    """The backends and variants that aren't taken on this machine's GPU, each with the reason.

    Raises:
        BundleError, GpuError, FinishError, SelftestError: that can't be found out.
    """
    if request.variant is not None:
        return dict(request.without)
    without = {**_judge_gpu(folder.manifest, host, request), **request.without}
    return {**_judge_engine(folder, host, request, without), **without}


def _judge_gpu(manifest: Manifest, host: Host, request: Request) -> Dict[str, str]:
    """Why this machine's GPU can't run some variants, by name, where it can run others.

    Where it can't run any, that is left to who opens one: its error says more.
    """
    candidates = [x for x in manifest.variants if x.backend == TRITON and not missing(x, host)]
    if len(candidates) < 2 or TRITON in request.without:
        return {}
    from .triton.variant import find_refusal

    refusals = {variant.name: find_refusal(variant) for variant in candidates}
    if all(refusals.values()):
        return {}
    return {name: error.message for name, error in refusals.items() if error is not None}


def _judge_engine(
    folder: BundleFolder, host: Host, request: Request, without: Mapping[str, str]
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
    from .finish.rival import explain_slower, find_rival, read_comparison
    from .gpu.variant import find_engine
    from .triton.variant import find_refusal

    variant = max(engines, key=lambda item: item.rank)
    rival = find_rival(fitting, variant)
    if rival is None or find_refusal(rival) is not None:
        return {}
    try:
        try:
            engine = find_engine(folder, variant)
        except UnfinishedBundleError:
            if not request.finish:
                raise
            _finish(folder, variant)
            engine = find_engine(folder, variant)
    except (GpuUnavailableError, UnfinishedBundleError) as error:
        return {TENSORRT: "isn't ready: {}".format(error.message)}
    slower = explain_slower(variant, rival, read_comparison(folder.manifest, rival, engine) or {})
    return {TENSORRT: slower} if slower else {}


def _finish(folder: BundleFolder, variant: Variant) -> None:
    from .finish.finish import finish_bundle
    from .finish.maker import Options

    finish_bundle(folder.path, Options(variant=variant.name))


def _add_hint(error: EdgecompileError, folder: BundleFolder, host: Host) -> None:
    """Says that the bundle has a variant for the CPU, where it does."""
    try:
        other, _ = choose_variant(folder.manifest, host, None, dict.fromkeys(GPU_BACKENDS, ""))
    except UnsupportedHostError:
        return
    text = 'or let the CPU run it, with the variant {}: fallback="cpu", or {}=cpu'
    parts = [error.hint] if error.hint else []
    error.hint = "; ".join([*parts, text.format(other.name, FALLBACK_VARIABLE)])
