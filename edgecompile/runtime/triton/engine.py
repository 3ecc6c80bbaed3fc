"""Compiled programs of Triton kernels, as ``gpu.engines`` describes engines: a profile per bucket.

Each run is rehearsed once for its shapes: the program's host code goes through it without the GPU, and
tells the shapes of its outputs and the memory that it needs. Runs then use that memory and allocate none.
"""

import ctypes
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ..cpu.libraries import pin_library
from ..errors import BundleError, GpuError
from ..format.folder import BundleFolder
from ..format.schema import Manifest, Variant
from ..gpu.engines import Sizes
from ..gpu.program import largest_shape
from .constants import DeviceConstants, release_constants
from .library import GpuLibrary, GpuProgramLibrary, Rehearsal


class CublasLt(NamedTuple):
    """Which products NVIDIA's cuBLASLt computes in the place of Triton's kernels: of each program those of ``rows[i]``
    rows and more, none where that is negative. ``version`` is that of the library, 130002 for 13.0.2."""

    version: int
    rows: Tuple[Tuple[int, ...], ...]


class TritonEngine:
    """The programs of a variant, each loaded when it is first asked for; not from two threads at once."""

    def __init__(
        self,
        library: GpuLibrary,
        folder: BundleFolder,
        variant: Variant,
        constants: DeviceConstants,
        capability: str,
        cublaslt: Optional[CublasLt] = None,
    ) -> None:
        """Takes over one use of ``constants``; ``folder`` stays open as long as the engine."""
        self.label = "{}: the variant {}".format(folder.path, variant.name)
        self.profiles = len(variant.programs)
        assert variant.gpu is not None
        #: Programs that read numbers from the GPU wait in their middle, which no graph can.
        self.records = self.keeps_graphs = variant.gpu.graphs
        self._library = library
        self._folder = folder
        self._variant = variant
        self._manifest: Manifest = folder.manifest
        self._constants: Optional[DeviceConstants] = constants
        self._capability = int(capability.replace(".", ""))
        self._cublaslt = cublaslt
        self._programs: Dict[str, GpuProgramLibrary] = {}
        #: Kernel launches of a run at each loaded bucket's largest shapes.
        self.launches: Dict[int, int] = {}

    def program(self, profile: int) -> GpuProgramLibrary:
        """A bucket's program."""
        path = self._variant.programs[profile]
        program = self._programs.get(path)
        if program is None:
            program = self._programs[path] = self._open_program(path)
            if self._cublaslt is not None:
                program.use_cublaslt(self._cublaslt.version, self._cublaslt.rows[profile])
        return program

    def _open_program(self, path: str) -> GpuProgramLibrary:
        assert self._constants is not None
        pinned = pin_library(self._folder, path)
        program = self._library.open_program(pinned, self._constants.table)
        expected = (len(self._manifest.inputs), len(self._manifest.outputs))
        counts = (program.n_inputs, program.n_outputs)
        if counts != expected:
            program.close()
            text = "{}: has {} inputs and {} outputs, the manifest has {} and {}"
            raise BundleError(
                text.format(program.label, *(counts + expected)) + " [program-signature]"
            )
        if not self.records:
            program.allow_numbers()
        return program

    def rehearse(self, program: GpuProgramLibrary, shapes: Mapping[str, Sizes]) -> Rehearsal:
        """Rehearses a run, whose outputs have the manifest's dtypes.

        Raises:
            GpuError: the program refuses the shapes, or is of another model.
        """
        rehearsal = program.rehearse(self._manifest.inputs, shapes)
        wrong = [
            "{} is {}, the manifest says {}".format(spec.name, dtype, spec.dtype)
            for spec, dtype in zip(self._manifest.outputs, rehearsal.dtypes)
            if dtype != spec.dtype
        ]
        if wrong:
            raise GpuError("{}: {}".format(program.label, "; ".join(wrong)))
        return rehearsal

    def scratch_bytes(self, profile: int) -> int:
        """See ``gpu.engines``; by rehearsals at the bucket's largest shapes, and just below.

        Below, an output may be cut from a larger tensor in scratch memory: one whose rows are filled up
        to the next multiple of 8 is all of it at 32 rows, not at 31.
        """
        bucket, manifest = self._manifest.buckets[profile], self._manifest
        below = [
            bucket._replace(axes={**bucket.axes, axis: extent._replace(hi=extent.hi - 1)})
            for axis, extent in bucket.axes.items()
            if extent.lo < extent.hi and axis not in bucket.padded(manifest.length_axis)
        ]
        # The largest come first, whose places serve all others.
        each = [
            self.rehearse(
                self.program(profile), {x.name: largest_shape(x, ends) for x in manifest.inputs}
            )
            for ends in (bucket, *below)
        ]
        self.launches[profile] = each[0].launches
        return max(rehearsal.scratch_bytes for rehearsal in each)

    def open(self, profile: int, scratch: int, size: int, stream: int) -> "TritonContext":
        """See ``gpu.engines``. The bucket's kernels are loaded onto the GPU."""
        self.program(profile).load(self._capability)
        return TritonContext(self, profile, scratch, size)

    def describe(self) -> Dict[str, Any]:
        """For ``info``, plain JSON values."""
        constants = self._constants
        return {
            "weight_bytes": 0 if constants is None else constants.nbytes,
            "launches": {str(key): value for key, value in sorted(self.launches.items())},
        }

    def cublaslt_failure(self) -> str:
        """Why Triton's kernels compute what cuBLASLt was to, "" if nothing failed so far."""
        failures = [program.cublaslt_failure() for program in list(self._programs.values())]
        return next(filter(None, failures), "")

    def close(self) -> None:
        """See ``gpu.engines``."""
        programs, self._programs = self._programs, {}
        for program in programs.values():
            program.close()
        constants, self._constants = self._constants, None
        if constants is not None:
            release_constants(constants)

    def abandon(self) -> None:
        """See ``gpu.engines``."""
        for program in self._programs.values():
            program.abandon()
        self._programs, self._constants = {}, None


