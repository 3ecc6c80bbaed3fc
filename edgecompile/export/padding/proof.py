"""A proof that padding can't matter: the model is run on codes in place of numbers.

It runs once unpadded and once padded. Elements of an input have the same codes in both runs, what
fills it up is known; each operator makes codes by its rule (:mod:`edgecompile.export.padding.rules`). Where
the outputs' codes are equal, the padded run computes the same functions of the same elements. That
holds for the lengths of the run, and for a model whose operators don't depend on the length
otherwise than through sizes, at all lengths. Taken for granted: values at padded positions stay
finite, and so do scores with a bias of -1e9 or less (see ``MASKED``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from edgecompile.export.guards import quiet_torch
from edgecompile.export.ladder import without_fast_path, without_mask_detection
from edgecompile.export.padding.codes import Coded, Codes, label, mix, uncode
from edgecompile.export.padding.trace import Leak, Record, Stop, Trace
from edgecompile.models.examples import pad_inputs
from edgecompile.models.kinds import FEW
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.modules import describe_error

#: Kinds of masks: all ones; zeros at the start and a hole; zeros at the end and a hole.
FULL, LATE, EARLY = "full", "late", "early"


def find_leak(
    loaded: LoadedModel,
    length: int,
    padded: int,
    sizes: Mapping[str, int],
    masks: Sequence[str] = (FULL,),
) -> Leak | None:
    """Finds an operator that may let padding into the outputs; None: there is none, which is a proof.

    Args:
        loaded: the model; every input along its length axis has a pad value.
        length, padded: the lengths of the two runs; short ones will do.
        sizes: the sizes of the other axes.
        masks: kinds of the caller's masks, for the rows of a batch in turn.
    """
    codes = Codes([*loaded.module.parameters(), *loaded.module.buffers()])
    axis = loaded.length_axis
    assert axis is not None
    example = _example(loaded, {**sizes, axis: length}, masks)
    filled = pad_inputs(loaded.inputs, example, axis, padded)
    try:
        outputs = _run(loaded, codes, filled, length, None)
        expected = _run(loaded, codes, example, length, None)
        if _wrong(loaded, codes, outputs, expected, example) is None:
            return None
        records: list[list[Record]] = [[], []]
        _run(loaded, codes, filled, length, records[0])
        expected = _run(loaded, codes, example, length, records[1])
        wrong = _wrong(loaded, codes, outputs, expected, example)
        return _culprit(records[0], records[1], wrong)
    except Exception as error:  # whatever a model does with a tensor that has no memory
        cause = error.__cause__ if isinstance(error.__cause__, Stop) else error
        if isinstance(cause, Stop):
            return cause.leak
        return Leak(
            "", None, False, f"the analysis of its operators fails: {describe_error(error)}"
        )
    finally:
        uncode()


def _example(
    loaded: LoadedModel, sizes: Mapping[str, int], masks: Sequence[str]
) -> dict[str, torch.Tensor]:
    """Inputs whose rows have masks of these kinds in turn."""
    example = loaded.make_example(sizes, seed=3, kind=FEW)
    for spec in loaded.inputs:
        if spec.is_mask and loaded.length_axis in spec.shape:
            # In a mask of queries and keys, keys come last.
            dim = len(spec.shape) - 1 - spec.shape[::-1].index(loaded.length_axis)
            tensor = example[spec.name].movedim(dim, -1)
            for row in range(len(tensor) if dim else 1):
                part = tensor[row] if dim else tensor
                part[..., _zeros(masks[row % len(masks)], tensor.shape[-1])] = 0
    return example


def _zeros(kind: str, size: int) -> list[int]:
    """The places at which a mask of a kind is 0; at least one is left."""
    if kind == FULL or size < 2:
        return []
    hole = [size // 2] if size > 4 else []
    several = 2 if size > 6 else 1
    return [*hole, *(range(several) if kind == LATE else range(size - several, size))]


def _coded_inputs(
    loaded: LoadedModel, inputs: Mapping[str, torch.Tensor], length: int
) -> dict[str, Coded]:
    result = {}
    for spec in loaded.inputs:
        value = inputs[spec.name].clone()
        if spec.is_mask:
            result[spec.name] = Coded.of(value)
            continue
        real, code = torch.ones(value.shape, dtype=torch.bool), mix(label(spec.name), 0)
        for dim, name in enumerate(spec.shape):
            place = torch.arange(value.shape[dim]).reshape([-1] + [1] * (value.dim() - 1 - dim))
            code = mix(1, code, place)
            if name == loaded.length_axis:
                real = real & (place < length)
        result[spec.name] = Coded.of(value, real, code)
    return result


def _run(
    loaded: LoadedModel,
    codes: Codes,
    inputs: Mapping[str, torch.Tensor],
    length: int,
    records: list[Record] | None,
) -> dict[str, Any]:
    arguments = _coded_inputs(loaded, inputs, length)
    with _traceable(loaded.module), Trace(codes, records):
        result: dict[str, Any] = loaded.module(**arguments)
    return result


@contextmanager
def _traceable(module: torch.nn.Module) -> Iterator[None]:
    """Keeps torch from fusing operators, and a model's prints from stdout."""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(quiet_torch())
        stack.enter_context(redirect_stdout(sys.stderr))
        stack.enter_context(without_fast_path())
        stack.enter_context(without_mask_detection(module))
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_restored(module))
        yield


