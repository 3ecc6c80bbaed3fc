"""``tune``: which of a bundle's programs for a GPU are the fastest on this device.

A bundle may have alternatives of its programs, which compute the same with other tiles. They are tested with the
golden vectors and timed in turns, and what was chosen is kept for the loader. The same is done with products that
cuBLASLt may compute, where there is one. Whatever moment this is killed at, the loader finds the record from before, or
none.
"""

import contextlib
import os
import platform
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ..base.errors import BundleError, GpuError, InputError, SelftestError, UnsupportedHostError
from ..call.replay import run_cases
from ..cpu.host import VARIANT_VARIABLE, Host, architecture, describe_host
from ..format.files.folder import BundleFolder
from ..format.files.weights import map_weights
from ..format.manifest.schema import TRITON, Manifest, Variant
from ..gpu.engines import PLANNED
from ..open.bundle import OpenBundle
from ..open.choose import Opened
from ..stats.file import format_time
from ..triton.driver import Driver
from ..triton.library import load_variant_library
from ..triton.programs import CublasLt
from ..triton.rehearsals import Rehearsals
from ..triton.tuning import Tuned, TuningFolder, list_candidates, with_choice
from ..triton.variant import find_refusal, open_triton_variant
from .prepared import choose_sizes
from .products import format_products, format_version, measure_models, tune_products
from .rounds import check_budget

Say = Callable[[str], None]
#: An alternative has to save this share of the time: less is not told from noise.
LEAST_GAIN = 0.02


def tune_bundle(
    path: str,
    *,
    variant: Optional[str] = None,
    seconds: float = 20.0,
    force: bool = False,
    say: Say = lambda text: None,
) -> Dict[str, Any]:
    """Chooses a program for each bucket, unless that was done before on this device.

    Args:
        path: the bundle.
        variant: a variant of it; None: that of Triton kernels for this machine that ranks highest.
        seconds: the time for measuring programs, and again for matmuls; every run is made at least
            20 times.
        force: measure again.
        say: a function that gets a line of text for every step.

    Returns:
        Plain JSON values; docs/gpu.md lists them.

    Raises:
        BundleError: the bundle is malformed or damaged.
        UnsupportedHostError: it has no Triton variant for this machine.
        GpuUnavailableError: there is no driver, or no GPU that fits.
        InputError: there are no alternatives to choose from, or ``seconds`` is out of its range.
        SelftestError: no program of a bucket reproduces the golden vectors.
        EngineCacheError: the cache can't be used.
        GpuError: CUDA failed otherwise.
    """
    check_budget(seconds, 0)
    started = time.monotonic()
    folder = BundleFolder(path)
    try:
        folder.check_sizes()
        tuner = _Tuner(folder, choose_variant(folder.manifest, variant), seconds, say)
        tuning_folder = TuningFolder(folder, tuner.variant)
        tuned, why = tuner.read(tuning_folder)
        state = "already tuned"
        if tuned is None or force:
            with tuning_folder.locked(say):
                # Whoever held it before may have done the work.
                tuned, why = (None, "--force") if force else tuner.read(tuning_folder)
                if tuned is None:
                    say("measuring: {}".format(why))
                    tuning_folder.tidy()
                    state, tuned = "tuned", tuning_folder.write(tuner.run())
    finally:
        folder.close()
    report = _report(tuner, tuning_folder, tuned, state)
    if state == "already tuned" and why:
        report["notes"] = [*report["notes"], why]
    report["seconds"] = time.monotonic() - started
    return report


def choose_variant(manifest: Manifest, name: Optional[str]) -> Variant:
    """The variant of Triton kernels for this machine: the one named, or that of the highest rank.

    Raises:
        UnsupportedHostError: there is none; names what there is.
        GpuUnavailableError: there is no driver, or no GPU that fits.
        InputError: it has no alternatives.
    """
    name = name or os.environ.get(VARIANT_VARIABLE) or None
    arch = architecture(platform.machine())
    fitting = [
        item
        for item in sorted(manifest.variants, key=lambda item: -item.rank)
        if item.backend == TRITON and item.arch == arch and name in (None, item.name)
    ]
    if not fitting:
        listed = ["{} (backend {})".format(item.name, item.backend) for item in manifest.variants]
        text = "the bundle has no variant of Triton kernels{} for {}, only {}"
        named = "" if name is None else " called {!r}".format(name)
        raise UnsupportedHostError(
            text.format(named, arch, ", ".join(listed)),
            "variants for CPUs have nothing to tune; an engine of TensorRT is built by finish",
        )
    refusals = [find_refusal(item) for item in fitting]
    variant = next((item for item, error in zip(fitting, refusals) if error is None), None)
    if variant is None:
        assert refusals[0] is not None
        raise refusals[0]
    if not variant.tunable:
        raise InputError(
            "the variant {} has one program for each bucket: nothing to choose from".format(
                variant.name
            ),
            "build the bundle with --alternatives 2, or use it as it is",
        )
    return variant


