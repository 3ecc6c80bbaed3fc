"""The record of ``tune`` for a variant on this GPU: for each bucket the program that runs.

The cache has ``tuned/<key>/choice.json``. The key is a digest of the device, its driver and the programs to
choose from; neither names nor times are part of it. Native code (c_runtime/gpu/tuning.h) makes the key and reads the
file, for both loaders; ``tune`` writes the file here, atomically.
"""

import json
import os
from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from ..base.errors import EngineCacheError
from ..format.files.folder import BundleFolder
from ..format.manifest.schema import Variant
from ..format.output import write_output
from ..gpu.cache import KeptFolder
from .library import load_variant_library

RECORD_VERSION = 1
_NAME = "choice.json"


@dataclass(frozen=True)
class Tuned:
    """The result of ``tune``: ``choice`` has for each program of ``list_candidates`` 0 or the number of an alternative,
    from 1 on; ``uses_cublaslt`` tells whether any product was faster with cuBLASLt."""

    choice: Tuple[int, ...]
    path: str
    record: Mapping[str, Any]
    uses_cublaslt: bool


def list_candidates(variant: Variant) -> List[List[str]]:
    """For each bucket its default program, then its alternatives."""
    more = variant.alternatives or ((),) * len(variant.programs)
    return [[program, *others] for program, others in zip(variant.programs, more)]


def with_choice(variant: Variant, choice: Sequence[int]) -> Variant:
    """The variant with the chosen programs in place of the default ones."""
    programs = (items[number] for items, number in zip(list_candidates(variant), choice))
    return variant._replace(programs=tuple(programs))


class TuningFolder(KeptFolder):
    """The record of one variant on this GPU as it is now; it needn't exist.

    Raises:
        GpuError: CUDA fails.
    """

    def __init__(self, folder: BundleFolder, variant: Variant) -> None:
        self._folder, self._variant = folder, variant
        self._library = load_variant_library(folder, variant)
        state = self._library.read_tuning(folder, variant)
        self.key, self.device, self.content = state["key"], state["device"], state["content"]
        super().__init__(os.path.dirname(state["path"]))

    def read(self) -> Tuple[Optional[Tuned], str]:
        """(the record, ""), or (None, why there is nothing to be used)."""
        state = self._library.read_tuning(self._folder, self._variant)
        if state["why"]:
            return None, state["why"]
        uses_cublaslt = state["cublaslt"] is not None
        return Tuned(tuple(state["choice"]), state["path"], state["record"], uses_cublaslt), ""

    def write(self, entries: Mapping[str, Any]) -> Tuned:
        """Writes the record durably; the one before is there until then. Only while the lock is held.

        Raises:
            EngineCacheError: it can't be written, or read back.
        """
        document = {"record_version": RECORD_VERSION, "key": self.key, **entries}
        document.update(content=self.content, device=self.device)
        text = json.dumps(document, indent=1, allow_nan=False)
        try:
            write_output(self.join(_NAME), text.encode("ascii") + b"\n", durable=True)
        except OSError as error:
            text = "{}: can't be written: {}".format(self.join(_NAME), error.strerror)
            raise EngineCacheError(text) from None
        self.tidy()
        tuned, why = self.read()
        if tuned is None:
            raise EngineCacheError("the record is gone again: {}".format(why))
        return tuned

    def tidy(self) -> None:
        """Removes what killed processes left. Only while the lock is held."""
        for name in os.listdir(self.path):
            if name.endswith(".tmp"):
                self._remove(name)
