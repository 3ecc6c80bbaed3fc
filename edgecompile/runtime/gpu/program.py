"""One bucket on a GPU: its context, its buffers and, with graphs, its captured run."""

import threading
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ..errors import EdgecompileError, GpuError, InputError
from ..format.manifest import BucketSpec, Manifest, TensorSpec
from .buffers import Buffers, Span
from .cuda import Cuda
from .engines import Context, Sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..cpu.tensors import Shape


class GpuLane:
    """Things that all buckets of a model share: a stream, and the right to use the scratch memory.

    Whoever runs holds ``lock``. After an error that CUDA doesn't recover from, ``check`` refuses.
    """

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self.stream = cuda.stream()
        self.lock = threading.Lock()
        self._broken: Optional[GpuError] = None

    @property
    def broken(self) -> bool:
        """Whether no call of CUDA can succeed any more."""
        return self._broken is not None

    def check(self) -> None:
        """Raises GpuError if an earlier run broke everything."""
        error = self._broken
        if error is not None:
            text = "nothing runs on this GPU in this process any more, since {} ({}): {}"
            raise GpuError(
                text.format(error.name, error.number, error.message),
                "start the process again; if it happens again, run the self-test",
                error.name,
                error.number,
                True,
            )

    def note(self, error: BaseException) -> None:
        """Remembers an error after which nothing works; another one is forgotten."""
        if isinstance(error, GpuError) and error.sticky and self._broken is None:
            self._broken = error

    def settle(self, failure: BaseException) -> BaseException:
        """After a failure: waits until nothing uses the buffers; returns what is to be raised.

        An engine may only know that CUDA failed: then the wait tells how.
        """
        self.note(failure)
        if self.broken:
            return failure
        try:
            self.cuda.synchronize(self.stream)
        except GpuError as error:
            self.note(error)
            if isinstance(failure, GpuError) and not failure.number:
                text = "{}; {}".format(failure.message, error.message)
                hint = failure.hint or error.hint
                return GpuError(text, hint, error.name, error.number, error.sticky)
        return failure