class _Tuner:
    def __init__(self, folder: BundleFolder, variant: Variant, seconds: float, say: Say) -> None:
        self.folder, self.manifest, self.variant = folder, folder.manifest, variant
        self.say, self.seconds = say, seconds
        self.notes: List[str] = []
        self._counts = [len(items) for items in list_candidates(variant)]
        self._cublaslt, self._lacking = self._find_cublaslt()

    def _find_cublaslt(self) -> Tuple[int, str]:
        """The version of cuBLASLt, or (0, why there is none or none is wanted)."""
        assert self.variant.gpu is not None
        if not self.variant.gpu.cublaslt:
            return 0, "there is no product for it"
        library = load_variant_library(self.folder, self.variant)
        try:
            library.use(Driver.load())
            return library.cublaslt_version(), ""
        except GpuError as error:
            return 0, error.message

    def read(self, tuning_folder: TuningFolder) -> Tuple[Optional[Tuned], str]:
        """(the record, what to warn of) where it tells of this cuBLASLt or there is none here, else (None, why not).

        Environments with it and without may share a cache.
        """
        tuned, why = tuning_folder.read()
        if tuned is not None:
            measured = (tuned.record.get("cublaslt") or {"version": 0})["version"]
            if self._cublaslt not in (0, measured):
                return None, "not tuned with this cuBLASLt"
            if tuned.uses_cublaslt and not self._cublaslt:
                text = "tuned with {}, which isn't here, so that Triton's kernels compute all: {}"
                why = text.format(format_version(measured), self._lacking)
        return tuned, why

    def run(self) -> Dict[str, Any]:
        """Tests and measures everything; what the record has to say."""
        host = describe_host(self.folder)
        with contextlib.ExitStack() as stack:
            models = [
                stack.enter_context(contextlib.closing(self._open_candidate(number, host)))
                for number in range(max(self._counts))
            ]
            right = self._test(models)
            busy = sum(len(numbers) > 1 for numbers in right)
            buckets = [
                self._measure(models, bucket, numbers, self.seconds / max(busy, 1))
                for bucket, numbers in enumerate(right)
            ]
        choice = [item["chosen"] for item in buckets]
        return {
            "choice": choice,
            "buckets": buckets,
            "cublaslt": self._tune_products(choice, host),
            "notes": self.notes,
            "mode": PLANNED,
            "tuned": format_time(time.time()),
        }

    def _tune_products(self, choice: Sequence[int], host: Host) -> Dict[str, Any]:
        """Measures products by cuBLASLt, for the record."""
        if not self._cublaslt:
            self.say("no cuBLASLt: " + self._lacking)
            rows: List[List[int]] = [[] for _ in choice]
            return {"version": 0, "rows": rows, "measured": [], "why": self._lacking}
        library = load_variant_library(self.folder, self.variant)
        assert self.variant.gpu is not None
        weights = map_weights(self.folder, self.manifest.weights[self.variant.gpu.precision], False)
        chosen = with_choice(self.variant, choice)
        products = tune_products(
            lambda cublaslt, mode: self._open(choice, host, cublaslt, False, mode),
            Rehearsals(library, self.folder, chosen, weights),
            self._cublaslt,
            self.seconds,
            self.say,
            self._note,
        )
        return {"version": self._cublaslt, **products._asdict(), "why": ""}

    def _open_candidate(self, number: int, host: Host) -> OpenBundle:
        """The bundle with that candidate of every program, or with the first where it has fewer."""
        choice = [number if number < count else 0 for count in self._counts]
        return self._open(choice, host, None, number == 0, PLANNED)

    def _open(
        self,
        choice: Sequence[int],
        host: Host,
        cublaslt: Optional[CublasLt],
        check: bool,
        mode: str,
    ) -> OpenBundle:
        own = BundleFolder(self.folder.path)
        try:
            if own.manifest_sha256 != self.folder.manifest_sha256:
                raise BundleError("{}: was exchanged meanwhile".format(own.path))
            record = {"choice": list(choice), "cublaslt": cublaslt and cublaslt._asdict()}
            programs = open_triton_variant(own, self.variant, mode, check, record)
        except BaseException:
            own.close()
            raise
        return OpenBundle(own, host, Opened(self.variant, {}, programs))

    def _test(self, models: Sequence[OpenBundle]) -> List[List[int]]:
        """For each bucket the candidates that reproduce its golden vectors."""
        right: List[List[int]] = [[] for _ in self._counts]
        for number, model in enumerate(models):
            self.say("golden vectors: candidate {} of {}".format(number + 1, len(models)))
            cases = run_cases(model)
            for bucket, count in enumerate(self._counts):
                if number >= count:
                    continue
                own = [case for case in cases if case["bucket"] == bucket]
                wrong = [case for case in own if not case["ok"]]
                if own and not wrong:
                    right[bucket].append(number)
                    continue
                why = wrong[0].get("error") or "it differs" if wrong else "there is none"
                text = "bucket {}: candidate {} is dropped, its golden vector: {}"
                self._note(text.format(bucket, number + 1, why))
        empty = [str(bucket) for bucket, numbers in enumerate(right) if not numbers]
        if empty:
            text = "no program of bucket {} reproduces the golden vectors: {}"
            raise SelftestError(text.format(", ".join(empty), "; ".join(self.notes)))
        return right

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.say("warning: " + text)

    def _measure(
        self,
        models: Sequence[OpenBundle],
        bucket: int,
        numbers: Sequence[int],
        seconds: float,
    ) -> Dict[str, Any]:
        """The times of a bucket's candidates, and which one is chosen."""
        sizes = choose_sizes(self.manifest, bucket)
        entry: Dict[str, Any] = {"bucket": bucket, "sizes": sizes, "chosen": numbers[0], "ms": {}}
        if len(numbers) < 2:
            return entry
        text = "bucket {} ({}): {} candidates"
        self.say(text.format(bucket, self.manifest.buckets[bucket], len(numbers)))
        chosen = [models[number] for number in numbers]
        times = measure_models(chosen, bucket, sizes, seconds)
        entry["ms"] = {str(number): item for number, item in zip(numbers, times)}
        entry["chosen"] = choose_fastest(numbers, times)
        return entry


