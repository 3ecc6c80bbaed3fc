"""Tests a fresh engine: golden vectors, rows together and alone, in every mode that the bundle can be run in."""

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional

from ..base.errors import GpuError, ModeError
from ..call.dispatch import Dispatcher
from ..call.inputs import InputChecker
from ..call.replay import run_cases
from ..call.results import ResultMaker
from ..call.rows import check_rows
from ..format.files.folder import BundleFolder
from ..format.manifest.schema import Manifest, Tolerance
from ..format.recipe.parse import read_recipe
from ..format.recipe.schema import Recipe
from ..gpu.cache import FinishedEngine
from ..gpu.cuda import Cuda
from ..gpu.engines import MODES, REDUCE_OVERHEAD
from ..gpu.programs import GpuPrograms, pad_everything
from ..gpu.tensorrt import load_engine
from .engine_build import Tell

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _GpuFailed(Exception):
    """Carries a GpuError past the judge of cases: the GPU failed, which says nothing of results."""

    def __init__(self, error: GpuError) -> None:
        super().__init__(error.message)
        self.error = error


class EngineRunner:
    """An engine without a stamp in the place of a ``Model``: what the self-test needs of one."""

    def __init__(
        self, folder: BundleFolder, recipe: Recipe, cuda: Cuda, engine: FinishedEngine, mode: str
    ) -> None:
        """Raises ModeError where the bundle can't be run in ``mode``."""
        self.manifest: Manifest = folder.manifest
        self.tolerance: Tolerance = recipe.tolerance
        self.min_cosine = recipe.min_cosine
        padding = bool(engine.stamp["padding"])
        run = self.manifest
        if mode == REDUCE_OVERHEAD:
            run = pad_everything(run, padding)
        loaded = load_engine(cuda, engine, self.manifest)
        self._folder = folder
        self._programs = GpuPrograms(cuda, loaded, run, engine.profile_of, mode)
        self._checker = InputChecker(run)
        self._dispatcher = Dispatcher(run)
        self._results = ResultMaker(run)

    def run_bucket(self, bucket: int, inputs: Mapping[str, Any]) -> "Dict[str, NDArray[Any]]":
        """See ``Model.run_bucket``."""
        arrays, sizes = self._checker.check(inputs)
        self._dispatcher.check(bucket, sizes)
        padded = self._dispatcher.pad(bucket, arrays, sizes)
        try:
            return self._results.run(self._programs.get(bucket), padded, sizes, None)
        except GpuError as error:
            raise _GpuFailed(error) from None

    def open_file(self, name: str) -> int:
        """See ``Model.open_file``."""
        return self._folder.open_checked(name)

    def close(self) -> None:
        """Gives everything on the GPU back."""
        self._programs.close()


def selftest_engine(request: Mapping[str, Any], tell: Tell) -> Dict[str, Any]:
    """Runs every golden vector through an engine, as ``open_bundle`` would run it.

    Args:
        request: "bundle", "manifest_sha256", "variant", "engine" (a path), "sha256", "size", "plans",
            "profile_of", "padding", "tensors".
        tell: unused.

    Returns:
        "ok", "cases" (of ``call.replay.run_cases`` and ``call.rows.check_rows``, each with its "mode" and
        without its outputs),
        "modes", "worst" (text about the worst case) and "lines" for people.

    Raises:
        DamagedBundleError: the bundle was exchanged meanwhile.
        GpuError: the engine can't be run at all.
    """
    # Whoever asks has checked its signatures.
    folder = BundleFolder(request["bundle"], listed=request["manifest_sha256"])
    try:
        named = [item for item in folder.manifest.variants if item.name == request["variant"]]
        recipe = read_recipe(folder, named[0])
        engine = FinishedEngine(
            path=request["engine"],
            sha256=request["sha256"],
            size=request["size"],
            profile_of=tuple(request["profile_of"]),
            stamp=MappingProxyType({"padding": request["padding"]}),
            tensors=request["tensors"],
            plans=tuple(request["plans"]),
        )
        cuda = Cuda.load()
        cases: List[Dict[str, Any]] = []
        modes = []
        lines = []
        for mode in MODES:
            try:
                runner = EngineRunner(folder, recipe, cuda, engine, mode)
            except ModeError as error:
                lines.append("not tested: {}".format(error.message))
                continue
            try:
                results = run_cases(runner) + check_rows(runner)
            except _GpuFailed as carrier:
                raise carrier.error from None
            finally:
                runner.close()
            modes.append(mode)
            for item in results:
                del item["outputs"]
                cases.append(dict(item, mode=mode))
        tested = {item["bucket"] for item in cases}
        absent = [i for i in range(len(folder.manifest.buckets)) if i not in tested]
    finally:
        folder.close()
    failed = [item for item in cases if not item["ok"]]
    text = "{} of {} cases ok in the modes {}"
    lines.append(text.format(len(cases) - len(failed), len(cases), ", ".join(modes)))
    if absent:
        lines.append("buckets without a vector: " + ", ".join(str(item) for item in absent))
    worst = max(failed, key=_excess, default=None)
    if worst is not None:
        lines += [_describe(item, folder.manifest) for item in failed if item is not worst][:20]
    return {
        "ok": not failed and not absent and bool(cases),
        "cases": cases,
        "modes": modes,
        "worst": lines[-1] if worst is None else _describe(worst, folder.manifest),
        "lines": lines,
    }


def _excess(item: Mapping[str, Any]) -> float:
    """The excess of a failed case over its limit; infinite where it gave no numbers."""
    ratio = _ratio(item)
    return float("inf") if ratio is None else ratio


def _ratio(item: Mapping[str, Any]) -> Optional[float]:
    error, limit = item["max_abs_error"], item["limit"]
    if error is None or limit is None:
        return None
    return float(error) / float(limit) if limit else float("inf")


def _describe(item: Mapping[str, Any], manifest: Manifest) -> str:
    text = "bucket {} ({}), case {}, mode {}".format(
        item["bucket"], manifest.buckets[item["bucket"]], item["case"], item["mode"]
    )
    ratio = _ratio(item)
    if ratio is not None:
        more = ": the largest error is {:.3g}, {:.3g} times its limit of {:.3g}"
        text += more.format(item["max_abs_error"], ratio, item["limit"])
    return text + (": " + item["error"] if item.get("error") else "")
