"""Opens a bundle's variant of Triton kernels, and tells whether this machine's GPU can run it."""

from typing import Any, Mapping, Optional, Tuple

from ..base.errors import GpuUnavailableError
from ..format.files.folder import BundleFolder
from ..format.manifest.schema import GpuSpec, Variant
from ..gpu.engines import REDUCE_OVERHEAD
from .driver import Driver
from .library import load_variant_library
from .programs import TritonPrograms


def find_refusal(variant: Variant) -> Optional[GpuUnavailableError]:
    """Why this machine's GPU can't run a variant, or None; waits until CUDA is ready."""
    try:
        driver = Driver.load()
    except GpuUnavailableError as error:
        return error
    assert variant.gpu is not None
    device = driver.device()
    actual = "{} has {}".format(device.name, device.compute_capability)
    if not _fits(variant.gpu, device.compute_capability):
        return GpuUnavailableError(
            "its kernels are for compute capability {}, {}".format(_spell(variant.gpu), actual),
            "build the bundle for a target that includes this GPU, such as cuda-any",
        )
    if driver.driver_number() < variant.gpu.driver:
        text = "it needs a driver for CUDA {} or newer, that of {} is for {}"
        version = "{}.{}".format(variant.gpu.driver // 1000, variant.gpu.driver % 1000 // 10)
        return GpuUnavailableError(
            text.format(version, device.name, device.driver_version), "update NVIDIA's driver"
        )
    return None


def _fits(spec: GpuSpec, capability: str) -> bool:
    device = _pair(capability)
    capabilities = [_pair(item) for item in spec.compute_capabilities]
    if any(major == device[0] and minor <= device[1] for major, minor in capabilities):
        return True
    return spec.ptx is not None and _pair(spec.ptx) <= device


def _pair(capability: str) -> Tuple[int, int]:
    major, minor = capability.split(".")
    return int(major), int(minor)


def _spell(spec: GpuSpec) -> str:
    names = [*spec.compute_capabilities]
    if spec.ptx is not None:
        names.append(spec.ptx + " and later")
    return ", ".join(names)


def judge_triton_variant(folder: BundleFolder, variant: Variant) -> str:
    """The entry of ``info`` for a variant that fits this machine's CPU."""
    refusal = find_refusal(variant)
    if refusal:
        return refusal.message
    text = "runs here, on {}".format(Driver.load().device().name)
    if not variant.tunable:
        return text
    # Here alone: other bundles don't wait for these imports.
    from .tuning import TuningFolder, list_candidates

    tuned, why = TuningFolder(folder, variant).read()
    if tuned is None:
        return "{}; {}".format(text, why)
    lists = list_candidates(variant)
    choices = ["{} of {}".format(n + 1, len(items)) for n, items in zip(tuned.choice, lists)]
    text += "; tuned, program by bucket: " + ", ".join(choices)
    return text + "; some products by cuBLASLt" if tuned.uses_cublaslt else text


def open_triton_variant(
    folder: BundleFolder,
    variant: Variant,
    mode: str,
    check_weights: bool,
    record: Optional[Mapping[str, Any]] = None,
) -> TritonPrograms:
    """The programs of a variant of the backend ``triton``; none is on the GPU yet.

    Args:
        folder: the bundle.
        variant: a variant of it.
        mode: one of ``gpu.engines.MODES``.
        check_weights: compare the weights' hash.
        record: the choice of programs as ``tune`` records it; None: what it recorded on this GPU, else the
            first programs.

    Raises:
        GpuUnavailableError: there is no driver, or no GPU that fits.
        ModeError: the bundle can't be run in this mode.
        GpuError: CUDA reported a failure, too little memory for example.
        BundleError: a file differs from its hash, or breaks a rule.
    """
    spec = variant.gpu
    assert spec is not None
    manifest = folder.manifest
    if mode == REDUCE_OVERHEAD and spec.graphs:
        from ..gpu.programs import pad_everything

        manifest = pad_everything(manifest, spec.padding)
    library = load_variant_library(folder, variant)
    # What needs no GPU comes first there: ``start_driver`` makes it ready meanwhile.
    return TritonPrograms(library, folder, variant, manifest, mode, check_weights, record)
