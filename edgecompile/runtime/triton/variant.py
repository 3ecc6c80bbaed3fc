"""Opens a bundle's variant of Triton kernels, and tells whether this machine's GPU can run it."""

from typing import TYPE_CHECKING, Any, Mapping, Optional, Tuple, Union

from ..base.errors import GpuUnavailableError, InputError
from ..format.folder import BundleFolder
from ..format.schema import GpuSpec, Manifest, Variant
from ..format.weights import map_weights
from ..gpu.engines import REDUCE_OVERHEAD
from .driver import Driver
from .library import GpuLibrary, load_variant_library
from .programs import TritonPrograms

if TYPE_CHECKING:
    from ..gpu.programs import GpuPrograms


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

    try:
        tuned, why = TuningFolder(folder, variant).read()
    except InputError as error:
        tuned, why = None, error.message
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
) -> "Union[TritonPrograms, GpuPrograms]":
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
    if library.runs_variants:
        # What needs no GPU comes first there: ``start_driver`` makes it ready meanwhile.
        return TritonPrograms(library, folder, variant, manifest, mode, check_weights, record)
    return _open_older(library, folder, variant, manifest, mode, check_weights)


def _open_older(
    library: GpuLibrary,
    folder: BundleFolder,
    variant: Variant,
    manifest: Manifest,
    mode: str,
    check_weights: bool,
) -> "GpuPrograms":
    """A variant of an older bundle, whose library runs single programs alone."""
    from ..gpu.programs import GpuPrograms
    from .engine import TritonEngine

    spec = variant.gpu
    assert spec is not None
    weights = map_weights(folder, manifest.weights[spec.precision], check_weights)
    refusal = find_refusal(variant)
    if refusal is not None:
        text = "{}: the variant {} can't run here: {}"
        raise GpuUnavailableError(
            text.format(folder.path, variant.name, refusal.message),
            refusal.hint,
            refusal.name,
            refusal.number,
        )
    driver = Driver.load()
    library.use(driver)
    engine = TritonEngine(library, folder, variant, weights, driver)
    programs = GpuPrograms(driver, engine, manifest, range(len(manifest.buckets)), mode)
    programs.precision = spec.precision
    programs.tolerance, programs.min_cosine = spec.tolerance, spec.min_cosine
    details = {**engine.describe(), "tuned": None}
    programs.details = lambda: details
    return programs
