"""Compiled programs of Triton kernels one by one, as ``gpu.engines`` describes engines: a profile per bucket.

``programs.py`` runs variants. This is for rehearsals, which need no GPU, and for older bundles, whose runtime library
can't run a whole variant: they run without frequent shapes as graphs, caches on the GPU and cuBLASLt.

Each run is rehearsed once for its shapes: the program's host code goes through it without the GPU, and tells the shapes of
its outputs and the memory that it needs. Runs then use that memory and allocate none.
"""

import ctypes
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from ..base.errors import BundleError, GpuError
from ..base.limits import explain_loading
from ..cpu.libraries import pin_library
from ..cpu.tensors import NativeTensor, fill_tensor
from ..format.dtypes import BY_CODE, BY_NAME
from ..format.folder import BundleFolder
from ..format.schema import Variant
from ..format.weights import Weights
from ..gpu.engines import Sizes
from ..gpu.program import largest_shape
from .driver import Driver
from .library import GpuLibrary

#: Where weights would lie on a GPU, for rehearsals; nothing looks at them.
_NOWHERE = 1 << 46


class Rehearsal(NamedTuple):
    """A forecast of a run with certain inputs: its outputs' shapes, memory in bytes, kernel launches."""

    outputs: Dict[str, Sizes]
    scratch_bytes: int
    launches: int


class TritonEngine:
    """The programs of a variant, each loaded when it is first asked for; not from two threads at once."""

    def __init__(
        self,
        library: GpuLibrary,
        folder: BundleFolder,
        variant: Variant,
        weights: Weights,
        driver: Optional[Driver] = None,
    ) -> None:
        """Copies the weights to the GPU; without a driver it only rehearses.

        Raises:
            GpuError: there isn't the memory, or CUDA failed otherwise.
        """
        assert variant.gpu is not None
        self.label = "{}: the variant {}".format(folder.path, variant.name)
        self.profiles = len(variant.programs)
        #: Programs that read numbers from the GPU wait in their middle, which no graph can.
        self.records = variant.gpu.graphs
        self.library, self.folder, self.weights = library, folder, weights
        #: Kernel launches of a run at each loaded bucket's largest shapes.
        self._launches: Dict[int, int] = {}
        self._variant, self._driver = variant, driver
        self._programs: Dict[int, SingleProgram] = {}
        spans = [(item.offset, item.offset + item.nbytes) for item in weights.constants]
        start = min([first for first, _ in spans], default=0)
        self._weight_bytes = max([end for _, end in spans], default=start) - start
        self._memory = 0
        if driver is not None and self._weight_bytes:
            try:
                self._memory = driver.malloc(self._weight_bytes)
                driver.upload(self._memory, weights.address + start, self._weight_bytes)
            except GpuError as error:
                self.close()
                text = "{} bytes of weights: {}".format(self._weight_bytes, error.message)
                raise GpuError(text, error.hint, error.name, error.number, error.sticky) from None
        #: The address on the GPU of the weights' file.
        self.base = (self._memory or _NOWHERE) - start

    def program(self, profile: int) -> "SingleProgram":
        """A bucket's program.

        Raises:
            BundleError: it is damaged, or of another model.
            GpuError: it can't be opened.
        """
        program = self._programs.get(profile)
        if program is None or program.closed:
            program = SingleProgram(self, self._variant.programs[profile])
            self._programs[profile] = program
        return program

    def scratch_bytes(self, profile: int) -> int:
        """See ``gpu.engines``; by rehearsals at the bucket's largest shapes, and just below.

        Below, an output may be cut from a larger tensor in scratch memory: one whose rows are filled up
        to the next multiple of 8 is all of it at 32 rows, not at 31.
        """
        manifest, program = self.folder.manifest, self.program(profile)
        bucket = manifest.buckets[profile]
        below = [
            bucket._replace(axes={**bucket.axes, axis: extent._replace(hi=extent.hi - extent.step)})
            for axis, extent in bucket.axes.items()
            if extent.lo < extent.hi and axis not in bucket.padded(manifest.length_axis)
        ]
        # The largest come first, whose places serve all others.
        each = [
            program.rehearse({x.name: largest_shape(x, ends) for x in manifest.inputs})
            for ends in (bucket, *below)
        ]
        self._launches[profile] = each[0].launches
        return max(rehearsal.scratch_bytes for rehearsal in each)

    def open(self, profile: int, scratch: int, size: int, stream: int = 0) -> "SingleProgram":
        """See ``gpu.engines``. With a driver, the bucket's kernels are loaded onto the GPU."""
        program = self.program(profile)
        if self._driver is not None:
            capability = self._driver.device().compute_capability
            program.call("load", "loading the kernels of ", int(capability.replace(".", "")))
        program.scratch, program.size = scratch, size
        return program

    def describe(self) -> Dict[str, Any]:
        """For ``info``, plain JSON values."""
        launches = {str(key): value for key, value in sorted(self._launches.items())}
        return {"weight_bytes": self._weight_bytes, "launches": launches}

    def close(self) -> None:
        """See ``gpu.engines``."""
        for program in self._programs.values():
            program.close()
        memory, self._memory = self._memory, 0
        if memory and self._driver is not None:
            self._driver.free(memory)

    def abandon(self) -> None:
        """See ``gpu.engines``."""
        self._programs, self._memory = {}, 0


