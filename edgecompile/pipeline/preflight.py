"""What is checked before a build or a plan begins: all that can be known without loading the model.

Every problem is found before anything is said, so that nobody mends one to meet the next.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from edgecompile.backends.compilation import NATIVE, check_runtime
from edgecompile.bundle.staging import FULL, Staging, free_space, nearest_folder
from edgecompile.errors import (
    BundleWriteError,
    CostError,
    DiskFullError,
    EdgecompileError,
    ModelError,
    PlanError,
)
from edgecompile.loaders.folders.files import (
    find_weights,
    optional_object,
    read_object,
    stored_shapes,
)
from edgecompile.loaders.folders.position_limits import stored_positions
from edgecompile.loaders.kinds import first_module
from edgecompile.machines.emulator import emulator_for
from edgecompile.models.options import LoadOptions
from edgecompile.models.tasks import SEQ2SEQ_LM, architecture_of, find_task
from edgecompile.onnx.export import need_onnx
from edgecompile.pipeline.request import AUTO, BuildRequest
from edgecompile.pipeline.seq2seq import refuse_auto
from edgecompile.pipeline.stages import Stages
from edgecompile.planning.cost_sources import runnable_variants
from edgecompile.planning.request import PlanRequest, longest_served
from edgecompile.progress import StepHandle
from edgecompile.runtime.format.schema import CAUSAL_LM
from edgecompile.targets.gpu import GPU_PRECISION
from edgecompile.targets.jetpack import find_jetpack
from edgecompile.targets.profile import TargetProfile
from edgecompile.tensorrt.torch_tensorrt_check import need_torch_tensorrt
from edgecompile.toolchain.compilers import find_toolchain
from edgecompile.units import format_bytes

__all__ = ["Preflight", "begin_build", "check_plan"]

#: Bytes by weight that a bundle holds at least. Half of the weights are taken for granted only:
#: heads that nobody asked for are left out.
_WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}
_USED = 0.5
#: The native runtime of one variant and its programs have at least so many bytes.
_CODE_BYTES = 1_000_000


class Preflight:
    """Problems as they are found, and what a person should know before the work begins."""

    def __init__(self) -> None:
        self.problems: list[EdgecompileError] = []
        self.notes: list[str] = []

    @contextmanager
    def finding(self) -> Iterator[None]:
        """Keeps an error for later."""
        try:
            yield
        except EdgecompileError as error:
            self.problems.append(error)

    def raise_if_any(self) -> None:
        """Raises the problem that was found; of several the first one's class, naming all."""
        if not self.problems:
            return
        first = self.problems[0]
        if len(self.problems) == 1:
            raise first
        lines = [
            f"  {problem.message}" + (f" ({problem.hint})" if problem.hint else "")
            for problem in self.problems
        ]
        raise type(first)(f"{len(lines)} problems stand in the way:\n" + "\n".join(lines))


@contextmanager
def begin_build(request: BuildRequest, profile: TargetProfile, stages: Stages) -> Iterator[Staging]:
    """Checks everything that a build needs and claims its output, for as long as the context lasts.

    Args:
        request: what is asked for.
        profile: its target.
        stages: runs the step, which notes what is worth knowing.

    Yields:
        Where the bundle will grow.

    Raises:
        EdgecompileError: of the class of the first problem; the message has them all.
    """
    staging = Staging(request.output, force=request.force)
    held = ExitStack()

    def check(step: StepHandle) -> None:
        found = Preflight()
        temporary = _check_temporary(found)
        _check_options(found, request, profile)
        _check_target(found, request, profile)
        weights = _check_model(found, request.model, request.load, request.plan)
        _check_texts(found, request)
        with found.finding():
            held.enter_context(staging)
        work = request.work_dir or temporary
        if work != temporary:
            _check_writable(found, work)
        if not any(isinstance(problem, BundleWriteError) for problem in found.problems):
            _check_space(found, _least_bytes(request, profile, weights), staging.output, work)
        found.raise_if_any()
        made = ", ".join(str(folder) for folder in staging.made[-1:])
        for note in (*([f"made the folder {made}"] if made else []), *found.notes):
            step.note(note)

    with held:
        stages.run("check what is needed", check)
        yield staging