class TritonContext:
    """A bucket's program made ready to run."""

    #: Inputs and outputs have the manifest's.
    dtypes: Mapping[str, str] = {}

    def __init__(
        self,
        engine: TritonEngine,
        profile: int,
        scratch: int,
        size: int,
    ) -> None:
        self._engine = engine
        self._program: Optional[GpuProgramLibrary] = None
        self._closed = False
        self._profile = profile
        self._scratch, self._size = scratch, size
        manifest = engine._manifest
        self._inputs = [spec.name for spec in manifest.inputs]
        self._outputs = [spec.name for spec in manifest.outputs]
        self._shapes: Dict[str, Sizes] = {}

    def reshape(self, shapes: Mapping[str, Sizes]) -> Dict[str, Sizes]:
        """See ``gpu.engines``."""
        program = self._engine.program(self._profile)
        rehearsal = self._engine.rehearse(program, shapes)
        if rehearsal.scratch_bytes > self._size:
            text = (
                "{}: takes {} bytes of scratch memory at {}, more than the {} of its largest shapes"
            )
            sizes = {name: list(shape) for name, shape in shapes.items()}
            raise GpuError(
                text.format(self._engine.label, rehearsal.scratch_bytes, sizes, self._size)
            )
        self._shapes = dict(shapes)
        self._program, program.user = program, self
        return dict(zip(self._outputs, rehearsal.outputs))

    def bind(self, addresses: Mapping[str, int]) -> None:
        """See ``gpu.engines``."""
        self._sources = _pack([addresses[name] for name in self._inputs])
        self._targets = _pack([addresses[name] for name in self._outputs])

    def enqueue(self, stream: int) -> None:
        """See ``gpu.engines``."""
        if self._closed or self._program is None:
            raise GpuError("{}: the context is closed".format(self._engine.label))
        if self._program.user is not self:  # the program has the shapes of another context
            self.reshape(self._shapes)
        self._program.enqueue(self._sources, self._targets, self._scratch, self._size, stream)

    def results(self) -> Optional[Dict[str, Sizes]]:
        """See ``gpu.engines``."""
        if self._engine.records or self._program is None:
            return None
        return dict(zip(self._outputs, self._program.results()))

    def simplify(self) -> bool:
        """See ``gpu.engines``. Where a product by cuBLASLt failed, Triton's kernels compute all of them."""
        return self._program is not None and self._program.drop_cublaslt()

    def close(self) -> None:
        """See ``gpu.engines``; the engine keeps the programs."""
        self._closed = True


def _pack(addresses: List[int]) -> Any:
    return (ctypes.c_uint64 * max(len(addresses), 1))(*addresses)
