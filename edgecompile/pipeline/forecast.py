"""The time and the memory that building a language model takes, told before the work begins.

Both follow from the sizes of its matrices. What this machine does in a second is measured for a moment, and
the builds that came before tell how far such a forecast was off.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompile.files import write_json
from edgecompile.models.mapped import is_large
from edgecompile.pipeline.language_work import LanguageWork
from edgecompile.planning.costs.roofline import WEIGHT_BYTES
from edgecompile.planning.request import AUTO_PRECISION, CHECKPOINT_PRECISION
from edgecompile.precision import INT4, INT8
from edgecompile.toolchain.compilers import cache_directory
from edgecompile.units import format_bytes, format_duration

_RECORDS, _KEPT = "build-times.json", 7
#: By what a first forecast may be off to either side, and one with records.
_UNSURE, _SURE = 2.0, 1.5
_ROUNDED = (INT8, INT4, AUTO_PRECISION)
#: Tokens of the texts that rank layers.
_RANKING = 4 * 64
#: Seconds of Python's loop on the machine whose seconds are below.
_LOOP = 0.02
#: The process with torch, transformers and Inductor; then the moments that are held at a time.
_BASE, _MOMENTS = 900_000_000, 1 << 30
#: Bytes of float64 matrices beside the moments of a product's inputs, and of rows that are rounded at a time.
_FACTORS, _ROWS = 24, 1_500_000_000


@dataclass(frozen=True)
class Rates:
    """What this machine does.

    Attributes:
        narrow, wide: multiplications and additions a second of a product in float32 and in float64.
        loop: seconds of a loop in Python.
    """

    narrow: float
    wide: float
    loop: float


@dataclass(frozen=True)
class BuildForecast:
    """What a build will take.

    Attributes:
        seconds: the least and the largest number of seconds.
        basis: the basis of the seconds, in words.
        memory_bytes: bytes that have to be in memory.
        file_bytes: bytes of weights in temporary files, which memory caches; 0: they are in memory.
        work: the work.
        rates: the speeds that it was forecast by.
    """

    seconds: tuple[float, float]
    basis: str
    memory_bytes: int
    file_bytes: int
    work: LanguageWork
    rates: Rates

    def describe(self) -> str:
        """The forecast, as a sentence."""
        low, high = (format_duration(_rounded(value)) for value in self.seconds)
        files = (
            f", and {format_bytes(self.file_bytes)} of temporary files" if self.file_bytes else ""
        )
        return (
            f"building takes about {low} to {high} ({self.basis}), "
            f"{format_bytes(self.memory_bytes)} of memory{files}"
        )

    def shortage(self, memory: int | None, disk: int) -> str:
        """What there is too little of, naming both numbers; "" if there is enough.

        Args:
            memory: bytes that the process can have; None: not known.
            disk: free bytes for temporary files.
        """
        needed = self.memory_bytes
        said = []
        if disk < self.file_bytes:
            said.append(
                f"temporary files need {format_bytes(self.file_bytes)}, {format_bytes(disk)} are free, so "
                "that weights stay in memory"
            )
            needed += self.file_bytes
        if memory is not None and memory < needed:
            said.append(
                f"the build needs {format_bytes(needed)} of memory, {format_bytes(memory)} are free"
            )
        return "; ".join(said)

    def record(self, seconds: float) -> None:
        """Keeps how far the forecast was off, for the next ones; a cache that can't be written keeps nothing."""
        low, high = (_seconds(self.work, count, self.rates) for count in self.work.programs)
        records, name = _read_records(), self.work.precision
        kept = [*records.get(name, []), 2 * seconds / (low + high)][-_KEPT:]
        with suppress(OSError):
            _file().parent.mkdir(parents=True, exist_ok=True)
            write_json(_file(), {**records, name: kept})

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "seconds": [round(value, 1) for value in self.seconds],
            "basis": self.basis,
            "memory_bytes": self.memory_bytes,
            "file_bytes": self.file_bytes,
        }


