"""One bucket on a GPU: its context, its buffers and, with graphs, its captured run."""

import threading
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ..base.errors import EdgecompileError, GpuError, InputError
from ..format.manifest.schema import BucketSpec, Manifest, TensorSpec
from ..format.sums import size_of
from .buffers import Buffers, Span, copy_leading
from .engines import Context, Sizes
from .shared_stream import SharedStream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..cpu.tensors import Shape


class _Shaped:
    """The state that runs of the same shapes share: places of arrays, copies, a graph if there is one."""

    def __init__(
        self,
        buffers: Buffers,
        inputs: Mapping[str, Sizes],
        outputs: Mapping[str, Sizes],
    ) -> None:
        """Shapes by name, in the manifest's order."""
        self.shapes = tuple(inputs.values())
        self.sources = [buffers.view(name, shape) for name, shape in inputs.items()]
        self.targets = [buffers.view(name, shape) for name, shape in outputs.items()]
        self.sent: List[Span]
        self.fetched: List[Span]
        self.sent, self.fetched = buffers.spans({**inputs, **outputs})
        self.executable = 0


class GpuProgram:
    """One bucket. ``run`` may be called from several threads, which take turns; ``close`` may not.

    The interface is that of ``program.Program``. Inputs are what the dispatcher made of them, so
    along padded axes they have the bucket's upper end.
    """

    runs_into = True

    def __init__(
        self,
        shared: SharedStream,
        context: Context,
        manifest: Manifest,
        index: int,
        zero_copy: bool,
    ) -> None:
        """Takes over ``context``, sets it to the bucket's largest shapes and allocates for them.

        Args:
            shared: stream and lock that it shares with the other buckets.
            context: set to nothing yet.
            manifest: the manifest of the bundle.
            index: the bucket's number.
            zero_copy: let the GPU reach into the CPU's memory.

        Raises:
            GpuError: the engine refuses these shapes or gives others than the manifest says, or
                there isn't enough memory. The context is closed then.
        """
        bucket = manifest.buckets[index]
        self.label = "bucket {} ({})".format(index, bucket)
        self.n_outputs = len(manifest.outputs)
        self._shared = shared
        self._cuda = shared.cuda
        self._context = context
        self._specs = manifest.inputs
        self.n_inputs = len(self._specs)
        self._results = manifest.outputs
        self._now: Optional[_Shaped] = None  # what the context is set to
        # Held while the buffers are in use; always taken before the shared lock.
        self._lock = threading.Lock()
        self._buffers: Optional[Buffers] = None
        try:
            largest = {spec.name: largest_shape(spec, bucket) for spec in self._specs}
            outputs = self._reshape(largest)
            _check_outputs(self.label, manifest, bucket, outputs)
            dtypes = {
                x.name: np.dtype(context.dtypes.get(x.name, x.dtype))
                for x in (*manifest.inputs, *manifest.outputs)
            }
            self._limits = list_limits(self._specs, dtypes)
            self._buffers = Buffers(
                shared.cuda,
                {x.name: (dtypes[x.name], largest[x.name]) for x in self._specs},
                {x.name: (dtypes[x.name], outputs[x.name]) for x in manifest.outputs},
                zero_copy,
            )
            context.bind(self._buffers.addresses)
            self._now = _Shaped(self._buffers, largest, outputs)
        except BaseException as error:
            attempt([], self.close)
            if isinstance(error, GpuError):
                raise self._explain(error) from None
            raise

    @property
    def nbytes(self) -> int:
        """Bytes of its inputs and outputs."""
        return 0 if self._buffers is None else self._buffers.nbytes

    @property
    def graphs(self) -> int:
        """The number of shapes whose runs replay a graph."""
        return int(self._now is not None and self._now.executable != 0)

    def _reshape(self, shapes: Dict[str, Sizes]) -> Dict[str, Sizes]:
        outputs = self._context.reshape(shapes)
        for spec in self._results:
            if spec.name not in outputs or any(size < 0 for size in outputs[spec.name]):
                text = "{}: the engine can't tell the shape of {} before it runs"
                raise GpuError(text.format(self.label, spec.name))
        return {spec.name: outputs[spec.name] for spec in self._results}

    def capture(self, arrays: Sequence["NDArray[Any]"]) -> None:
        """Runs once as usual and once recorded; from now on runs replay that, of these shapes only.

        Args:
            arrays: valid inputs of the bucket's largest shapes.

        Raises:
            GpuError: the run can't be captured.
        """
        self._run(arrays)
        with self._lock, self._shared.lock:
            try:
                assert self._now is not None
                now = self._now
                now.executable = self._shared.record(lambda: self._queue(now))
            except GpuError as error:
                settled = self._shared.settle(error)
                assert isinstance(settled, GpuError)
                text = "{}: its run can't be captured as a graph: {}"
                raise GpuError(
                    text.format(self.label, settled.message),
                    settled.hint or 'open the bundle with mode="default"',
                    settled.name,
                    settled.number,
                    settled.sticky,
                ) from None

    def _queue(self, shaped: _Shaped) -> None:
        assert self._buffers is not None
        stream = self._shared.stream
        self._buffers.send(shaped.sent, stream)
        self._context.enqueue(stream)
        self._buffers.fetch(shaped.fetched, stream)

    def run(
        self, arrays: Sequence["NDArray[Any]"], shapes: "Optional[Sequence[Shape]]" = None
    ) -> List["NDArray[Any]"]:
        """Runs once and returns new arrays: see ``Program.run``.

        Raises:
            GpuError: CUDA or the engine reported a failure.
            InputError: a value isn't one of the engine's integers.
        """
        return self._run(arrays, shapes)

    def run_into(self, arrays: Sequence["NDArray[Any]"], results: Sequence["NDArray[Any]"]) -> None:
        """Runs once and writes the leading part of each output that fits to ``results``.

        Raises:
            GpuError: CUDA or the engine reported a failure.
            InputError: a value isn't one of the engine's integers.
        """
        self._run(arrays, None, results)

    def _run(
        self,
        arrays: Sequence["NDArray[Any]"],
        shapes: "Optional[Sequence[Shape]]" = None,
        results: Optional[Sequence["NDArray[Any]"]] = None,
    ) -> List["NDArray[Any]"]:
        input_shapes = tuple([array.shape for array in arrays])
        for index, limits in self._limits:
            check_range(self.label, self._specs[index], arrays[index], limits)
        with self._lock:
            if self._buffers is None:
                raise GpuError("{}: the program is closed".format(self.label))
            self._shared.check()
            try:
                shaped = self._now
                if shaped is None or input_shapes != shaped.shapes:
                    shaped = self._change(input_shapes)
                for view, array in zip(shaped.sources, arrays):
                    view[...] = array
                self._run_on_gpu(shaped)
            except GpuError as error:
                self._shared.note(error)
                raise self._explain(error) from None
            # Only this bucket's lock is held here: others run while results are copied.
            if results is not None:
                for view, result in zip(shaped.targets, results):
                    copy_leading(self.label, view, result)
                return []
            if shapes is None:
                return [np.array(view, x.dtype) for view, x in zip(shaped.targets, self._results)]
            return [
                np.array(view[tuple([slice(n) for n in shape])], spec.dtype, order="C")
                for view, spec, shape in zip(shaped.targets, self._results, shapes)
            ]

    def _change(self, shapes: Tuple[Sizes, ...]) -> _Shaped:
        now, self._now = self._now, None  # until it is known to have worked, no shape counts as set
        if now is not None and now.executable:
            self._now = now
            text = "the graph takes the shapes {}, not {}"
            raise GpuError(text.format([list(x) for x in now.shapes], [list(x) for x in shapes]))
        inputs = {spec.name: shape for spec, shape in zip(self._specs, shapes)}
        # Some engines do on the GPU what a new shape takes, in the scratch memory.
        with self._shared.lock:
            outputs = self._reshape(inputs)
        assert self._buffers is not None
        self._now = _Shaped(self._buffers, inputs, outputs)
        return self._now

    def _run_on_gpu(self, shaped: _Shaped) -> None:
        shared = self._shared
        with shared.lock:
            shared.check()
            try:
                if shaped.executable:
                    self._cuda.launch(shaped.executable, shared.stream)
                else:
                    self._queue(shaped)
                self._cuda.synchronize(shared.stream)
            except BaseException as error:
                settled = shared.settle(error)
                if settled is error:
                    raise
                raise settled from None

    def _explain(self, error: GpuError) -> GpuError:
        if error.message.startswith(self.label):
            return error
        text = "{}: {}".format(self.label, error.message)
        return GpuError(text, error.hint, error.name, error.number, error.sticky)

    def close(self) -> None:
        """Gives graph, context and buffers back; runs must be over. A second call does nothing.

        Raises:
            GpuError: the first failure; all the rest was tried too.
        """
        executable = 0 if self._now is None else self._now.executable
        buffers, self._buffers, self._now = self._buffers, None, None
        failed: List[EdgecompileError] = []
        if executable:
            attempt(failed, lambda: self._cuda.destroy_executable(executable))
        attempt(failed, self._context.close)
        if buffers is not None:
            attempt(failed, buffers.close)
        if failed:
            raise failed[0]


