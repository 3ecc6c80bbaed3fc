"""Chooses a bundle's programs for this GPU: its first ones, or those that ``tune`` found faster.

The cache has ``tuned/<key>/choice.json``. The key is a digest of the device, its driver and the programs to
choose from; neither names nor times are part of it. The file comes by a rename. A choice is of programs of
the bundle alone, each of which is compared with its hash before it is loaded.
"""

import json
import os
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..errors import BundleError, EngineCacheError
from ..format.document import Field, Problems, parse_json
from ..format.output import write_output
from ..format.schema import Manifest, Variant
from ..gpu.cache import KeptFolder, cache_root, digest
from ..gpu.device import describe_device
from .driver import Driver
from .engine import CublasLt

RECORD_VERSION = 1
_MAX_BYTES = 4 << 20
_NAME = "choice.json"
_MOST_PRODUCTS, _MOST_ROWS = 4096, 1 << 62


@dataclass(frozen=True)
class Tuned:
    """The result of ``tune``: ``choice`` has for each program of ``list_candidates`` 0 or the number of an alternative,
    from 1 on; ``cublaslt`` is None where no product was faster with it."""

    choice: Tuple[int, ...]
    path: str
    record: Mapping[str, Any]
    cublaslt: Optional[CublasLt] = None

    def to_json(self, failure: str = "") -> Dict[str, Any]:
        """For ``Model.info``, plain JSON values.

        Args:
            failure: why cuBLASLt doesn't compute what it was to.
        """
        entry: Dict[str, Any] = {"choice": list(self.choice), "path": self.path, "cublaslt": None}
        if self.cublaslt is not None:
            version, rows = self.cublaslt
            entry["cublaslt"] = {
                "version": version,
                "rows": [list(item) for item in rows],
                "failure": failure,
            }
        return entry


def list_candidates(variant: Variant) -> List[List[str]]:
    """For each bucket the program that runs unless it was tuned, and its alternatives."""
    more = variant.alternatives or ((),) * len(variant.programs)
    return [[program, *others] for program, others in zip(variant.programs, more)]


def with_choice(variant: Variant, choice: Sequence[int]) -> Variant:
    """The variant with these programs in the place of its first ones."""
    programs = (items[number] for items, number in zip(list_candidates(variant), choice))
    return variant._replace(programs=tuple(programs))


class TuningFolder(KeptFolder):
    """The record of one variant on this GPU as it is now; it needn't exist."""

    def __init__(self, manifest: Manifest, variant: Variant, driver: Driver) -> None:
        assert variant.gpu is not None
        self.device = describe_device(driver, tensorrt="").key_json()
        del self.device["tensorrt"]
        self._counts = [len(items) for items in list_candidates(variant)]
        weights = manifest.weights[variant.gpu.precision]
        self.content = {
            "runtime": manifest.files[variant.runtime].sha256,
            "weights": manifest.files[weights].sha256,
            "programs": [
                [manifest.files[path].sha256 for path in items]
                for items in list_candidates(variant)
            ],
        }
        depends = {"version": RECORD_VERSION, "content": self.content, "device": self.device}
        self.key = digest(depends)
        super().__init__(os.path.join(cache_root(), "tuned", self.key))

    def read(self) -> Tuple[Optional[Tuned], str]:
        """(the record, ""), or (None, why there is nothing to be used)."""
        data, why = self.read_record(_NAME, _MAX_BYTES, "not tuned on this device")
        if data is None:
            return None, why
        try:
            return self._parse(data, self.join(_NAME)), ""
        except BundleError as error:
            return None, error.message

    def _parse(self, data: bytes, source: str) -> Tuned:
        problems = Problems(source)
        document = Field(problems, parse_json(data, source, _MAX_BYTES))
        version, key = document.at("record_version").integer(), document.at("key").string()
        count = len(self._counts)
        choice = document.at("choice").integers(count, count)
        cublaslt: Optional[CublasLt] = None
        if document.find("cublaslt").given:
            library = document.find("cublaslt")
            lists = library.at("rows").items(count, count)
            rows = tuple(item.integers(0, _MOST_PRODUCTS) for item in lists)
            numbers = [library.at("version").integer() or 0, *(x for item in rows for x in item)]
            if not all(-1 <= number <= _MOST_ROWS for number in numbers):
                library.refuse("number-range", "has numbers outside of their range")
            if any(number >= 0 for number in numbers[1:]):
                cublaslt = CublasLt(numbers[0], rows)
        problems.raise_if_any()
        fits = all(0 <= item < most for item, most in zip(choice, self._counts))
        if version != RECORD_VERSION or key != self.key or not fits:
            raise BundleError("{}: belongs to something else".format(source))
        return Tuned(choice, source, document.value, cublaslt)

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
