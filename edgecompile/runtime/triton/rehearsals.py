"""Rehearsals of compiled programs of Triton kernels: they go through a run's host code without the GPU.

A rehearsal tells the shapes of the outputs, the memory that the run needs, and the rows of its products. ``programs.py``
runs variants.
"""

import ctypes
from typing import Dict, List, Mapping, NamedTuple, Optional

from ..base.errors import BundleError, GpuError
from ..base.limits import explain_loading
from ..cpu.libraries import pin_library
from ..cpu.tensors import NativeTensor, fill_tensor
from ..format.dtypes import BY_CODE, BY_NAME
from ..format.files.folder import BundleFolder
from ..format.files.weights import Weights
from ..format.manifest.schema import Variant
from ..gpu.engines import Sizes
from ..gpu.program import largest_shape
from .library import GpuLibrary

#: Where weights would lie on a GPU; nothing looks at them.
_NOWHERE = 1 << 46


class Rehearsal(NamedTuple):
    """A forecast of a run with certain inputs: its outputs' shapes, and memory in bytes."""

    outputs: Dict[str, Sizes]
    scratch_bytes: int


class Rehearsals:
    """The programs of a variant, each loaded when it is first asked for; not from two threads at once."""

    def __init__(
        self, library: GpuLibrary, folder: BundleFolder, variant: Variant, weights: Weights
    ) -> None:
        assert variant.gpu is not None
        #: Programs that read numbers from the GPU wait in their middle, which no graph can.
        self.records = variant.gpu.graphs
        self.library, self.folder, self.weights = library, folder, weights
        #: The address on the GPU of the weights' file.
        self.base = _NOWHERE - min([item.offset for item in weights.constants], default=0)
        self._variant = variant
        self._programs: Dict[int, SingleProgram] = {}

    def program(self, bucket: int) -> "SingleProgram":
        """A bucket's program.

        Raises:
            BundleError: it is damaged, or of another model.
            GpuError: it can't be opened.
        """
        program = self._programs.get(bucket)
        if program is None:
            program = SingleProgram(self, self._variant.programs[bucket])
            self._programs[bucket] = program
        return program

    def scratch_bytes(self, number: int) -> int:
        """Bytes of the GPU's memory that a bucket's runs need: at its largest shapes, and just below.

        Below, an output may be cut from a larger tensor in scratch memory: one whose rows are filled up
        to the next multiple of 8 is all of it at 32 rows, not at 31.
        """
        manifest, program = self.folder.manifest, self.program(number)
        bucket = manifest.buckets[number]
        below = [
            bucket._replace(axes={**bucket.axes, axis: extent._replace(hi=extent.hi - extent.step)})
            for axis, extent in bucket.axes.items()
            if extent.lo < extent.hi and axis not in bucket.padded(manifest.length_axis)
        ]
        # The largest come first, whose places serve all others.
        return max(
            program.rehearse(
                {x.name: largest_shape(x, ends) for x in manifest.inputs}
            ).scratch_bytes
            for ends in (bucket, *below)
        )


class SingleProgram:
    """One compiled bucket; not from two threads at once."""

    def __init__(self, owner: Rehearsals, path: str) -> None:
        manifest, weights = owner.folder.manifest, owner.weights
        self._library, self._native = owner.library, owner.library.native
        self._inputs, self._outputs = manifest.inputs, manifest.outputs
        pinned = pin_library(owner.folder, path)
        self.label = pinned.label
        table = (NativeTensor * max(len(weights.constants), 1))()
        for slot, item in zip(table, weights.constants):
            fill_tensor(slot, owner.base + item.offset, item.nbytes, item.type.code, item.shape)
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
        if not owner.records:
            self.call("allow_numbers", "opening ")

    def call(self, name: str, doing: str, *arguments: object) -> None:
        """Calls a native function for it; raises GpuError."""
        self._library.make_current()
        status = getattr(self._native, "ec_cuda_program_" + name)(self._handle, *arguments)
        if status != 0:
            self._library.check(status, doing + self.label)

    def rehearse(self, shapes: Mapping[str, Sizes]) -> Rehearsal:
        """What a run of these shapes does.

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
        pairs = zip(self._outputs, views)
        outputs = {spec.name: tuple(view.sizes[: view.ndim]) for spec, view in pairs}
        return Rehearsal(outputs, scratch.value)

    def products(self) -> List[int]:
        """The rows that each product had in the last rehearsal which cuBLASLt may compute."""
        count = int(self._native.ec_cuda_program_products(self._handle, None, 0))
        rows = (ctypes.c_int64 * max(count, 1))()
        self._native.ec_cuda_program_products(self._handle, rows, count)
        return list(rows[:count])

    def close(self) -> None:
        """Gives it back. A second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.make_current()
            self._native.ec_cuda_program_close(handle)
