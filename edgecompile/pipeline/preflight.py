"""Checks before a build or a plan: all that can be known without loading the model.

Every problem is found before anything is said, so that nobody mends one to meet the next.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from edgecompile.bundle.staging import FULL, Staging, free_space, nearest_folder
from edgecompile.errors import (
    BundleWriteError,
    CostError,
    DiskFullError,
    EdgecompileError,
    ModelError,
    PlanError,
    UsageError,
)
from edgecompile.hosts.detection import runnable_variants
from edgecompile.hosts.emulator import emulator_for
from edgecompile.loaders.folders.files import (
    find_weights,
    optional_object,
    read_object,
    stored_shapes,
)
from edgecompile.loaders.folders.position_limits import stored_positions
from edgecompile.loaders.kinds import find_gguf, first_module
from edgecompile.loaders.load import check_model
from edgecompile.models.mapped import mapped_folder
from edgecompile.models.options import LoadOptions
from edgecompile.models.tasks import SEQ2SEQ_LM, architecture_of, find_task
from edgecompile.pipeline.backend import compiler_checks
from edgecompile.pipeline.backends import find_backends
from edgecompile.pipeline.forecast import forecast_build
from edgecompile.pipeline.language_work import find_work
from edgecompile.pipeline.request import BuildRequest
from edgecompile.pipeline.run import Run
from edgecompile.pipeline.seq2seq import refuse_auto
from edgecompile.planning.costs.roofline import WEIGHT_BYTES
from edgecompile.planning.generation_plan import refuse_generation, refuse_two_parts
from edgecompile.planning.request import AUTO_PRECISION, PlanRequest
from edgecompile.planning.scope import longest_served
from edgecompile.progress import StepHandle
from edgecompile.runtime.format.manifest.schema import CAUSAL_LM, TORCH
from edgecompile.runtime.gpu.device import main_memory
from edgecompile.targets.profile import TargetProfile
from edgecompile.toolchain.torch_versions import note_untested
from edgecompile.units import format_bytes

#: The share of the weights that is taken for granted: heads that nobody asked for are left out.
_USED = 0.5
#: The native runtime of one variant and its programs have at least so many bytes.
_CODE_BYTES = 1_000_000


class Preflight:
    """Problems as they are found, and remarks for the user before the work begins."""

    def __init__(self) -> None:
        self.problems: list[EdgecompileError] = []
        self.notes: list[str] = []

    @contextmanager
    def finding(self) -> Iterator[None]:
        """Keeps an error for later."""
        try:
            yield
        except EdgecompileError as error:
            if str(error) not in map(str, self.problems):  # several steps may need one compiler
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
def begin_build(run: Run) -> Iterator[Staging]:
    """Checks everything that a build needs and claims its output, for as long as the context lasts.

    Args:
        run: the build; its first stage notes what is worth knowing.

    Yields:
        Where the bundle will grow.

    Raises:
        EdgecompileError: there are problems: the class is that of the first, the message has them
            all.
    """
    request, profile = run.request, run.profile
    staging = Staging(request.bundle, force=request.force)
    held = ExitStack()

    def check(step: StepHandle) -> None:
        preflight = Preflight()
        if note := note_untested():
            preflight.notes.append(note)
        temporary = _check_temporary(preflight)
        _check_options(preflight, request, profile)
        _check_target(preflight, request, profile)
        weights = _check_model(preflight, request, profile)
        _check_texts(preflight, request.plan)
        with preflight.finding():
            held.enter_context(staging)
        work = request.work_dir or temporary
        if work != temporary:
            _check_writable(preflight, work)
        if not any(isinstance(problem, BundleWriteError) for problem in preflight.problems):
            _check_space(preflight, _least_bytes(request, profile, weights), staging.output, work)
        preflight.raise_if_any()
        work_size = find_work(request, profile)
        if work_size is not None:
            step.update(text="measuring this machine")
            run.forecast = forecast = forecast_build(work_size)
            preflight.notes.append(forecast.describe())
            if shortage := forecast.shortage(main_memory(), free_space(mapped_folder())):
                run.notes.add(shortage)
                preflight.notes.append(f"warning: {shortage}")
        made = ", ".join(str(folder) for folder in staging.made[-1:])
        for note in (*([f"made the folder {made}"] if made else []), *preflight.notes):
            step.note(note)

    with held:
        run.stage("check what is needed", check)
        yield staging


def begin_plan(run: Run, files: Iterable[Path] = ()) -> None:
    """Checks everything that a plan needs.

    Args:
        run: the plan.
        files: the files that will be written besides those of the work folder.

    Raises:
        EdgecompileError: there are problems: the class is that of the first, the message has them
            all.
    """
    preflight, request = Preflight(), run.request
    if note := note_untested():
        run.notes.add(note)
    _check_temporary(preflight)
    runnable = _runnable(preflight, run.profile)
    if runnable is not None:
        _check_costs(preflight, run.profile, request.plan, bool(runnable))
    _check_model(preflight, request, run.profile)
    folders = [] if request.work_dir is None else [request.work_dir]
    for folder in dict.fromkeys([*folders, *(file.parent for file in files)]):
        _check_writable(preflight, folder)
    preflight.raise_if_any()


def _check_options(preflight: Preflight, request: BuildRequest, profile: TargetProfile) -> None:
    if request.load.task == SEQ2SEQ_LM:
        with preflight.finding():
            refuse_auto(request.plan.precision_for(profile))
    for backend in find_backends(request.plan, profile):
        for check in backend.checks(request.plan, profile):
            with preflight.finding():
                check()


def _runnable(preflight: Preflight, profile: TargetProfile) -> frozenset[str] | None:
    """Names of the variants that this host can run; None where that can't be found out."""
    if any(isinstance(p, BundleWriteError) for p in preflight.problems):
        return None
    names = None
    with preflight.finding(), tempfile.TemporaryDirectory(prefix="edgecompile-probe-") as folder:
        names = frozenset(v.name for v in runnable_variants(profile, Path(folder)))
    return names


