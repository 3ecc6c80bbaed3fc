"""Opens a bundle's variant for a GPU: finds the engine that was finished here and loads it.

A bundle may have a rival of it, programs of Triton kernels. ``finish`` measures both, and the engine's stamp
says what came of it.
"""

from typing import Any, Dict, Mapping, Optional, Sequence

from ..errors import GpuError, UnfinishedBundleError
from ..format.folder import BundleFolder
from ..format.recipe import read_recipe
from ..format.schema import TRITON, Manifest, Variant
from .cache import EngineFolder, FinishedEngine, describe_content
from .cuda import Cuda
from .device import describe_device
from .engines import REDUCE_OVERHEAD
from .programs import GpuPrograms, pad_everything
from .tensorrt import load_engine


def open_gpu_variant(
    folder: BundleFolder,
    variant: Variant,
    mode: str,
) -> GpuPrograms:
    """The programs of a variant of the backend ``tensorrt``; none is loaded yet.

    Args:
        folder: the bundle.
        variant: of it.
        mode: one of ``engines.MODES``.

    Raises:
        GpuUnavailableError: libcudart, ``tensorrt`` or a GPU is missing.
        UnfinishedBundleError: there is no engine for this device as it is now.
        ModeError: the bundle can't be run in this mode.
        GpuError: CUDA or TensorRT reported a failure.
        BundleError: the recipe is damaged.
    """
    recipe = read_recipe(folder, variant)
    manifest = folder.manifest
    if mode == REDUCE_OVERHEAD:
        # Before anything is built: it can be told from the bundle alone.
        manifest = pad_everything(manifest, recipe.padding)
    cuda = Cuda.load()
    engine = find_engine(folder, variant)
    programs = GpuPrograms(
        cuda, load_engine(cuda, engine, manifest), manifest, engine.profile_of, mode
    )
    programs.precision = recipe.precision
    programs.tolerance, programs.min_cosine = recipe.tolerance, recipe.min_cosine
    made_on = engine.stamp.get("device")
    programs.details = {
        "tensorrt": str(made_on.get("tensorrt", "")) if isinstance(made_on, dict) else "",
        "engine": {"path": engine.path, "sha256": engine.sha256},
    }
    return programs


def find_engine(folder: BundleFolder, variant: Variant) -> FinishedEngine:
    """The engine of a variant that was finished on this device as it is now; isn't loaded.

    Raises:
        GpuUnavailableError: libcudart, ``tensorrt`` or a GPU is missing.
        UnfinishedBundleError: there is none.
        GpuError: CUDA reported a failure.
        BundleError: the recipe is damaged.
    """
    recipe = read_recipe(folder, variant)
    identity = describe_device(Cuda.load())
    kept = EngineFolder(describe_content(folder.manifest, variant, recipe), identity)
    engine, why = kept.read_stamp()
    if engine is None:
        text = "{}: the variant {} has no finished engine on {}: {}"
        raise UnfinishedBundleError(
            text.format(folder.path, variant.name, identity, why),
            "build it here, once: python -m edgecompile.runtime finish {}; or open the bundle "
            "with finish=True".format(folder.path),
        )
    return engine


def find_rival(variants: Sequence[Variant], variant: Variant) -> Optional[Variant]:
    """Of ``variants`` that of Triton kernels for the same machines that ranks highest, or None."""
    found = [x for x in variants if x.backend == TRITON and x.arch == variant.arch]
    return max(found, key=lambda item: item.rank, default=None)


def describe_rival(manifest: Manifest, rival: Variant) -> Dict[str, Any]:
    """What a comparison with it is about: its name, and the hashes of its programs."""
    return {"name": rival.name, "programs": [manifest.files[x].sha256 for x in rival.programs]}


def read_comparison(
    manifest: Manifest, rival: Variant, engine: FinishedEngine
) -> Optional[Dict[str, float]]:
    """Mean milliseconds of a run by variant, as ``finish`` measured them; None: it didn't yet.

    A variant that doesn't reproduce the golden vectors isn't in it.
    """
    found = engine.stamp.get("compared")
    if not isinstance(found, dict) or found.get("rival") != describe_rival(manifest, rival):
        return None
    times = found.get("ms")
    if not isinstance(times, dict) or not all(isinstance(x, float) for x in times.values()):
        return None
    return dict(times)


def explain_slower(variant: Variant, rival: Variant, times: Mapping[str, float]) -> str:
    """That an engine is slower than its rival; "" where it isn't, or one of them wasn't measured."""
    own, other = times.get(variant.name), times.get(rival.name)
    if own is None or other is None or own <= other:
        return ""
    text = "is slower here: a run takes {:.3f} ms, of {} {:.3f}, as finish measured"
    return text.format(own, rival.name, other)


def judge_gpu_variant(folder: BundleFolder, variant: Variant) -> str:
    """The entry of ``info`` for a variant that fits this machine's CPU; loads no engine."""
    try:
        engine = find_engine(folder, variant)
    except (GpuError, UnfinishedBundleError) as error:
        return error.message
    return "finished: {}".format(engine.path)