def choose_fastest(numbers: Sequence[int], times: Sequence[Sequence[float]]) -> int:
    """The candidate that takes least, the first one where another saves next to nothing.

    Args:
        numbers: the numbers of the candidates, ascending.
        times: milliseconds of each at the bucket's hint, which counts twice, and at its ends.
    """

    def cost(own: Sequence[float]) -> float:
        shares = [ms / max(first, 1e-9) for ms, first in zip(own, times[0])]
        return (shares[0] + sum(shares)) / (1 + len(shares))

    costs = [cost(own) for own in times]
    best = min(range(len(costs)), key=costs.__getitem__)
    return numbers[best] if costs[best] <= costs[0] * (1 - LEAST_GAIN) else numbers[0]


def _report(tuner: _Tuner, tuning_folder: TuningFolder, tuned: Tuned, state: str) -> Dict[str, Any]:
    return {
        "ok": True,
        "state": state,
        "bundle": tuner.folder.path,
        "name": tuner.manifest.name,
        "manifest_sha256": tuner.folder.manifest_sha256,
        "variant": tuner.variant.name,
        "device": tuning_folder.device,
        "key": tuning_folder.key,
        "record": tuned.path,
        "choice": list(tuned.choice),
        "buckets": tuned.record.get("buckets"),
        "cublaslt": tuned.record.get("cublaslt"),
        "notes": tuned.record.get("notes") or [],
        "ranges": [str(item) for item in tuner.manifest.buckets],
    }


def format_tune(report: Mapping[str, Any]) -> List[str]:
    """The report for people, a line each."""
    text = "{}: {} on {}"
    lines = [text.format(report["state"], report["variant"], report["device"]["name"])]
    for entry in report["buckets"] or []:
        lines.append(_format_bucket(entry, report["ranges"][entry["bucket"]]))
    if report["cublaslt"]:
        lines += format_products(report["cublaslt"])
    lines += ["warning: " + text for text in report["notes"]]
    lines.append("record {}".format(report["record"]))
    return lines


def _format_bucket(entry: Mapping[str, Any], spec: str) -> str:
    times: Dict[str, List[float]] = entry["ms"]
    head = "bucket {} ({}): ".format(entry["bucket"], spec)
    if not times:
        return head + "candidate {}, there is no other".format(entry["chosen"] + 1)
    sizes = ", ".join("{} {}".format(axis, size) for axis, size in entry["sizes"][0].items())
    shown = ["{}: {:.4f}".format(int(number) + 1, ms[0]) for number, ms in times.items()]
    text = "candidate {}; ms at {}: {}"
    return head + text.format(entry["chosen"] + 1, sizes, ", ".join(shown))
