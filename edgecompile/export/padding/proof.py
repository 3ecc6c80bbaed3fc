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
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from edgecompile.export.guards import quiet_torch
from edgecompile.export.ladder import without_fast_path, without_mask_detection
from edgecompile.export.padding import layers as padding_layers  # noqa: F401 - registers its rules
from edgecompile.export.padding.codes import Coded, Codes, label, mix, uncode, values_of
from edgecompile.export.padding.rules import (
    COPIES,
    FRESH,
    PUTS,
    RULES,
    elementwise,
    unknown_of,
    whole,
)
from edgecompile.models.examples import pad_inputs
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.modules import describe_error, is_user_code
from edgecompile.models.source_lines import Place

__all__ = ["EARLY", "FULL", "LATE", "Leak", "find_leak"]

#: Kinds of masks: all ones; zeros at the start and a hole; zeros at the end and a hole.
FULL, LATE, EARLY = "full", "late", "early"

#: Operators that write nothing, but change the shape of their first argument.
_TURNS = ("transpose_", "t_", "squeeze_", "unsqueeze_", "swapaxes_")


@dataclass(frozen=True)
class Leak:
    """What keeps a model from being proven safe.

    Attributes:
        operator: through which padding gets, or may get.
        place: the line of the model's code that calls it; None: not known.
        known: whether the operator's rule is known; where it isn't, it is taken to let all through.
        reason: what is to be said in place of that; empty: nothing.
    """

    operator: str
    place: Place | None = None
    known: bool = True
    reason: str = ""

    def __str__(self) -> str:
        text = self.reason or (
            f"the operator {self.operator} lets padded positions reach real ones"
            if self.known
            else f"nothing is known of what the operator {self.operator} does with padded positions"
        )
        return text if self.place is None else f"{text} (at {self.place})"


class _Stop(Exception):
    """The trace can't go on: the rest depends on what the inputs hold."""

    def __init__(self, operator: str, reason: str) -> None:
        super().__init__(reason)
        self.leak = Leak(operator, _place(), False, reason)


@dataclass
class _Record:
    """An operator of a traced run."""

    operator: str
    known: bool
    place: Place | None
    sources: tuple[int, ...]
    codes: torch.Tensor


@dataclass
class _Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operators on coded tensors; keeps records if asked to."""

    codes: Codes
    records: list[_Record] | None = None
    count: int = field(default=0)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        flat = tree_flatten((args, kwargs))[0]
        coded = [item for item in flat if isinstance(item, Coded)]
        name = func._schema.name.partition("::")[2]
        if not coded:
            result = func(*args, **kwargs)
            weights = any(isinstance(item, torch.Tensor) for item in flat)
            return result if weights else tree_map(_known, result)
        if func._schema.is_mutable:
            return self._change(func, name, args, kwargs)
        result, known = self._apply(func, name, args, kwargs)
        self._note(name, known, coded, result)
        return result

    def _apply(self, func: Any, name: str, args: Any, kwargs: Any) -> tuple[Any, bool]:
        """The result, and whether there is a rule for the operator."""
        coded = [item for item in tree_flatten((args, kwargs))[0] if isinstance(item, Coded)]
        turns = func.is_view and not {"real", "complex"} & set(name.split("_"))
        if (turns and func._overloadname != "dtype") or name in COPIES or name in PUTS:
            moved = self._moved(func, name, args, kwargs)
            if moved is not None:
                return moved, True
        value = func(*values_of(args), **values_of(kwargs))
        if all(item.known for item in coded) or name in FRESH:
            if not tree_flatten(value)[0] or isinstance(value, (bool, int, float, complex)):
                return value, True
            return tree_map(_known, value), True
        if not all(isinstance(part, torch.Tensor) for part in tree_flatten(value)[0]):
            raise _Stop(name, "the model chooses by values of its inputs what it does next")
        names = [item.name for item in func._schema.arguments]
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        if name in RULES:
            return RULES[name](self.codes, name, arguments, value), True
        if torch.Tag.pointwise in func.tags:
            return elementwise(self.codes, name, arguments, value), True
        return whole(self.codes, name, arguments, value), False

    def _moved(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """An operator that moves elements: on the values, and in the same way on the codes.

        None where it isn't known which ones it moves.
        """
        data = {0, PUTS.get(name, 0)}
        rest = [item for index, item in enumerate(args) if index not in data]
        if any(not c.known for c in tree_flatten((rest, kwargs))[0] if isinstance(c, Coded)):
            return None
        if name in PUTS and (kwargs.get("reduce") or (name == "index_put" and True in args[3:])):
            return None

        def run(pick: Callable[[Any], Any], dtype: bool = False) -> Any:
            picked = [
                tree_map(pick, item) if index in data else values_of(item)
                for index, item in enumerate(args)
            ]
            if name == "constant_pad_nd" and not dtype:
                picked[2:] = []
            words = {k: v for k, v in values_of(kwargs).items() if dtype or k != "dtype"}
            return func(*picked, **words)

        def codes_of(item: Any) -> Any:
            # A view shares its memory with what it is of.
            code = item.code if isinstance(item, Coded) else self.codes.of(item)
            return code if isinstance(item, torch.Tensor) else int(code)

        def open_of(item: Any) -> Any:
            return unknown_of(item) if isinstance(item, torch.Tensor) else False

        try:
            made = run(values_of, True), run(open_of), run(codes_of)
        except RuntimeError:  # there may be no kernel for the codes' type
            if func.is_view:
                raise
            return None
        if isinstance(made[0], torch.Tensor):
            return Coded(*made)
        return type(made[0])(
            Coded(*items) if isinstance(items[0], torch.Tensor) else items[0]
            for items in zip(*made, strict=True)
        )

    def _change(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """An operator that writes into its first argument: what it would make, then a copy."""
        target = args[0]
        if name in _TURNS and isinstance(target, Coded):
            rest = values_of(args[1:])
            for part in (target.value, target.unknown, target.code):
                func(part, *rest)
            with no_dispatch():
                func(target, *rest)
            return target
        if name == "copy_":
            made = args[1]
        elif name in ("fill_", "zero_"):
            made = args[1] if len(args) > 1 else 0
        else:
            plain = getattr(torch.ops.aten, name.removesuffix("_"), None)
            form = getattr(plain, func._overloadname, None)
            if form is None or not name.endswith("_"):
                raise _Stop(name, f"nothing is known of what the operator {name} writes")
            made, known = self._apply(form, name.removesuffix("_"), args, kwargs)
            self._note(
                name.removesuffix("_"), known, [a for a in args if isinstance(a, Coded)], made
            )
        if not isinstance(target, Coded):
            if not unknown_of(made).any():
                target.copy_(values_of(made))
                return target
            raise _Stop(
                name, "the model writes what depends on its inputs into a tensor of its own"
            )
        value = values_of(made)
        if isinstance(value, torch.Tensor):
            target.value.copy_(value)
            target.unknown.copy_(unknown_of(made))
            target.code.copy_(self.codes.of(made))
        else:
            target.value.fill_(value)
            target.unknown.fill_(False)
        target.source = made.source if isinstance(made, Coded) else target.source
        return target

    def _note(self, name: str, known: bool, coded: list[Coded], result: Any) -> None:
        made = [item for item in tree_flatten(result)[0] if isinstance(item, Coded)]
        if self.records is None or not made:
            return
        codes = torch.cat([self.codes.of(m).masked_fill(~m.unknown, 0).reshape(-1) for m in made])
        number = len(self.records)
        sources = tuple(item.source for item in coded if item.source >= 0)
        self.records.append(_Record(name, known, _place(), sources, torch.unique(codes)))
        for item in made:
            item.source = number


def _known(item: Any) -> Any:
    return Coded.of(item) if isinstance(item, torch.Tensor) else item


def _place() -> Place | None:
    """The innermost line of the model's code that is running."""
    for frame in reversed(traceback.extract_stack()):
        if is_user_code(frame.filename):
            return Place(frame.filename, frame.lineno or 0, frame.name, (frame.line or "").strip())
    return None