def _check_target(preflight: Preflight, request: BuildRequest, profile: TargetProfile) -> None:
    """Checks that the target can be compiled for, and notes which variants can be run here."""
    runnable = _runnable(preflight, profile)
    if runnable is None:
        return
    _check_costs(preflight, profile, request.plan, bool(runnable))
    if request.plan.backend == TORCH:
        return
    for variant in profile.variants:
        if variant.name in runnable:
            continue
        emulator = emulator_for(variant, request.plan.emulation)
        preflight.notes.append(
            f"this host can't run {variant.name}: it is packed without having been run ({emulator})"
            if isinstance(emulator, str)
            else f"this host can't run {variant.name}: {emulator.name} will, the golden vectors alone"
        )


def _check_costs(
    preflight: Preflight, profile: TargetProfile, request: PlanRequest, here: bool
) -> None:
    """That there is something to plan by: compilers for what is timed on this host, or the profile's speeds."""
    given = request.quick or request.plan is not None or request.calibration is not None
    if profile.gpu is not None:
        return
    if here:
        if request.precision == AUTO_PRECISION or not given:
            for check in compiler_checks(profile):
                with preflight.finding():
                    check()
        return
    if request.precision == AUTO_PRECISION:
        preflight.problems.append(
            PlanError(
                f'`precision="auto"` tries what it chooses from, and this host can\'t run the code of '
                f"{profile.name}",
                hint='name one: `precision="bf16"` or `precision="int8"`; verify on the device',
            )
        )
    if not given and not (profile.peak_gflops and profile.bandwidth_gbs):
        preflight.problems.append(
            CostError(
                f"this host can't run the code of {profile.name}, so nothing can be measured, and "
                "its profile doesn't say how fast it is",
                hint="add peak_gflops and bandwidth_gbs to it (docs/targets.md), or give a `calibration`; "
                "a build with `quick=True` or a `plan` needs no costs",
            )
        )


def _check_generation(
    preflight: Preflight, request: BuildRequest, profile: TargetProfile, task: str | None
) -> None:
    """That a model which generates is for what can run it; the task may be known from a folder."""
    if profile.gpu is None or task not in (CAUSAL_LM, SEQ2SEQ_LM):
        return
    model = request.model
    name = Path(model).name if isinstance(model, str | Path) else type(model).__name__
    with preflight.finding():
        if task == SEQ2SEQ_LM:
            refuse_two_parts(name)
        if request.plan.uses_tensorrt(profile):
            refuse_generation(name, "TensorRT")