class GpuProgram:
    """One bucket. ``run`` may be called from several threads, which take turns; ``close`` may not.

    The interface is that of ``program.Program``. Inputs are what the dispatcher made of them, so
    along padded axes they have the bucket's upper end.
    """

    runs_into = True

    def __init__(
        self, lane: GpuLane, context: Context, manifest: Manifest, index: int, zero_copy: bool
    ) -> None:
        """Takes over ``context``, sets it to the bucket's largest shapes and allocates for them.

        Raises:
            GpuError: the engine refuses these shapes or gives others than the manifest says, or
                there isn't enough memory. The context is closed then.
        """
        bucket = manifest.buckets[index]
        self.label = "bucket {} ({})".format(index, bucket)
        self.n_inputs = len(manifest.inputs)
        self.n_outputs = len(manifest.outputs)
        self._lane = lane
        self._cuda = lane.cuda
        self._context = context
        self._specs = manifest.inputs
        self._results = manifest.outputs
        self._executable = 0
        # Held while the buffers are in use; always taken before the lane's.
        self._lock = threading.Lock()
        self._buffers: Optional[Buffers] = None
        try:
            largest = {spec.name: largest_shape(spec, bucket) for spec in manifest.inputs}
            outputs = self._reshape(largest)
            _check_outputs(self.label, manifest, bucket, outputs)
            dtypes = {
                x.name: np.dtype(context.dtypes.get(x.name, x.dtype))
                for x in (*manifest.inputs, *manifest.outputs)
            }
            self._limits = list_limits(manifest.inputs, dtypes)
            self._buffers = Buffers(
                lane.cuda,
                {x.name: (dtypes[x.name], largest[x.name]) for x in manifest.inputs},
                {x.name: (dtypes[x.name], outputs[x.name]) for x in manifest.outputs},
                zero_copy,
            )
            context.bind(self._buffers.addresses)
            self._adopt(largest, outputs)
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
    def captured(self) -> bool:
        """Whether runs replay a graph."""
        return self._executable != 0

    def _reshape(self, shapes: Dict[str, Sizes]) -> Dict[str, Sizes]:
        outputs = self._context.reshape(shapes)
        for spec in self._results:
            if spec.name not in outputs or any(size < 0 for size in outputs[spec.name]):
                text = "{}: the engine can't tell the shape of {} before it runs"
                raise GpuError(text.format(self.label, spec.name))
        return outputs

    def _adopt(self, inputs: Dict[str, Sizes], outputs: Dict[str, Sizes]) -> None:
        """Makes these the shapes of the next run."""
        assert self._buffers is not None
        self._shapes = tuple(inputs[spec.name] for spec in self._specs)
        self._in = [self._buffers.view(spec.name, inputs[spec.name]) for spec in self._specs]
        self._out = [self._buffers.view(spec.name, outputs[spec.name]) for spec in self._results]
        self._sent: List[Span]
        self._fetched: List[Span]
        self._sent, self._fetched = self._buffers.spans({**inputs, **outputs})

    def capture(self, arrays: Sequence["NDArray[Any]"]) -> None:
        """Runs once as usual and once recorded; from now on runs replay that, of these shapes only.

        Args:
            arrays: valid inputs of the bucket's largest shapes.

        Raises:
            GpuError: the run can't be captured.
        """
        self._run(arrays)
        with self._lock, self._lane.lock:
            try:
                self._executable = self._record()
            except GpuError as error:
                settled = self._lane.settle(error)
                assert isinstance(settled, GpuError)
                text = "{}: its run can't be captured as a graph: {}"
                raise GpuError(
                    text.format(self.label, settled.message),
                    settled.hint or 'open the bundle with mode="default"',
                    settled.name,
                    settled.number,
                    settled.sticky,
                ) from None

    def _record(self) -> int:
        cuda, stream = self._cuda, self._lane.stream
        cuda.begin_capture(stream)
        try:
            self._queue()
        except BaseException:
            try:
                graph = cuda.end_capture(stream)
                if graph:
                    cuda.destroy_graph(graph)
            except GpuError:
                pass  # what spoilt the capture says more
            raise
        graph = cuda.end_capture(stream)
        try:
            return cuda.instantiate(graph)
        finally:
            cuda.destroy_graph(graph)

    def _queue(self) -> None:
        assert self._buffers is not None
        stream = self._lane.stream
        self._buffers.send(self._sent, stream)
        self._context.enqueue(stream)
        self._buffers.fetch(self._fetched, stream)

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
        given = tuple([array.shape for array in arrays])
        for index, limits in self._limits:
            check_range(self.label, self._specs[index], arrays[index], limits)
        with self._lock:
            if self._buffers is None:
                raise GpuError("{}: the program is closed".format(self.label))
            self._lane.check()
            try:
                if given != self._shapes:
                    self._change(given)
                for view, array in zip(self._in, arrays):
                    view[...] = array
                self._run_on_gpu()
            except GpuError as error:
                self._lane.note(error)
                raise self._explain(error) from None
            # Only this bucket's lock is held here: others run while results are copied.
            if results is not None:
                for view, result in zip(self._out, results):
                    result[...] = view[tuple([slice(n) for n in result.shape])]
                return []
            if shapes is None:
                return [np.array(view, x.dtype) for view, x in zip(self._out, self._results)]
            return [
                np.array(view[tuple([slice(n) for n in shape])], spec.dtype, order="C")
                for view, spec, shape in zip(self._out, self._results, shapes)
            ]

    def _change(self, given: Tuple[Sizes, ...]) -> None:
        if self._executable:
            text = "the graph takes the shapes {}, not {}"
            raise GpuError(text.format([list(x) for x in self._shapes], [list(x) for x in given]))
        inputs = {spec.name: shape for spec, shape in zip(self._specs, given)}
        # Until it is known to have worked, no shape counts as set.
        self._shapes = ()
        # Some engines do on the GPU what a new shape takes, in the scratch memory.
        with self._lane.lock:
            outputs = self._reshape(inputs)
        self._adopt(inputs, outputs)

    def _run_on_gpu(self) -> None:
        lane = self._lane
        with lane.lock:
            lane.check()
            try:
                if self._executable:
                    self._cuda.launch(self._executable, lane.stream)
                else:
                    self._queue()
                self._cuda.synchronize(lane.stream)
            except BaseException as error:
                settled = lane.settle(error)
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
        executable, self._executable = self._executable, 0
        buffers, self._buffers = self._buffers, None
        self._in, self._out = [], []
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
    return tuple(
        [bucket.axes[dim].hi if isinstance(dim, str) else int(dim or 0) for dim in spec.shape]
    )


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
    label: str, manifest: Manifest, bucket: BucketSpec, found: Dict[str, Sizes]
) -> None:
    """Raises GpuError unless outputs have the manifest's shapes, at the bucket's upper end."""
    problems = []
    for spec in manifest.outputs:
        shape = found[spec.name]
        wanted = [bucket.axes[dim].hi if isinstance(dim, str) else dim for dim in spec.shape]
        fits = len(shape) == len(wanted) and all(
            want is None or want == size for want, size in zip(wanted, shape)
        )
        if not fits:
            shown = ["?" if size is None else size for size in wanted]
            text = "{} has shape {}, the manifest says {}"
            problems.append(text.format(spec.name, list(shape), shown))
    if problems:
        raise GpuError("{}: {}".format(label, "; ".join(problems)))
