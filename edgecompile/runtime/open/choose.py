"""Chooses the variant of a bundle to open, by the caller's wishes and the machine.

A bundle without variants for a GPU is opened by :class:`Opener`; ``open/gpu.py`` adds the steps of a GPU.
"""

import os
from typing import TYPE_CHECKING, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

from ..base.arguments import is_integer
from ..base.errors import (
    EdgecompileError,
    FinishError,
    GpuError,
    InputError,
    SelftestError,
    UnfinishedBundleError,
)
from ..cpu.host import VARIANT_VARIABLE, Host, choose_variant
from ..cpu.loaders import find_loader
from ..format.files.folder import BundleFolder
from ..format.manifest.schema import AOTI_CPU, GPU_BACKENDS, NOTHING, Manifest, Variant
from ..gpu.engines import MODES, PLANNED

if TYPE_CHECKING:
    from ..cpu.programs import Programs
    from ..gpu.programs import GpuPrograms
    from ..triton.programs import TritonPrograms

MODE_VARIABLE = "EDGECOMPILE_MODE"
FALLBACK_VARIABLE = "EDGECOMPILE_FALLBACK"
FALLBACKS = ("cpu",)
VERIFY_LEVELS = ("fast", "auto", "full")
MAX_THREADS = 4096

#: What the CPU is taken for instead, where that was asked for.
GPU_FAILURES = (GpuError, UnfinishedBundleError, FinishError, SelftestError)


class OpenRequest(NamedTuple):
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

    def after(self, error: EdgecompileError) -> "Optional[OpenRequest]":
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
    programs: "Union[Programs, GpuPrograms, TritonPrograms]"


def make_open_request(
    threads: Optional[int],
    variant: Optional[str],
    verify: str,
    concurrency: Optional[int],
    mode: Optional[str],
    fallback: Optional[str],
    finish: bool,
) -> OpenRequest:
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
    return OpenRequest(
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
    if not is_integer(count, 1, MAX_THREADS):
        text = "{} is {!r}, must be an integer from 1 to {}"
        raise InputError(text.format(name, count, MAX_THREADS))


class Opener:
    """Opens bundles whose variants are for CPUs."""

    def start(self, manifest: Manifest, request: OpenRequest) -> None:
        """Begins work that takes long; hashes, imports and the choice go on meanwhile."""

    def judge(self, folder: BundleFolder, host: Host, request: OpenRequest) -> Dict[str, str]:
        """The backends and variants that aren't taken on this machine, each with the reason."""
        return dict(request.without)

    def open(self, folder: BundleFolder, host: Host, request: OpenRequest) -> Opened:
        """Chooses the variant and opens its programs; loads none of them.

        Raises:
            UnsupportedHostError: no variant can run on this machine.
            BundleError, NativeError, GpuError, FinishError, SelftestError: it can't be opened.
        """
        without = self.judge(folder, host, request)
        variant, refused = choose_variant(folder.manifest, host, request.variant, without)
        return Opened(variant, refused, self.open_variant(folder, variant, host, request))

    def open_variant(
        self, folder: BundleFolder, variant: Variant, host: Host, request: OpenRequest
    ) -> "Union[Programs, GpuPrograms, TritonPrograms]":
        """The programs of the variant that was chosen."""
        # torch's programs are opened by who registered for them: this package never imports torch.
        if variant.backend == AOTI_CPU:
            from ..cpu.programs import open_cpu_variant as open_variant
        else:
            open_variant = find_loader(variant.backend).open
        return open_variant(
            folder,
            variant,
            request.threads,
            request.concurrency or min(4, max(host.cpus, 1)),
            # Under "full" too: what was hashed then may have been exchanged since.
            request.verify != "fast",
        )
