"""Opens a bundle's variant for a GPU: finds the engine that was finished here and loads it."""

from ..base.errors import GpuError, UnfinishedBundleError
from ..format.files.folder import BundleFolder
from ..format.manifest.schema import Variant
from ..format.recipe.parse import read_recipe
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
        variant: a variant of it.
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
    details = {
        "tensorrt": str(made_on.get("tensorrt", "")) if isinstance(made_on, dict) else "",
        "engine": {"path": engine.path, "sha256": engine.sha256},
    }
    programs.details = lambda: details
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
    recipe = recipe.for_tensorrt(identity.tensorrt)
    engines = EngineFolder(describe_content(folder.manifest, variant, recipe), identity)
    engine, why = engines.read_stamp()
    if engine is None:
        text = "{}: the variant {} has no finished engine on {}: {}"
        raise UnfinishedBundleError(
            text.format(folder.path, variant.name, identity, why),
            "build it here, once: python -m edgecompile.runtime finish {}; or open the bundle "
            "with finish=True".format(folder.path),
        )
    return engine


def judge_gpu_variant(folder: BundleFolder, variant: Variant) -> str:
    """The entry of ``info`` for a variant that fits this machine's CPU; loads no engine."""
    try:
        engine = find_engine(folder, variant)
    except (GpuError, UnfinishedBundleError) as error:
        return error.message
    return "finished: {}".format(engine.path)
