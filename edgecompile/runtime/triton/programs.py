"""The programs of a variant of Triton kernels, which native code runs: buckets, modes, graphs, texts, tuning.

That code comes with the bundle, and is the C runtime's; see native/cuda/edgecompile_cuda_abi.h.
"""

import ctypes
import json
from collections import deque
from typing import TYPE_CHECKING, Any, Deque, Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from ..base.errors import GpuError
from ..cpu.tensors import NativeTensor, pack_arrays, wrap_tensor
from ..format.files.folder import BundleFolder
from ..format.manifest.schema import Manifest, Variant, plain
from ..gpu.cuda import check_not_forked
from .library import GpuLibrary

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..cpu.tensors import Shape

#: After so many runs of one shape native code makes a graph of it.
GRAPH_AFTER = 8


class CublasLt(NamedTuple):
    """The matmuls that NVIDIA's cuBLASLt computes in place of Triton's kernels: in each program those of ``rows[i]``
    rows and more, none where that is negative. ``version`` is that of the library, 130002 for 13.0.2."""

    version: int
    rows: Sequence[Sequence[int]]


class TritonProgram:
    """One bucket, over the caches of a text or those among its inputs. The interface is that of ``program.Program``."""

    runs_into = True

    def __init__(self, owner: "TritonPrograms", bucket: int, text: Optional[int]) -> None:
        self.label = "bucket {} ({})".format(bucket, owner.manifest.buckets[bucket])
        self._owner, self._bucket, self._text = owner, bucket, text
        self._ranks = [len(spec.shape) for spec in owner.manifest.outputs]

    def run(
        self, arrays: Sequence["NDArray[Any]"], shapes: "Optional[Sequence[Shape]]" = None
    ) -> List["NDArray[Any]"]:
        """Runs once and returns new arrays: see ``Program.run``.

        Raises:
            GpuError: CUDA or the program reported a failure.
        """
        outputs = (NativeTensor * len(self._ranks))()
        for i, (slot, rank) in enumerate(zip(outputs, self._ranks)):
            slot.ndim = rank
            wanted = (None,) * rank if shapes is None else shapes[i]
            slot.sizes[:rank] = [-1 if size is None else size for size in wanted]
        results = self._run(arrays, outputs)
        try:
            return [np.array(wrap_tensor(view)) for view in outputs]
        finally:
            self._owner.library.native.ec_gpu_results_free(results)

    def run_into(self, arrays: Sequence["NDArray[Any]"], results: Sequence["NDArray[Any]"]) -> None:
        """Runs once and writes the leading part of each output that fits to ``results``.

        Raises:
            GpuError: CUDA or the program reported a failure.
        """
        self._run(arrays, pack_arrays(results))

    def _run(self, arrays: Sequence["NDArray[Any]"], outputs: Any) -> ctypes.c_void_p:
        # Caches, which are changed in place, are contiguous.
        given = [x if x.flags.c_contiguous else np.ascontiguousarray(x) for x in arrays]
        results = ctypes.c_void_p()
        self._owner.call(
            "ec_gpu_run",
            self._text,
            self._bucket,
            pack_arrays(given),
            len(given),
            outputs,
            len(self._ranks),
            ctypes.byref(results),
        )
        return results


class TritonText:
    """The caches of one text on the GPU, and the programs that run over them."""

    def __init__(self, owner: "TritonPrograms", handle: int) -> None:
        self.handle = handle
        self._owner = owner
        self._programs: Dict[int, TritonProgram] = {}

    def get(self, bucket: int) -> TritonProgram:
        """The program of a bucket; it takes the inputs that are no caches.

        Raises:
            GpuError: it can't be made, or this process is a fork.
        """
        programs = self._programs
        return programs.get(bucket) or programs.setdefault(
            bucket, self._owner.load(bucket, self.handle)
        )


