"""Replays golden vectors and judges the outputs."""

import os
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Protocol, Tuple

from ..errors import EdgecompileError
from ..format.compare import compare_arrays
from ..format.golden import Case, list_cases, read_case
from ..format.schema import Manifest, Tolerance
from .dispatch import axis_sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Loader = Callable[[], Case]


class Runner(Protocol):
    """A runner of cases: an open ``Model``, or an engine that isn't finished yet."""

    @property
    def manifest(self) -> Manifest:
        """The bundle's."""
        ...

    @property
    def tolerance(self) -> Tolerance:
        """Of what runs here."""
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


def run_cases(model: Runner, cases: Optional[str] = None) -> List[Dict[str, Any]]:
    """The result of each golden vector, or of each in the folder ``cases``; see ``run_selftest``."""
    return [_run_case(model, *item) for item in _cases(model, cases)]


def _cases(model: Runner, cases: Optional[str]) -> List[Tuple[int, str, _Loader]]:
    manifest = model.manifest
    if cases is not None:
        return [
            (bucket, name, lambda file=file: _load_file(model, file))  # type: ignore[misc]
            for bucket, name, file in list_cases(cases)
        ]
    return [
        (item.bucket, item.case, lambda item=item: _load_golden(model, item.file))  # type: ignore[misc]
        for item in sorted(manifest.golden, key=lambda item: (item.bucket, item.case))
    ]


def _load_file(model: Runner, file: str) -> Case:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_case(fd, file, model.manifest)
    finally:
        os.close(fd)


def _load_golden(model: Runner, name: str) -> Case:
    fd = model.open_file(name)
    try:
        return read_case(fd, name, model.manifest)
    finally:
        os.close(fd)


def _run_case(model: Runner, bucket: int, name: str, load: _Loader) -> Dict[str, Any]:
    result: Dict[str, Any] = {
        "bucket": bucket,
        "case": name,
        "sizes": {},
        "ok": False,
        "max_abs_error": None,
        "scale": None,
        "limit": None,
        "cosine": None,
        "ms": None,
        "outputs": {},
    }
    try:
        case = load()
        shapes = {name: array.shape for name, array in case.inputs.items()}
        result["sizes"] = axis_sizes(model.manifest, shapes)
        started = time.perf_counter_ns()
        outputs = model.run_bucket(bucket, case.inputs)
        result["ms"] = (time.perf_counter_ns() - started) / 1e6
    except EdgecompileError as error:
        result["error"] = str(error)
        return result
    except OSError as error:
        result["error"] = "can't be read: {}".format(error.strerror)
        return result
    agreements = {
        key: compare_arrays(outputs[key], want, model.tolerance, model.min_cosine)
        for key, want in case.outputs.items()
    }
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
        cosine=min((a.cosine for a in agreements.values() if a.cosine is not None), default=None),
        outputs={key: item.to_json() for key, item in agreements.items()},
    )
    reasons = ["{} {}".format(key, item.reason) for key, item in agreements.items() if item.reason]
    if reasons:
        result["error"] = "; ".join(reasons)
    return result