def attempt(failed: List[EdgecompileError], work: Any) -> None:
    """Calls ``work``, and notes a failure instead of raising it."""
    try:
        work()
    except EdgecompileError as error:
        failed.append(error)


def largest_shape(spec: TensorSpec, bucket: BucketSpec) -> Sizes:
    """The shape of an input at the upper ends of a bucket."""
    largest = bucket.largest()
    return tuple([size_of(dim, largest) for dim in spec.shape])


def check_range(
    label: str, spec: TensorSpec, array: "NDArray[Any]", limits: "np.iinfo[Any]"
) -> None:
    """Raises InputError if a value isn't one of the engine's integers."""
    if array.size and not limits.min <= array.min() <= array.max() <= limits.max:
        text = "{}: {} has values from {} to {}; the engine takes it as {}, {} to {}"
        span = (array.min(), array.max(), limits.dtype, limits.min, limits.max)
        raise InputError(text.format(label, spec.name, *span))


def list_limits(
    specs: Sequence[TensorSpec], dtypes: "Mapping[str, np.dtype[Any]]"
) -> "List[Tuple[int, np.iinfo[Any]]]":
    """(number, limits) of the inputs whose allowed values may exceed the engine's integers."""
    result = []
    for index, spec in enumerate(specs):
        if dtypes[spec.name] != spec.dtype:
            limits = np.iinfo(dtypes[spec.name])
            low, high = spec.bounds or (-np.inf, np.inf)
            if low < limits.min or high > limits.max:
                result.append((index, limits))
    return result


def _check_outputs(
    label: str, manifest: Manifest, bucket: BucketSpec, shapes: Dict[str, Sizes]
) -> None:
    """Raises GpuError unless outputs have the manifest's shapes, at the bucket's upper end."""
    problems, largest = [], bucket.largest()
    for spec in manifest.outputs:
        shape = shapes[spec.name]
        expected = [None if dim is None else size_of(dim, largest) for dim in spec.shape]
        fits = len(shape) == len(expected) and all(
            dim is None or dim == size for dim, size in zip(expected, shape)
        )
        if not fits:
            shown = ["?" if size is None else size for size in expected]
            text = "{} has shape {}, the manifest says {}"
            problems.append(text.format(spec.name, list(shape), shown))
    if problems:
        raise GpuError("{}: {}".format(label, "; ".join(problems)))