class TritonPrograms:
    """One program per bucket; safe from several threads, except ``close``. The interface is that of ``GpuPrograms``."""

    def __init__(
        self,
        library: GpuLibrary,
        folder: BundleFolder,
        variant: Variant,
        manifest: Manifest,
        mode: str,
        check_weights: bool,
        record: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """Copies the weights to the GPU and rehearses every program.

        Args:
            library: the variant's runtime library, which has these functions.
            folder: the bundle; it stays open as long as the programs.
            variant: a variant of it.
            manifest: the bundle's manifest, its buckets as the mode pads them.
            mode: one of ``engines.MODES``.
            check_weights: compare the weights' hash.
            record: the choice of programs as ``tune`` records it; None: what it recorded on this GPU.

        Raises:
            GpuUnavailableError: there is no driver, or no GPU that fits.
            GpuError: CUDA reported a failure, too little memory for example.
            BundleError: a file differs from its hash, or breaks a rule.
        """
        assert variant.gpu is not None
        self.manifest, self.mode, self.library = manifest, mode, library
        self.keeps_texts = manifest.generation is not None
        self.precision = variant.gpu.precision
        self.tolerance, self.min_cosine = variant.gpu.tolerance, variant.gpu.min_cosine
        self._forked = self._failed = False
        self._programs: Dict[int, TritonProgram] = {}
        self._given_back: Deque[TritonText] = deque()
        handle = ctypes.c_void_p()
        status = library.native.ec_gpu_open(
            folder.path.encode(),
            folder.fd,
            folder.manifest_sha256.encode(),
            variant.name.encode(),
            mode.encode(),
            check_weights,
            None if record is None else json.dumps(record).encode(),
            ctypes.byref(handle),
        )
        self._handle = handle.value
        if status != 0:
            raise library.variant_error(status)
        #: Buckets in which the first run of many rows loads a library, which warming up does.
        self.warms_largest: Sequence[int] = self._state()["warms_largest"]

    def after_fork(self) -> None:
        """In a process after a fork, where CUDA can't be used: every run is refused."""
        self._forked = True

    def __len__(self) -> int:
        return len(self.manifest.buckets)

    def _state(self) -> Dict[str, Any]:
        if self._handle is None or self._forked:
            return {"info": {}, "loaded": [], "warms_largest": [], "broken": ""}
        text = self.library.native.ec_gpu_describe(self._handle)
        if text is None:
            raise MemoryError
        state: Dict[str, Any] = json.loads(text)
        return state

    @property
    def broken(self) -> Optional[str]:
        """Why every further run is refused, or None: see ``OpenBundle.broken``."""
        return (self._state()["broken"] or None) if self._failed else None

    @property
    def loaded(self) -> List[int]:
        """The buckets whose programs are loaded."""
        loaded: List[int] = self._state()["loaded"]
        return loaded

    def describe(self) -> Dict[str, Any]:
        """For ``Model.info``, plain JSON values; sizes in bytes."""
        return {**self._state()["info"], "tolerance": plain(self.tolerance)}

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a native function for this variant.

        Raises:
            GpuError: CUDA failed, this process is a fork, or the programs are closed.
        """
        if self._forked:
            check_not_forked(True)
        if self._handle is None:
            raise GpuError("the programs are closed")
        status = getattr(self.library.native, name)(self._handle, *arguments)
        if status != 0:
            error = self.library.variant_error(status)
            self._failed = self._failed or getattr(error, "sticky", False)
            raise error

    def load(self, bucket: int, text: Optional[int]) -> TritonProgram:
        """The program of a bucket, over a text's caches where one is given."""
        self.call("ec_gpu_load", text, bucket)
        return TritonProgram(self, bucket, text)

    def get(self, bucket: int) -> TritonProgram:
        """The program of a bucket, which must exist.

        Raises:
            GpuError: it can't be made, or this process is a fork.
        """
        if self._forked:
            check_not_forked(True)
        programs = self._programs
        return programs.get(bucket) or programs.setdefault(bucket, self.load(bucket, None))

    def take_text(self) -> TritonText:
        """The memory of a text, zeros: the one that was given back last, or a new one.

        Raises:
            GpuError: there isn't enough memory, or this process is a fork.
        """
        while self._handle is not None:
            try:
                text = self._given_back.popleft()
            except IndexError:  # another thread may have taken the last one
                break
            self.library.native.ec_gpu_give_back(self._handle, text.handle)
        handle = ctypes.c_void_p()
        self.call("ec_gpu_take_text", ctypes.byref(handle))
        assert handle.value is not None
        return TritonText(self, handle.value)

    def give_back(self, text: TritonText) -> None:
        """Leaves a text for the next one. It takes no lock: whoever collects garbage may call it."""
        self._given_back.append(text)

    def close(self) -> None:
        """Gives everything back; runs must be over. A second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None and not self._forked:
            self.library.native.ec_gpu_close(handle)
