"""The work that the build of a language model is, as far as its files and the request tell it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from edgecompile.backends import CPU
from edgecompile.loaders.checkpoints.gguf_header import read_gguf_header
from edgecompile.loaders.checkpoints.packing import AWQ, GPTQ, Packing, read_packing
from edgecompile.loaders.folders.files import find_weights, read_object, stored_shapes
from edgecompile.loaders.kinds import find_gguf
from edgecompile.models.tasks import architecture_of, find_task
from edgecompile.pipeline.request import BuildRequest
from edgecompile.planning.request import AUTO_PRECISION, CHECKPOINT_PRECISION
from edgecompile.precision import FP32
from edgecompile.runtime.format.manifest.schema import CAUSAL_LM
from edgecompile.targets.profile import TargetProfile

#: As :mod:`edgecompile.models.language_texts` has them, which loads torch.
_MOST_TOKENS, _JUDGING, _CALIBRATING, _OWN = 256, 24, 48, 8 * 48
_LINES, _LETTERS = 2000, 4
_LONGEST, _PROGRAMS = 512, 2
_MOST_PROGRAMS = 6
#: Ends of names of packed numbers; gpt-oss's have 16 bytes a block of 32.
_PACKED, _BLOCKS = ("qweight", "weight_packed"), "_blocks"
#: Ends of names of scales and zeros.
_STEPS = ("scales", "qzeros", "weight_scale", "weight_zero_point")


@dataclass(frozen=True)
class LanguageWork:
    """The sizes that decide the time of a language model's build.

    Attributes:
        shapes: sizes ``(N, K)`` of its matrices.
        precision: name of the precision.
        calibrating, judging: tokens of the texts that calibrate, and of those that judge.
        longest: tokens of the longest run.
        programs: the least and the largest number of programs, those of every variant counted.
    """

    shapes: Sequence[tuple[int, int]]
    precision: str
    calibrating: int
    judging: int
    longest: int
    programs: tuple[int, int]

    @property
    def numbers(self) -> int:
        """The number of its weights."""
        return sum(n * k for n, k in self.shapes)


def find_work(request: BuildRequest, profile: TargetProfile) -> LanguageWork | None:
    """The work of a request whose files were checked; None where it isn't a language model for CPUs.

    Raises:
        ModelError: a file was damaged meanwhile.
    """
    plan, load = request.plan, request.load
    if profile.gpu is not None or plan.backend_for(profile) != CPU:
        return None
    if not isinstance(request.model, str | Path) or load.task not in (None, CAUSAL_LM):
        return None
    found = _find_shapes(Path(request.model).expanduser(), load.task)
    if found is None:
        return None
    shapes, quantized = found
    precision = plan.precision or (CHECKPOINT_PRECISION if quantized else FP32.name)
    calibrating, judging = _tokens(None if plan.texts is None else plan.texts.file)
    if precision == FP32.name:
        calibrating = judging = 0
    elif precision == CHECKPOINT_PRECISION:
        calibrating = 0
    longest = plan.max_length or load.max_length or _LONGEST
    programs = (_PROGRAMS, plan.max_buckets or _MOST_PROGRAMS)
    if plan.quick:
        programs = (_PROGRAMS, _PROGRAMS)
    elif plan.plan is not None:
        programs = (len(plan.plan.buckets), len(plan.plan.buckets))
    low, high = (count * max(1, len(profile.variants)) for count in programs)
    if precision == AUTO_PRECISION:
        high += 2 * _PROGRAMS  # those that are tried
    context = min(longest, load.max_context or longest)
    return LanguageWork(shapes, precision, calibrating, judging, context, (low, high))


def _find_shapes(path: Path, task: str | None) -> tuple[list[tuple[int, int]], bool] | None:
    """The matrices' sizes, and whether the checkpoint is quantized; None: it's no language model's."""
    file = find_gguf(path)
    if file is not None:
        header = read_gguf_header(file)
        return _matrices({t.name: t.shape for t in header.tensors.values()}, None), True
    if not path.is_dir() or not (path / "config.json").is_file():
        return None
    config = read_object(path / "config.json", "the model's configuration")
    if task is None and not find_task(CAUSAL_LM).names_head(architecture_of(config)):
        return None
    packing = read_packing(path, config)
    return _matrices(stored_shapes(find_weights(path)), packing), packing is not None


def _matrices(
    shapes: Mapping[str, tuple[int, ...]], packing: Packing | None
) -> list[tuple[int, int]]:
    made = []
    for name, shape in shapes.items():
        if len(shape) < 2:
            continue
        if packing is not None and name.endswith(_PACKED):
            shape = _unpacked(shape, packing)
        elif packing is not None and name.endswith(_BLOCKS):
            shape = (*shape[:-2], 2 * shape[-2] * shape[-1])
        elif packing is not None and name.endswith(_STEPS):
            continue
        made.append((math.prod(shape[:-1]), shape[-1]))
    return made


def _unpacked(shape: tuple[int, ...], packing: Packing) -> tuple[int, ...]:
    """The sizes ``(N, K)`` of a matrix by those of its packed numbers."""
    held = 2 if packing.floats else 32 // packing.bits  # in a number of the file
    *rows, last = shape
    if packing.method == GPTQ:  # [K / held, N]
        return (last, math.prod(rows) * held)
    if packing.method == AWQ:  # [K, N / held]
        return (last * held, math.prod(rows))
    return (*rows, last * held)


def _tokens(file: Path | None) -> tuple[int, int]:
    """Tokens of the texts that calibrate, and of those that judge, by the letters of the first lines."""
    if file is None:
        return _OWN, _OWN
    with file.open("rb") as stream:
        lines = [line for line in islice(stream, _LINES) if line.strip()]
    if not lines:
        return _OWN, _OWN
    each = sum(min(_MOST_TOKENS, 1 + len(line) // _LETTERS) for line in lines) / len(lines)
    judging = max(1, min(_JUDGING, len(lines) // 3))
    return round(each * min(_CALIBRATING, len(lines) - judging)), round(each * judging)