def find_leak(
    loaded: LoadedModel,
    length: int,
    padded: int,
    sizes: Mapping[str, int],
    masks: Sequence[str] = (FULL,),
) -> Leak | None:
    """What may let padding into the outputs; None: nothing does, which is a proof.

    Args:
        loaded: the model; every input along its length axis has a pad value.
        length, padded: of the two runs; short ones will do.
        sizes: of the other axes.
        masks: kinds of the caller's masks, for the rows of a batch in turn.
    """
    codes = Codes([*loaded.module.parameters(), *loaded.module.buffers()])
    axis = loaded.length_axis
    assert axis is not None
    example = _example(loaded, {**sizes, axis: length}, masks)
    filled = pad_inputs(loaded.inputs, example, axis, padded)
    try:
        got = _run(loaded, codes, filled, length, None)
        want = _run(loaded, codes, example, length, None)
        if _wrong(loaded, codes, got, want, example) is None:
            return None
        records: list[list[_Record]] = [[], []]
        _run(loaded, codes, filled, length, records[0])
        want = _run(loaded, codes, example, length, records[1])
        wrong = _wrong(loaded, codes, got, want, example)
        return _culprit(records[0], records[1], wrong)
    except _Stop as stop:
        return stop.leak
    except Exception as error:  # whatever a model does with a tensor that has no memory
        cause = error.__cause__ if isinstance(error.__cause__, _Stop) else error
        if isinstance(cause, _Stop):
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
    example = loaded.make_example(sizes, seed=3)
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
    loaded: LoadedModel, codes: Codes, inputs: Mapping[str, torch.Tensor], length: int
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
    records: list[_Record] | None,
) -> dict[str, Any]:
    given = _coded_inputs(loaded, codes, inputs, length)
    with _traceable(loaded.module), _Trace(codes, records):
        result: dict[str, Any] = loaded.module(**given)
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
    kept = [(part.__dict__, dict(part.__dict__)) for part in module.modules()]
    inner = [(v, v.copy()) for _, d in kept for v in d.values() if isinstance(v, (dict, list))]
    try:
        yield
    finally:
        for now, before in (*kept, *inner):
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
    """The first output of the unpadded run that the padded one hasn't got; None if it has all.

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


def _culprit(padded: list[_Record], plain: list[_Record], wrong: Any) -> Leak:
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
