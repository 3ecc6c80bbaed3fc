"""Replays golden vectors and judges the outputs."""

import os
import time
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Tuple,
)

from ..base.errors import EdgecompileError
from ..format.golden.cases import Case, list_cases, read_case
from ..format.golden.compare import Agreement, compare_arrays
from ..format.golden.ties import Ties, take_ties
from ..format.manifest.schema import Manifest, Tolerance
from .dispatch import axis_sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Loader = Callable[[], Case]


class CaseLike(Protocol):
    """The outputs that a case expects, here and on the build host."""

    @property
    def outputs(self) -> "Mapping[str, NDArray[Any]]":
        """The outputs by name."""
        ...

    @property
    def margins(self) -> Mapping[str, float]:
        """The difference, by output, that is allowed beyond the tolerance."""
        ...

    @property
    def ties(self) -> Optional[Ties]:
        """Alternatives for nearly equal values; None: there are none."""
        ...


class Runner(Protocol):
    """A runner of cases: an open ``Model``, or an engine that isn't finished yet."""

    @property
    def manifest(self) -> Manifest:
        """The bundle's."""
        ...

    @property
    def tolerance(self) -> Tolerance:
        """The tolerance of the program that runs here."""
        ...

    @property
    def min_cosine(self) -> Optional[float]:
        """The least cosine of an output; None: any."""
        ...

    def open_file(self, name: str) -> int:
        """See ``Model.open_file``."""
        ...

    def run_bucket(self, bucket: int, inputs: Mapping[str, Any]) -> "Dict[str, NDArray[Any]]":
        """See ``Model.run_bucket``."""
        ...


def run_cases(
    model: Runner, cases: Optional[str] = None, threads: Sequence[int] = ()
) -> List[Dict[str, Any]]:
    """The result of each golden vector, or of each in the folder ``cases``; see ``run_selftest``.

    ``threads``: numbers of threads that the runs have in turn, 0 as the model is opened; only of a ``Model`` whose
    ``info["run_threads"]`` is true.
    """
    results = []
    for number, (bucket, name, load) in enumerate(find_cases(model, cases)):
        count = threads[number % len(threads)] if threads else 0
        run: Any = model.run_bucket
        if count:
            run = partial(model.with_threads, count, run)  # type: ignore[attr-defined]
        results.append({**run_case(model, run, bucket, name, load), "threads": count})
    return results


def find_cases(model: Runner, cases: Optional[str]) -> List[Tuple[int, str, _Loader]]:
    """(bucket, name, what reads it) of each golden vector, or of each in the folder ``cases``."""
    manifest = model.manifest
    if cases is not None:
        return [
            (bucket, name, lambda file=file: _load_file(model, file))  # type: ignore[misc]
            for bucket, name, file in list_cases(cases)
        ]
    return [
        (item.bucket, item.case, lambda item=item: load_golden(model, item.file))  # type: ignore[misc]
        for item in sorted(manifest.golden, key=lambda item: (item.bucket, item.case))
    ]


def _load_file(model: Runner, file: str) -> Case:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_case(fd, file, model.manifest)
    finally:
        os.close(fd)


def load_golden(model: Runner, name: str) -> Case:
    """Reads the golden vector in the bundle's file ``name``, its hash compared first.

    Raises:
        BundleError: it is malformed or damaged.
    """
    fd = model.open_file(name)
    try:
        return read_case(fd, name, model.manifest)
    finally:
        os.close(fd)


def new_result(bucket: int, name: str) -> Dict[str, Any]:
    """The result of a case that hasn't been run: not ok, no numbers."""
    return {
        "bucket": bucket,
        "case": name,
        "sizes": {},
        "ok": False,
        "max_abs_error": None,
        "scale": None,
        "limit": None,
        "cosine": None,
        "ms": None,
        "threads": 0,
        "outputs": {},
    }


def run_case(
    model: Runner,
    run: Callable[..., Any],
    bucket: int,
    name: str,
    load: _Loader,
    tolerance: Optional[Tolerance] = None,
) -> Dict[str, Any]:
    """The result of one case under a name; ``tolerance`` instead of the model's own, if given.

    ``run`` takes the bucket and the inputs.
    """
    result = new_result(bucket, name)
    try:
        case = load()
        shapes = {name: array.shape for name, array in case.inputs.items()}
        result["sizes"] = axis_sizes(model.manifest, shapes)
        started = time.perf_counter_ns()
        outputs = run(bucket, case.inputs)
        result["ms"] = (time.perf_counter_ns() - started) / 1e6
    except EdgecompileError as error:
        result["error"] = str(error)
        return result
    except OSError as error:
        result["error"] = "can't be read: {}".format(error.strerror)
        return result
    agreements = compare_case(outputs, case, tolerance or model.tolerance, model.min_cosine)
    reasons = note_agreements(result, agreements)
    cosines = [item.cosine for item in agreements.values() if item.cosine is not None]
    result["cosine"] = min(cosines, default=None)
    if reasons:
        result["error"] = reasons
    return result


def compare_case(
    outputs: "Mapping[str, NDArray[Any]]",
    case: CaseLike,
    tolerance: Tolerance,
    min_cosine: Optional[float] = None,
) -> Dict[str, Agreement]:
    """The agreement of a run's outputs with those of a case, by name; places of nearly equal values may be others."""
    wanted = case.outputs
    if case.ties is not None:
        wanted = take_ties(outputs, wanted, case.ties, tolerance, case.margins)
    return {
        key: compare_arrays(outputs[key], want, tolerance, min_cosine, case.margins.get(key, 0.0))
        for key, want in wanted.items()
    }


def note_agreements(result: Dict[str, Any], agreements: Mapping[str, Agreement]) -> str:
    """Puts into a result how its outputs agree; returns the reasons why some don't, "" if all do."""
    # The case is as bad as its worst output: a failed one, or the one nearest to its limit.
    worst = max(
        agreements.values(),
        key=lambda item: (not item.ok, item.max_abs_error / item.limit if item.limit else 0.0),
    )
    result.update(
        ok=all(item.ok for item in agreements.values()),
        max_abs_error=worst.max_abs_error,
        scale=worst.scale,
        limit=worst.limit,
        outputs={key: item.to_json() for key, item in agreements.items()},
    )
    return "; ".join(
        "{} {}".format(k, item.reason) for k, item in agreements.items() if item.reason
    )
