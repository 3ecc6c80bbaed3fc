"""Opens a bundle's variant of Triton kernels, and tells whether this machine's GPU can run it."""

import os
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence, Tuple

from ..cpu.libraries import pin_library
from ..errors import GpuUnavailableError
from ..format.folder import BundleFolder
from ..format.schema import GpuSpec, Manifest, Variant
from ..format.weights import map_weights
from ..gpu.engines import REDUCE_OVERHEAD
from ..gpu.programs import GpuPrograms, pad_everything
from .constants import release_constants, share_constants
from .driver import Driver
from .engine import CublasLt, TritonEngine
from .library import load_gpu_library

if TYPE_CHECKING:
    from .tuning import Tuned


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


def judge_triton_variant(manifest: Manifest, variant: Variant) -> str:
    """The entry of ``info`` for a variant that fits this machine's CPU."""
    refusal = find_refusal(variant)
    if refusal:
        return refusal.message
    driver = Driver.load()
    text = "runs here, on {}".format(driver.device().name)
    if not variant.tunable:
        return text
    tuned, why = find_tuned(manifest, variant, driver)
    if tuned is None:
        return "{}; {}".format(text, why)
    from .tuning import list_candidates

    lists = list_candidates(variant)
    choices = ["{} of {}".format(n + 1, len(items)) for n, items in zip(tuned.choice, lists)]
    text += "; tuned, program by bucket: " + ", ".join(choices)
    return text if tuned.cublaslt is None else text + "; some products by cuBLASLt"


def find_tuned(
    manifest: Manifest, variant: Variant, driver: Driver
) -> "Tuple[Optional[Tuned], str]":
    """(which programs ``tune`` chose on this GPU, ""), or (None, why none of it is used)."""
    if not variant.tunable:
        return None, "there is nothing to choose from"
    # Here alone: other bundles don't wait for these imports.
    from .tuning import TuningFolder

    return TuningFolder(manifest, variant, driver).read()


def open_triton_variant(
    folder: BundleFolder,
    variant: Variant,
    mode: str,
    check_weights: bool,
    choice: Optional[Sequence[int]] = None,
    cublaslt: "Optional[CublasLt]" = None,
) -> GpuPrograms:
    """The programs of a variant of the backend ``triton``; none is on the GPU yet.

    Args:
        folder: the bundle.
        variant: of it.
        mode: one of ``gpu.engines.MODES``.
        check_weights: compare the weights' hash.
        choice: for each of ``tuning.list_candidates`` the number of a program; None: what ``tune`` chose on this GPU,
            else the first programs.
        cublaslt: with a choice, what cuBLASLt computes.

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
        manifest = pad_everything(manifest, spec.padding)
    # What needs no GPU comes first: ``start_driver`` makes it ready meanwhile.
    pinned = pin_library(folder, variant.runtime)
    name = manifest.weights[spec.precision]
    weights = map_weights(folder, name, check_weights)
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
    tuned: Optional[Tuned] = None
    if choice is None:
        tuned = find_tuned(folder.manifest, variant, driver)[0]
        if tuned is not None:
            choice, cublaslt = tuned.choice, tuned.cublaslt
    if choice is not None:
        from .tuning import with_choice

        variant = with_choice(variant, choice)
    library = load_gpu_library(pinned, os.path.basename(variant.runtime), driver)
    constants = share_constants(driver, weights, manifest.files[name])
    try:
        capability = driver.device().compute_capability
        engine = TritonEngine(library, folder, variant, constants, capability, cublaslt)
    except BaseException:
        release_constants(constants)
        raise
    profiles = range(len(manifest.buckets))
    programs = GpuPrograms(driver, engine, manifest, profiles, mode)
    programs.precision = spec.precision
    programs.tolerance, programs.min_cosine = spec.tolerance, spec.min_cosine
    described = engine.describe()

    def describe() -> Dict[str, Any]:
        record = None if tuned is None else tuned.to_json(engine.cublaslt_failure())
        return {**described, "tuned": record}

    programs.details = describe
    programs.keeps_texts = manifest.generation is not None
    if cublaslt is not None:
        programs.warms_largest = [
            bucket for bucket, rows in enumerate(cublaslt.rows) if any(item >= 0 for item in rows)
        ]
    return programs