@contextmanager
def _restored(module: torch.nn.Module) -> Iterator[None]:
    """Gives modules back what they hold: some keep tables that they computed, here of codes."""
    states = [(part.__dict__, dict(part.__dict__)) for part in module.modules()]
    inner = [(v, v.copy()) for _, d in states for v in d.values() if isinstance(v, (dict, list))]
    try:
        yield
    finally:
        for now, before in (*states, *inner):
            if isinstance(now, list):
                now[:] = before
            else:
                now.clear()
                now.update(before)


def _wrong(
    loaded: LoadedModel,
    codes: Codes,
    got: Mapping[str, Any],
    want: Mapping[str, Any],
    example: Mapping[str, torch.Tensor],
) -> Any:
    """The first output of the unpadded run that the padded one lacks; None if it has all.

    Positions that the caller's own mask hides have outputs that nobody reads.
    """
    axis = loaded.length_axis
    masks = [i for i in loaded.inputs if i.is_mask and axis in i.shape]
    for spec in loaded.outputs:
        mine, other = codes.of(got[spec.name]), codes.of(want[spec.name])
        for dim, name in enumerate(spec.shape):
            if name == axis:
                mine = mine.narrow(dim, 0, other.shape[dim])
        if mine.shape != other.shape:
            return want[spec.name]
        differs = mine != other
        for mask in masks:
            if set(mask.shape) <= set(spec.shape) and len(set(mask.shape)) == len(mask.shape):
                order = sorted(
                    range(len(mask.shape)), key=lambda d: spec.shape.index(mask.shape[d])
                )
                sizes = [
                    other.shape[dim] if name in mask.shape else 1
                    for dim, name in enumerate(spec.shape)
                ]
                differs = differs & (example[mask.name].permute(order).reshape(sizes) != 0)
        if bool(differs.any()):
            return want[spec.name]
    return None


def _culprit(padded: list[Record], plain: list[Record], wrong: Any) -> Leak:
    """The first operator on the way to an output that makes of common codes others.

    Operators are compared one by one where both runs have the same, else each with all.
    """
    aligned = [r.operator for r in padded] == [r.operator for r in plain]
    every = torch.empty(0) if aligned else torch.unique(torch.cat([r.codes for r in padded]))
    lost = [
        not bool(torch.isin(r.codes, padded[i].codes if aligned else every).all())
        for i, r in enumerate(plain)
    ]
    last = getattr(wrong, "source", -1)
    todo, seen = [last], set()
    while todo:
        number = todo.pop()
        if number >= 0 and number not in seen:
            seen.add(number)
            todo.extend(plain[number].sources)
    for way in (sorted(seen), range(len(plain))):
        for number in way:
            record = plain[number]
            if lost[number] and not any(lost[source] for source in record.sources):
                return Leak(record.operator, record.place, record.known)
    if last >= 0:
        return Leak(plain[last].operator, plain[last].place, plain[last].known)
    return Leak("", None, False, "an output isn't the same function of the inputs")