class SingleProgram:
    """One compiled bucket, and its context as ``gpu.engines`` describes it; not from two threads at once."""

    #: Inputs and outputs have the manifest's.
    dtypes: Mapping[str, str] = {}

    def __init__(self, engine: TritonEngine, path: str) -> None:
        manifest, weights = engine.folder.manifest, engine.weights
        self.scratch = self.size = 0
        self._engine, self._library, self._native = engine, engine.library, engine.library.native
        self._inputs, self._outputs = manifest.inputs, manifest.outputs
        pinned = pin_library(engine.folder, path)
        self.label = pinned.label
        table = (NativeTensor * max(len(weights.constants), 1))()
        for slot, item in zip(table, weights.constants):
            fill_tensor(slot, engine.base + item.offset, item.nbytes, item.type.code, item.shape)
            slot.name = item.name.encode("utf-8")
        self._handle: Optional[ctypes.c_void_p] = None
        handle = ctypes.c_void_p()
        pinned.check_again()
        status = self._native.ec_cuda_program_open(
            pinned.path.encode(), table, len(weights.constants), ctypes.byref(handle)
        )
        if status != 0:
            limit = explain_loading(self._library.last_error(), self.label, pinned.path)
            if limit is not None:
                raise limit
        self._library.check(status, "opening " + self.label)
        self._handle = handle
        counts = (
            int(self._native.ec_cuda_program_input_count(handle)),
            int(self._native.ec_cuda_program_output_count(handle)),
        )
        expected = (len(self._inputs), len(self._outputs))
        if counts != expected:
            self.close()
            text = "{}: has {} inputs and {} outputs, the manifest has {} and {}"
            raise BundleError(
                text.format(self.label, *(counts + expected)) + " [program-signature]"
            )
        if not engine.records:
            if "ec_cuda_program_allow_numbers" in self._library.lacks:
                raise GpuError("{}: its runtime reads no numbers from the GPU".format(self.label))
            self.call("allow_numbers", "opening ")

    @property
    def closed(self) -> bool:
        """Whether it was given back."""
        return self._handle is None

    def call(self, name: str, doing: str, *arguments: Any) -> None:
        """Calls a native function for it; raises GpuError."""
        if self._handle is None:
            raise GpuError("{}: the program is closed".format(self.label))
        self._library.make_current()
        status = getattr(self._native, "ec_cuda_program_" + name)(self._handle, *arguments)
        if status != 0:
            self._library.check(status, doing + self.label)

    def rehearse(self, shapes: Mapping[str, Sizes]) -> Rehearsal:
        """Makes these the shapes of the next runs, and tells what those will do.

        Raises:
            GpuError: the program refuses them, or is of another model.
        """
        table = (NativeTensor * max(len(self._inputs), 1))()
        for slot, spec in zip(table, self._inputs):
            element, shape = BY_NAME[spec.dtype], shapes[spec.name]
            nbytes = element.size
            for size in shape:
                nbytes *= size
            fill_tensor(slot, 0, nbytes, element.code, shape)
        views = (NativeTensor * max(len(self._outputs), 1))()
        scratch, launches = ctypes.c_int64(), ctypes.c_int64()
        counts = (len(self._inputs), views, len(self._outputs))
        found = (ctypes.byref(scratch), ctypes.byref(launches))
        self.call("plan", "rehearsing ", table, *counts, *found)
        wrong = []
        for view, spec in zip(views, self._outputs):
            dtype = BY_CODE[view.dtype].name if view.dtype in BY_CODE else str(view.dtype)
            if dtype != spec.dtype:
                text = "{} is {}, the manifest says {}"
                wrong.append(text.format(spec.name, dtype, spec.dtype))
        if wrong:
            raise GpuError("{}: {}".format(self.label, "; ".join(wrong)))
        return Rehearsal(self._shapes(views), scratch.value, launches.value)

    def _shapes(self, views: Any) -> Dict[str, Sizes]:
        pairs = zip(self._outputs, views)
        return {spec.name: tuple(view.sizes[: view.ndim]) for spec, view in pairs}

    def products(self) -> List[int]:
        """The rows that each product had in the last rehearsal which cuBLASLt may compute."""
        count = int(self._native.ec_cuda_program_products(self._handle, None, 0))
        rows = (ctypes.c_int64 * max(count, 1))()
        self._native.ec_cuda_program_products(self._handle, rows, count)
        return list(rows[:count])

    def reshape(self, shapes: Mapping[str, Sizes]) -> Dict[str, Sizes]:
        """See ``gpu.engines``."""
        rehearsal = self.rehearse(shapes)
        if rehearsal.scratch_bytes > self.size:
            text = (
                "{}: takes {} bytes of scratch memory at {}, more than the {} of its largest shapes"
            )
            sizes = {name: list(shape) for name, shape in shapes.items()}
            label = self._engine.label
            raise GpuError(text.format(label, rehearsal.scratch_bytes, sizes, self.size))
        return rehearsal.outputs

    def bind(self, addresses: Mapping[str, int]) -> None:
        """See ``gpu.engines``."""
        sources, targets = (
            (ctypes.c_uint64 * max(len(specs), 1))(*[addresses[spec.name] for spec in specs])
            for specs in (self._inputs, self._outputs)
        )
        self._addresses = (sources, len(self._inputs), targets, len(self._outputs))

    def enqueue(self, stream: int) -> None:
        """See ``gpu.engines``."""
        self.call("enqueue", "running ", *self._addresses, self.scratch, self.size, stream)

    def results(self) -> Optional[Dict[str, Sizes]]:
        """See ``gpu.engines``."""
        if self._engine.records:
            return None
        views = (NativeTensor * max(len(self._outputs), 1))()
        self.call("results", "asking for the results of ", views, len(self._outputs))
        return self._shapes(views)

    def close(self) -> None:
        """Gives it back; runs must be over. A second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.make_current()
            self._native.ec_cuda_program_close(handle)