def _check_model(preflight: Preflight, request: BuildRequest, profile: TargetProfile) -> int:
    """That a model is there, and that a folder has what it needs and takes the lengths; gives the
    number of its weights, 0 for other forms of models."""
    model, load = request.model, request.load
    if profile.gpu is not None and load.cache_precision not in (None, "fp32"):
        preflight.problems.append(
            UsageError(
                f"Target {profile.name} has a GPU: `cache_precision` is for caches on CPUs",
                hint="leave it out",
            )
        )
    _check_generation(preflight, request, profile, load.task)
    if isinstance(model, str | Path):
        with preflight.finding():
            check_model(model, load)
        if preflight.problems[-1:] and isinstance(preflight.problems[-1], ModelError):
            return 0
    folder = Path(model).expanduser() if isinstance(model, str | Path) else None
    if folder is not None and find_gguf(folder) is not None:
        _check_generation(preflight, request, profile, CAUSAL_LM)
        return 0
    if folder is None or not folder.is_dir():
        return 0  # loading it says at once what is wrong
    weights = 0
    with preflight.finding():
        inner = first_module(folder)
        config = read_object(inner / "config.json", "the model's configuration")
        shapes = stored_shapes(find_weights(inner))
        weights = sum(math.prod(shape) for shape in shapes.values())
        if load.task is None and find_task(CAUSAL_LM).names_head(architecture_of(config)):
            _check_generation(preflight, request, profile, CAUSAL_LM)
        if _reads_texts_whole(inner, config, load):
            settings = optional_object(
                inner / "sentence_bert_config.json", "the sentence encoder's configuration"
            )
            usual = load.max_length or settings.get("max_seq_length")
            limits = [stored_positions(config, shapes), usual if isinstance(usual, int) else None]
            least = min((limit for limit in limits if limit is not None), default=None)
            if request.plan.lengths is not None:
                name = folder.resolve().name
                longest_served(name, least, request.plan)
    return weights


def _reads_texts_whole(folder: Path, config: Mapping[str, Any], load: LoadOptions) -> bool:
    """Whether a model's lengths are those of texts, none of which is run in pieces."""
    generators = [find_task(name) for name in (CAUSAL_LM, SEQ2SEQ_LM)]
    name = architecture_of(config)
    generates = load.task in (CAUSAL_LM, SEQ2SEQ_LM) or any(t.names_head(name) for t in generators)
    return not generates and "vocab_size" in config and not (
        folder / "preprocessor_config.json"
    ).is_file()  # fmt: skip


def _check_texts(preflight: Preflight, request: PlanRequest) -> None:
    texts = request.texts
    if texts is None:
        return
    for path, what in ((texts.file, "file of texts"), (texts.tokenizer, "tokenizer")):
        if not os.access(path, os.R_OK):
            preflight.problems.append(ModelError(f"there is no {what} '{path}' that can be read"))


def _check_temporary(preflight: Preflight) -> Path:
    """That compilers can write their temporary files; gives the folder.

    Python passes over a TMPDIR that is full or missing, compilers don't.
    """
    folder = Path(os.environ.get("TMPDIR") or tempfile.gettempdir())
    _check_writable(preflight, folder)
    return folder


def _check_writable(preflight: Preflight, folder: Path) -> None:
    """That files can be made in a folder, or the folder itself."""
    try:
        with tempfile.TemporaryFile(dir=nearest_folder(folder)) as file:
            file.write(bytes(4096))  # a full disk still takes empty files
            file.flush()
    except OSError as error:
        kind = DiskFullError if error.errno in FULL else BundleWriteError
        preflight.problems.append(
            kind(
                f"{folder} can't be written: {error.strerror}",
                hint="name another place; TMPDIR is where temporary files go",
            )
        )


def _least_bytes(request: BuildRequest, profile: TargetProfile, weights: int) -> int:
    """The least bytes of the bundle and of the work beside it."""
    width = WEIGHT_BYTES.get(request.plan.precision_for(profile), 1)  # auto may choose int8
    return int(_USED * width * weights) + _CODE_BYTES * len(profile.variants)


def _check_space(preflight: Preflight, needed: int, output: Path, work: Path) -> None:
    """That the disks have room for a bundle of so many bytes, and for what it is made from."""
    places = {output.parent: needed, work: needed}
    disks = {place: nearest_folder(place).stat().st_dev for place in places}
    for place in places:
        required = sum(size for other, size in places.items() if disks[other] == disks[place])
        free = free_space(place)
        if free < required:
            what = "the bundle" if place == output.parent else "the work"
            preflight.problems.append(
                DiskFullError(
                    f"{place}: too little space for {what} (needs {format_bytes(required)} or "
                    f"more, has {format_bytes(free)})",
                    hint="free some space there, or name another `output`, `work_dir` or TMPDIR",
                )
            )