def check_plan(
    model: str,
    load: LoadOptions,
    profile: TargetProfile,
    request: PlanRequest,
    *,
    precision: str,
    files: tuple[Path, ...] = (),
) -> None:
    """Checks everything that a plan needs.

    Args:
        model, load: the model, and how it is loaded.
        profile: the target.
        request: the traffic, and what decides the buckets.
        precision: what is asked for on a CPU.
        files: what will be written.

    Raises:
        EdgecompileError: of the class of the first problem; the message has them all.
    """
    found = Preflight()
    _check_temporary(found)
    runnable = _runnable(found, profile)
    if runnable is not None:
        _check_costs(found, profile, request, precision, bool(runnable))
    _check_model(found, model, load, request)
    for file in files:
        _check_writable(found, file.parent)
    found.raise_if_any()


def _check_options(found: Preflight, request: BuildRequest, profile: TargetProfile) -> None:
    precision = request.precision or (GPU_PRECISION if profile.gpu is not None else "fp32")
    with found.finding():
        check_runtime(request.runtime, profile, precision)
    if request.backend != AUTO:
        with found.finding():
            need_torch_tensorrt(profile, precision)
    if request.load.task == SEQ2SEQ_LM:
        with found.finding():
            refuse_auto(precision)
    if profile.gpu is not None:
        with found.finding():
            find_jetpack(profile, request.jetpack)
        with found.finding():
            need_onnx()


def _runnable(found: Preflight, profile: TargetProfile) -> frozenset[str] | None:
    """Names of the variants that this host can run; None where that can't be found out."""
    compilers = Preflight()
    for arch in profile.archs:
        with compilers.finding():
            find_toolchain(arch)
    found.problems += compilers.problems
    if compilers.problems or any(isinstance(p, BundleWriteError) for p in found.problems):
        return None
    names = None
    with found.finding(), tempfile.TemporaryDirectory(prefix="edgecompile-probe-") as folder:
        names = frozenset(v.name for v in runnable_variants(profile, Path(folder)))
    return names


def _check_target(found: Preflight, request: BuildRequest, profile: TargetProfile) -> None:
    """That the target can be compiled for, and what will run its code."""
    runnable = _runnable(found, profile)
    precision = request.precision or "fp32"
    if runnable is None:
        return
    _check_costs(found, profile, request.plan, precision, bool(runnable))
    if request.runtime != NATIVE:
        return
    for variant in profile.variants:
        if variant.name in runnable:
            continue
        emulator = emulator_for(variant, request.emulate)
        found.notes.append(
            f"this host can't run {variant.name}: it is packed without having been run ({emulator})"
            if isinstance(emulator, str)
            else f"this host can't run {variant.name}: {emulator.name} will, the golden vectors alone"
        )


def _check_costs(
    found: Preflight, profile: TargetProfile, request: PlanRequest, precision: str, here: bool
) -> None:
    """That there is something to plan by, where the target's code can't be timed on this host."""
    if here or profile.gpu is not None:
        return
    if precision == "auto":
        found.problems.append(
            PlanError(
                f"--precision auto tries what it chooses from, and this host can't run the code of "
                f"{profile.name}",
                hint="name a precision: --precision bf16 or int8; verify on the device",
            )
        )
    if request.quick or request.plan is not None or request.calibration is not None:
        return  # neither measured nor modelled
    if not (profile.peak_gflops and profile.bandwidth_gbs):
        found.problems.append(
            CostError(
                f"this host can't run the code of {profile.name}, so nothing can be measured, and "
                "its profile doesn't say how fast it is",
                hint="add peak_gflops and bandwidth_gbs to it (docs/targets.md), or give --calibration; "
                "build --quick and --plan need no costs",
            )
        )


