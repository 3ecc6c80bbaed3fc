"""Tries hostile bundles on every loader and compares what they say."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.agreement import Verdict, agree
from tests.hostile.cases import Corpus
from tests.hostile.loaders import Answer, Canary, Loader, NativeLoader, PythonLoader
from tests.hostile.toy import build_libraries

#: Address space that a loader may use, and CPU time for one bundle.
MEMORY_MIB = 2048
CPU_SECONDS = 20


@dataclass
class Finding:
    """A bundle that a loader did wrong by. ``number`` and the seed make it again."""

    number: int
    done: list[str]
    texts: list[str]


@dataclass
class Worst:
    """The largest figure of a loader, and the bundle that it belongs to."""

    value: float = 0.0
    number: int = -1

    def see(self, value: float, number: int) -> None:
        """Notes a figure."""
        if value > self.value:
            self.value, self.number = value, number


@dataclass
class Report:
    """The findings of a run. Sizes in MiB, times in seconds."""

    seed: int
    cases: int = 0
    accepted: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    endings: list[str] = field(default_factory=list)
    codes: Counter[int] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, Worst] = field(default_factory=dict)
    largest: Worst = field(default_factory=Worst)
    libraries_checked: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "seed": self.seed,
            "cases": self.cases,
            "accepted": self.accepted,
            "refused": self.cases - self.accepted,
            "seconds": round(self.seconds, 1),
            "codes": {str(code): count for code, count in sorted(self.codes.items())},
            "rules": dict(sorted(self.rules.items())),
            "changes": dict(sorted(self.changes.items())),
            "slowest_seconds": {
                name: {"seconds": round(item.value, 3), "case": item.number}
                for name, item in sorted(self.slowest.items())
            },
            "largest_python_mib": {
                "mib": round(self.largest.value, 1),
                "case": self.largest.number,
            },
            "libraries_checked": self.libraries_checked,
            "findings": [
                {"case": item.number, "changes": item.done, "problems": item.texts}
                for item in self.findings
            ],
            "endings": self.endings,
        }


@contextmanager
def work_folder() -> Iterator[Path]:
    """A folder in memory where there is one: thousands of bundles are written."""
    shared = Path("/dev/shm")
    parent = shared if os.access(shared, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="edgecompile-fuzz-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Fuzzer:
    """Loaders, a corpus and a canary; use it in a ``with`` statement.

    Args:
        seed: of the corpus.
        programs: host_cases.c, built in one way or several; "plain" runs with a memory limit.
    """

    def __init__(self, seed: int, programs: dict[str, Path], folder: Path) -> None:
        self.report = Report(seed)
        self._folder = folder
        self._trace = folder / "trace"
        variables = {
            "EDGECOMPILE_INTRUDER_TRACE": str(self._trace),
            "EDGECOMPILE_VARIANT": "",
            # It needs terabytes of address space, so what it may allocate at once is limited instead.
            "ASAN_OPTIONS": "detect_leaks=1:exitcode=99:allocator_may_return_null=1"
            f":max_allocation_size_mb={MEMORY_MIB // 4}",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
        self.loaders: list[Loader] = [
            PythonLoader(memory_mib=MEMORY_MIB, cpu_seconds=CPU_SECONDS, variables=variables)
        ]
        self.loaders += [
            NativeLoader(
                name,
                program,
                wall_seconds=10 * CPU_SECONDS,
                variables=variables,
                memory_mib=MEMORY_MIB if name == "plain" else None,
            )
            for name, program in programs.items()
        ]
        libraries = build_libraries()
        canary = folder / "canary"
        self.corpus = Corpus(seed, libraries, canary)
        self.corpus.valid().write(canary)
        (canary / "secret").write_bytes(b"secret")
        self._canary = Canary(canary)

    def __enter__(self) -> Fuzzer:
        valid = self._folder / "valid.ecb"
        self.corpus.valid().write(valid)
        # Also loads what is imported late, so that it isn't part of any case.
        for loader in self.loaders:
            answer = loader.ask(valid)
            assert answer.code == 0 and not answer.crashes, (loader.name, answer)
        return self

    def __exit__(self, *_: object) -> None:
        for loader in self.loaders:
            self.report.endings += loader.close()
        self._canary.close()

    def run(
        self,
        numbers: Sequence[int] | range,
        *,
        seconds: float = float("inf"),
        say: Callable[[str], None] = lambda text: None,
        keep: bool = False,
    ) -> Report:
        """Tries bundles until they or the seconds are used up."""
        report = self.report
        started = told = time.monotonic()
        for number in numbers:
            now = time.monotonic()
            if now - started >= seconds:
                break
            if now - told >= 10:
                told = now
                say(f"{report.cases} bundles, {len(report.findings)} findings")
            self._try(number, keep)
        report.seconds += time.monotonic() - started
        return report

    def _try(self, number: int, keep: bool) -> None:
        report = self.report
        case = self.corpus.case(number)
        folder = self._folder / "cases" / f"{number}.ecb"
        case.write(folder)
        texts: list[str] = []
        answers: list[tuple[str, Answer]] = []
        for loader in self.loaders:
            self._canary.events()
            answer = loader.ask(folder)
            answers.append((loader.name, answer))
            texts += answer.crashes
            events = self._canary.events()
            if events:
                texts.append(f"{loader.name}: {events} accesses outside of the bundle")
            if self._trace.exists():
                texts.append(f"{loader.name}: loaded a library whose hash isn't recorded")
                self._trace.unlink()
            report.slowest.setdefault(loader.name, Worst()).see(answer.seconds, number)
        first_name, first = answers[0]
        for name, answer in answers[1:]:
            texts += compare(first_name, first, name, answer)
        if keep:
            for name, answer in answers:
                print(f"{folder}: {case.done}\n{name}: {answer}")
        else:
            shutil.rmtree(folder)
        report.cases += 1
        report.accepted += first.code == 0
        report.codes[first.code] += 1
        report.rules.update(first.rules)
        report.changes.update(case.done)
        report.largest.see(first.kib / 1024, number)
        report.libraries_checked = max(report.libraries_checked, first.loaded)
        if texts:
            report.findings.append(Finding(number, case.done, texts))


def compare(first_name: str, first: Answer, name: str, answer: Answer) -> list[str]:
    """Where two loaders disagree about one bundle: both accept it, or both name the same rules."""
    if -1 in (first.code, answer.code):
        return []  # told already
    # Warming up a bundle of large sizes: how much there is depends on the loader's limit.
    if "out of memory" in first.text or "out of memory" in answer.text:
        return []
    python, c = Verdict(first.code, first.rules), Verdict(answer.code, answer.rules)
    if agree(python, c) or (first.code == answer.code and " more" in first.text):
        return []  # of many problems only the first ones are listed
    return [
        f"{first_name} ends with {first.code}, {name} with {answer.code}: "
        f"{first.text[:400]!r} and {answer.text[:400]!r}"
    ]


def build_programs() -> dict[str, Path]:
    """The C loader, plain and with AddressSanitizer and UndefinedBehaviorSanitizer."""
    from tests.native.c_runtime import c_library

    machine = c_library.MACHINES[c_library.NATIVE_ARCH]
    sources = [c_library.PROGRAMS / "host_cases.c"]
    return {
        "plain": c_library.build(machine, "host_cases", sources),
        "sanitized": c_library.build(machine, "host_cases", sources, flags=c_library.SANITIZERS),
    }


@contextmanager
def open_fuzzer(seed: int, programs: dict[str, Path]) -> Iterator[Fuzzer]:
    """A fuzzer in a folder that ends with it."""
    with ExitStack() as stack:
        folder = stack.enter_context(work_folder())
        yield stack.enter_context(Fuzzer(seed, programs, folder))