def forecast_build(work: LanguageWork, rates: Rates | None = None) -> BuildForecast:
    """The forecast of a build.

    Args:
        work: the work.
        rates: speeds of this machine; None: they are measured, for half a second.
    """
    rates = rates or measure_rates()
    records = _read_records().get(work.precision, [])
    off = statistics.median(records) if records else 1.0
    spread = _SURE if records else _UNSURE
    low, high = (_seconds(work, count, rates) for count in work.programs)
    basis = "by this machine's speed"
    if records:
        plural = "s" if len(records) > 1 else ""
        basis += f" and {len(records)} earlier build{plural}"
    return BuildForecast(
        seconds=(low * off / spread, high * off * spread),
        basis=basis,
        memory_bytes=_memory(work),
        file_bytes=2 * 4 * work.numbers if is_large(work.numbers) else 0,
        work=work,
        rates=rates,
    )


def measure_rates() -> Rates:
    """What this machine does at the moment."""
    import torch

    def rate(dtype: torch.dtype) -> float:
        a, b = torch.ones(512, 1024, dtype=dtype), torch.ones(1024, 1024, dtype=dtype)
        return 2 * 512 * 1024 * 1024 / min(_time(lambda: a @ b) for _ in range(4))

    def loop() -> None:
        table: dict[int, int] = {}
        for number in range(200_000):
            table[number % 97] = 3 * number

    return Rates(rate(torch.float32), rate(torch.float64), _time(loop))


def _time(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return max(time.perf_counter() - begin, 1e-9)


def _seconds(work: LanguageWork, programs: int, rates: Rates) -> float:
    """The seconds that a build takes with so many programs.

    The constants are those of a Llama of 153 million weights, whose stages were timed one by one.
    """
    slow, numbers, matrices = rates.loop / _LOOP, work.numbers, len(work.shapes)
    token = 2 * numbers
    total = slow * (6 + 12 * numbers / 1e9)  # loading
    # Every program is traced and compared with eager; and stored.
    total += programs * (slow * (2 + 0.06 * matrices) + 5 * work.longest * token / rates.narrow)
    total += programs * 4 * numbers / 3e8
    if work.precision in _ROUNDED and work.calibrating:
        total += work.calibrating * token / rates.narrow
        for n, k in work.shapes:
            total += (4 / 3 * k**3 + 2 * work.calibrating * k**2) / rates.wide
            total += 3 * n * k**2 / rates.wide + slow * 2e-7 * n * k
    total += 2 * work.judging * token / rates.wide
    if work.precision == AUTO_PRECISION:
        total += matrices * _RANKING * token / rates.narrow
    total += programs * slow * (6 + 0.18 * matrices)  # compilers
    # Eager and transformers' own texts, beside which the bundle is run.
    return total + 8 * work.longest * token / rates.wide + slow * 200 * 4 * numbers / 8e9


def _memory(work: LanguageWork) -> int:
    """Bytes that have to be in memory: the packed weights, and what rounding the widest of them takes."""
    held = is_large(work.numbers)
    name = INT8 if work.precision in (AUTO_PRECISION, CHECKPOINT_PRECISION) else work.precision
    packed = int(WEIGHT_BYTES[name] * work.numbers)
    widest = max((k for _, k in work.shapes), default=0)
    rounding = 0
    if work.precision in _ROUNDED:
        moments = sum(8 * k * k for _, k in work.shapes)
        most = max((n * k for n, k in work.shapes), default=0)
        rounding = min(_MOMENTS, moments) + _FACTORS * widest**2 + min(_ROWS, 48 * most)
    floats = 0 if held else 2 * 4 * work.numbers
    return _BASE + packed + rounding + floats


def _rounded(seconds: float) -> float:
    """Two digits of seconds, and of minutes from ten on."""
    if seconds >= 600:
        return 60.0 * round(seconds / 60)
    step = 10.0 ** max(0, math.floor(math.log10(max(seconds, 1))) - 1)
    return round(seconds / step) * step


def _file() -> Path:
    return cache_directory() / _RECORDS


def _read_records() -> dict[str, list[float]]:
    """Ratios of earlier builds by precision; a damaged file counts as none."""
    try:
        data: Mapping[str, Any] = json.loads(_file().read_text())
        return {
            str(name): [float(value) for value in values if 0 < float(value) < 1e6]
            for name, values in data.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
