"""Arrays for a run's outputs: new ones, or the caller's own."""

from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    List,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    cast,
)

import numpy as np

from ..base.errors import InputError, NativeError
from ..cpu.tensors import MAX_DIMS, Shape
from ..format.document import shorten
from ..format.manifest.schema import Manifest
from ..format.sums import size_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Runnable(Protocol):
    """A program, of the CPU or a GPU; see ``cpu.library.Program``."""

    label: str
    runs_into: bool

    def run(
        self, arrays: "Sequence[NDArray[Any]]", shapes: Optional[Sequence[Shape]] = None
    ) -> "List[NDArray[Any]]":
        """Runs once; returns new arrays."""
        ...

    def run_into(self, arrays: "Sequence[NDArray[Any]]", results: "Sequence[NDArray[Any]]") -> None:
        """Runs once and writes to ``results``."""
        ...


class ResultMaker:
    """The outputs of a manifest, for runs of any size."""

    def __init__(self, manifest: Manifest) -> None:
        self._specs = manifest.outputs
        self._dtypes = [np.dtype(spec.dtype) for spec in manifest.outputs]
        # Where a size follows from nothing that is known before a run, native code tells it.
        self._predictable = all(dim is not None for spec in self._specs for dim in spec.shape)

    def shapes(self, sizes: Mapping[str, int]) -> List[Shape]:
        """The shape of each output for inputs of these sizes; None where it isn't known before."""
        return [
            tuple([None if dim is None else size_of(dim, sizes) for dim in spec.shape])
            for spec in self._specs
        ]

    def run(
        self,
        program: Runnable,
        arrays: "Sequence[NDArray[Any]]",
        sizes: Mapping[str, int],
        out: "Optional[Mapping[str, NDArray[Any]]]" = None,
    ) -> "Dict[str, NDArray[Any]]":
        """Runs ``program`` and returns its outputs by name, cut to the inputs' own sizes.

        Args:
            program: the program to run.
            arrays: its inputs, padded.
            sizes: the sizes of the inputs before they were padded.
            out: the array for each output; None makes new ones.

        Raises:
            InputError: ``out`` doesn't fit; lists every problem.
            NativeError: native code reported a failure, or an output isn't what the manifest says.
        """
        shapes = self.shapes(sizes)
        if out is not None:
            results = self._check_out(out, shapes, arrays)
            if program.runs_into:
                program.run_into(arrays, results)
            else:
                for result, array in zip(results, program.run(arrays, shapes)):
                    result[...] = array
        elif program.runs_into and self._predictable:
            results = [
                np.empty(cast("Tuple[int, ...]", shape), dtype=dtype)
                for shape, dtype in zip(shapes, self._dtypes)
            ]
            program.run_into(arrays, results)
        else:
            results = program.run(arrays, shapes)
            for spec, dtype, array in zip(self._specs, self._dtypes, results):
                if array.dtype != dtype:
                    text = "{}: the output {} has dtype {}, the manifest says {}"
                    text = text.format(program.label, spec.name, array.dtype, spec.dtype)
                    raise NativeError(text)
        return {spec.name: array for spec, array in zip(self._specs, results)}

    def _check_out(
        self,
        out: Any,
        shapes: Sequence[Shape],
        arrays: "Sequence[NDArray[Any]]",
    ) -> "List[NDArray[Any]]":
        if not isinstance(out, Mapping):
            text = "out must be a mapping of names to arrays, not {}"
            raise InputError(text.format(type(out).__name__))
        problems = ["{}: is missing".format(x.name) for x in self._specs if x.name not in out]
        names = {spec.name for spec in self._specs}
        problems += [
            "{}: the model has no such output".format(shorten(name))
            for name in out
            if name not in names
        ]
        results: List[NDArray[Any]] = []
        for spec, dtype, shape in zip(self._specs, self._dtypes, shapes):
            if spec.name not in out:
                continue
            array = out[spec.name]
            problem = _misfit(array, dtype, shape)
            if problem is None and any(_overlap(array, x) for x in arrays):
                problem = "overlaps an input"
            if problem is None and any(_overlap(array, x) for x in results):
                problem = "overlaps another output"
            if problem is None:
                results.append(array)
            else:
                problems.append("{}: {}".format(spec.name, problem))
        if problems:
            raise InputError("out: " + "\n  ".join(problems))
        return results


def _overlap(a: "NDArray[Any]", b: "NDArray[Any]") -> bool:
    # Exact where that is easily told, else whether their bounds overlap.
    effort: Any = 1000
    return bool(np.may_share_memory(a, b, max_work=effort))


def _misfit(array: object, dtype: "np.dtype[Any]", shape: Shape) -> Optional[str]:
    if type(array) is not np.ndarray:
        return "is a {}, must be an array".format(type(array).__name__)
    if array.dtype != dtype or not array.dtype.isnative:
        return "has dtype {}, must be {}".format(array.dtype, dtype)
    if array.ndim != len(shape) or any(
        dim is not None and dim != size for dim, size in zip(shape, array.shape)
    ):
        expected = ["?" if dim is None else dim for dim in shape]
        return "has shape {}, must be {}".format(list(array.shape), expected)
    if not array.flags.writeable:
        return "is read-only"
    if array.size == 0:
        return None  # its strides mean nothing
    steps = [step for n, step in zip(array.shape, array.strides) if n > 1]
    if array.ndim > MAX_DIMS or any(step <= 0 or step % array.itemsize for step in steps):
        return "has strides {} that native code can't write with".format(list(array.strides))
    if not array.flags.aligned:
        return "isn't aligned in memory"
    # The elements of one row, then of what is made of rows: each must lie behind the ones before.
    extent = array.itemsize
    for step, n in sorted((step, n) for n, step in zip(array.shape, array.strides) if n > 1):
        if step < extent:
            return "overlaps itself"
        extent += (n - 1) * step
    return None
