"""The programs of one variant, each loaded when it is first asked for."""

import os
import threading
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..base.errors import BundleError
from ..format.files.folder import BundleFolder
from ..format.files.weights import Weights, map_weights
from ..format.manifest.schema import Variant
from .libraries import pin_library
from .library import Program, RuntimeLibrary, load_runtime

#: Tokens, positions and addresses; logits.
_BATCH_COUNTS = (3, 1)


def open_cpu_variant(
    folder: BundleFolder,
    variant: Variant,
    threads: Optional[int],
    concurrency: int,
    check_weights: bool,
) -> "Programs":
    """Maps the weights and loads the runtime library of a variant, but no program.

    The runtime library's file name is its SONAME.

    Raises:
        DamagedBundleError: a file differs from its hash.
        BundleError: the weights break a rule.
        NativeError: the library can't be loaded.
    """
    runtime = load_runtime(pin_library(folder, variant.runtime), os.path.basename(variant.runtime))
    if threads is not None:
        runtime.threads = threads
    manifest = folder.manifest
    weights = map_weights(folder, manifest.weights[manifest.precision], check_weights)
    return Programs(folder, variant, runtime, weights, concurrency)


class Programs:
    """One program per bucket; safe from several threads, except ``close``."""

    def __init__(
        self,
        folder: BundleFolder,
        variant: Variant,
        runtime: RuntimeLibrary,
        weights: Weights,
        concurrency: int,
    ) -> None:
        self.manifest = folder.manifest
        #: Texts are kept by who generates.
        self.keeps_texts = False
        #: Buckets whose first large run loads something.
        self.warms_largest: Sequence[int] = ()
        self.runtime = runtime
        #: What is computed in, where that isn't the manifest's.
        self.precision = ""
        #: On a GPU, why every further run is refused.
        self.broken: Optional[str] = None
        #: What golden vectors are judged by.
        self.tolerance, self.min_cosine = folder.manifest.tolerance, None
        self._folder = folder
        self._variant = variant
        self._weights: Optional[Weights] = weights
        self._concurrency = concurrency
        self._programs: List[Optional[Program]] = [None] * len(folder.manifest.buckets)
        self._batch: Optional[Program] = None
        self.after_fork()

    def after_fork(self) -> None:
        """In a process after a fork: no thread is loading."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._programs)

    @property
    def loaded(self) -> List[int]:
        """The buckets whose programs are loaded."""
        return [i for i, item in enumerate(self._programs) if item is not None]

    def describe(self) -> Dict[str, Any]:
        """For ``Model.info``, plain JSON values."""
        return {
            "mode": "default",
            "threads": self.runtime.threads,
            "concurrency": self._concurrency,
        }

    def get(self, bucket: int) -> Program:
        """The program of a bucket, which must exist.

        Raises:
            BundleError: it is damaged, or rule program-signature.
            NativeError: it can't be loaded.
        """
        return self._programs[bucket] or self._load(bucket)

    def get_batch(self, path: str) -> Program:
        """The program that runs a token each of several texts; raises what ``get`` does."""
        with self._lock:
            if self._batch is None:
                self._batch = self._open(path, _BATCH_COUNTS)
            return self._batch

    def _load(self, bucket: int) -> Program:
        manifest = self._folder.manifest
        with self._lock:
            program = self._programs[bucket]
            if program is None:
                counts = (len(manifest.inputs), len(manifest.outputs))
                program = self._open(self._variant.programs[bucket], counts)
                self._programs[bucket] = program
            return program

    def _open(self, path: str, expected: Tuple[int, int]) -> Program:
        assert self._weights is not None
        pinned = pin_library(self._folder, path)
        program = self.runtime.open_program(pinned, self._weights, self._concurrency)
        counts = (program.n_inputs, program.n_outputs)
        if counts != expected:
            program.close()
            text = "{}: has {} inputs and {} outputs, the manifest has {} and {}"
            text = text.format(program.label, *(counts + expected))
            raise BundleError(text + " [program-signature]")
        return program

    def trim(self, most: int) -> None:
        """Gives buffers back to the system where more than ``most`` bytes are kept for later runs."""
        if self.runtime.buffer_bytes[1] > most:
            self.runtime.trim()

    def close(self) -> None:
        """Gives the memory of all programs back; runs must be over."""
        for bucket, program in enumerate(self._programs):
            if program is not None:
                program.close()
                self._programs[bucket] = None
        if self._batch is not None:
            self._batch.close()
            self._batch = None
        self._weights = None
        self.runtime.trim()