def _check_model(found: Preflight, model: object, load: LoadOptions, request: PlanRequest) -> int:
    """That a model folder has what it needs and takes the lengths; gives the number of its weights, 0
    for other forms of models."""
    folder = Path(model).expanduser() if isinstance(model, str | Path) else None
    if folder is None or not folder.is_dir():
        return 0  # loading it says at once what is wrong
    weights = 0
    with found.finding():
        inner = first_module(folder)
        config = read_object(inner / "config.json", "the model's configuration")
        shapes = stored_shapes(find_weights(inner))
        weights = sum(math.prod(shape) for shape in shapes.values())
        if _reads_texts_whole(inner, config, load):
            settings = optional_object(
                inner / "sentence_bert_config.json", "the sentence encoder's configuration"
            )
            usual = load.max_length or settings.get("max_seq_length")
            limits = [stored_positions(config, shapes), usual if isinstance(usual, int) else None]
            known = [limit for limit in limits if limit is not None]
            longest_served(folder.resolve().name, min(known, default=None), request)
    return weights


def _reads_texts_whole(folder: Path, config: Mapping[str, Any], load: LoadOptions) -> bool:
    """Whether a model's lengths are those of texts, none of which is run in pieces."""
    generators = [find_task(name) for name in (CAUSAL_LM, SEQ2SEQ_LM)]
    name = architecture_of(config)
    generates = load.task in (CAUSAL_LM, SEQ2SEQ_LM) or any(t.names_head(name) for t in generators)
    return not generates and "vocab_size" in config and not (
        folder / "preprocessor_config.json"
    ).is_file()  # fmt: skip


def _check_texts(found: Preflight, request: BuildRequest) -> None:
    texts = request.texts
    if texts is None:
        return
    for path, what in ((texts.file, "file of texts"), (texts.tokenizer, "tokenizer")):
        if not os.access(path, os.R_OK):
            found.problems.append(ModelError(f"there is no {what} '{path}' that can be read"))


def _check_temporary(found: Preflight) -> Path:
    """That compilers can write their temporary files; gives the folder.

    Python passes over a TMPDIR that is full or missing, compilers don't.
    """
    folder = Path(os.environ.get("TMPDIR") or tempfile.gettempdir())
    _check_writable(found, folder)
    return folder


def _check_writable(found: Preflight, folder: Path) -> None:
    """That files can be made in a folder, or the folder itself."""
    try:
        with tempfile.TemporaryFile(dir=nearest_folder(folder)) as file:
            file.write(bytes(4096))  # a full disk still takes empty files
            file.flush()
    except OSError as error:
        kind = DiskFullError if error.errno in FULL else BundleWriteError
        found.problems.append(
            kind(
                f"{folder} can't be written: {error.strerror}",
                hint="name another place; TMPDIR is where temporary files go",
            )
        )


def _least_bytes(request: BuildRequest, profile: TargetProfile, weights: int) -> int:
    """What the bundle will have, and the work beside it, at the very least."""
    width = _WIDTHS.get(request.precision or "fp32", 1)  # auto may choose int8
    return int(_USED * width * weights) + _CODE_BYTES * len(profile.variants)


def _check_space(found: Preflight, needed: int, output: Path, work: Path) -> None:
    """That the disks have room for a bundle of so many bytes, and for what it is made from."""
    places = {output.parent: needed, work: needed}
    disks = {place: nearest_folder(place).stat().st_dev for place in places}
    for place in places:
        wanted = sum(size for other, size in places.items() if disks[other] == disks[place])
        free = free_space(place)
        if free < wanted:
            what = "the bundle" if place == output.parent else "the work"
            found.problems.append(
                DiskFullError(
                    f"{place}: too little space for {what} (needs {format_bytes(wanted)} or more, "
                    f"has {format_bytes(free)})",
                    hint="free some space there, or name another --output, --work-dir or TMPDIR",
                )
            )
