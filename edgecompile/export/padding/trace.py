"""A run of a model on codes in place of numbers: each operator by its rule, with records if asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from edgecompile.export.padding import layers as padding_layers  # noqa: F401 - registers its rules
from edgecompile.export.padding.codes import Coded, Codes, values_of
from edgecompile.export.padding.rules import (
    COPIES,
    FRESH,
    PUTS,
    RULES,
    elementwise,
    unknown_of,
    whole,
)
from edgecompile.models.source_lines import SourceLine, running_line

#: Operators that write nothing, but change the shape of their first argument.
_TURNS = ("transpose_", "t_", "squeeze_", "unsqueeze_", "swapaxes_")


@dataclass(frozen=True)
class Leak:
    """An obstacle to the proof that a model is safe.

    Attributes:
        operator: through which padding gets, or may get.
        place: the line of the model's code that calls it; None: not known.
        known: whether the operator's rule is known; where it isn't, it is taken to let all through.
        reason: a text instead of these; empty: none.
    """

    operator: str
    place: SourceLine | None = None
    known: bool = True
    reason: str = ""

    def __str__(self) -> str:
        text = self.reason or (
            f"the operator {self.operator} lets padded positions reach real ones"
            if self.known
            else f"nothing is known of what the operator {self.operator} does with padded positions"
        )
        return text if self.place is None else f"{text} (at {self.place})"


class Stop(Exception):
    """The trace can't go on: the rest depends on what the inputs hold."""

    def __init__(self, operator: str, reason: str) -> None:
        super().__init__(reason)
        self.leak = Leak(operator, running_line(), False, reason)


@dataclass
class Record:
    """An operator of a traced run."""

    operator: str
    known: bool
    place: SourceLine | None
    sources: tuple[int, ...]
    codes: torch.Tensor


@dataclass
class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operators on coded tensors; keeps records if asked to."""

    codes: Codes
    records: list[Record] | None = None
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
        result, has_rule = self._apply(func, name, args, kwargs)
        self._note(name, has_rule, coded, result)
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
            raise Stop(name, "the model chooses by values of its inputs what it does next")
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
            parts = run(values_of, True), run(open_of), run(codes_of)
        except RuntimeError:  # there may be no kernel for the codes' type
            if func.is_view:
                raise
            return None
        if isinstance(parts[0], torch.Tensor):
            return Coded(*parts)
        return type(parts[0])(
            Coded(*items) if isinstance(items[0], torch.Tensor) else items[0]
            for items in zip(*parts, strict=True)
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
            result = args[1]
        elif name in ("fill_", "zero_"):
            result = args[1] if len(args) > 1 else 0
        else:
            plain = getattr(torch.ops.aten, name.removesuffix("_"), None)
            form = getattr(plain, func._overloadname, None)
            if form is None or not name.endswith("_"):
                raise Stop(name, f"nothing is known of what the operator {name} writes")
            result, has_rule = self._apply(form, name.removesuffix("_"), args, kwargs)
            self._note(
                name.removesuffix("_"), has_rule, [a for a in args if isinstance(a, Coded)], result
            )
        if not isinstance(target, Coded):
            if not unknown_of(result).any():
                target.copy_(values_of(result))
                return target
            raise Stop(name, "the model writes what depends on its inputs into a tensor of its own")
        value = values_of(result)
        if isinstance(value, torch.Tensor):
            target.value.copy_(value)
            target.unknown.copy_(unknown_of(result))
            target.code.copy_(self.codes.of(result))
        else:
            target.value.fill_(value)
            target.unknown.fill_(False)
        target.source = result.source if isinstance(result, Coded) else target.source
        return target

    def _note(self, name: str, has_rule: bool, coded: list[Coded], result: Any) -> None:
        tensors = [item for item in tree_flatten(result)[0] if isinstance(item, Coded)]
        if self.records is None or not tensors:
            return
        codes = torch.cat(
            [self.codes.of(m).masked_fill(~m.unknown, 0).reshape(-1) for m in tensors]
        )
        number = len(self.records)
        sources = tuple(item.source for item in coded if item.source >= 0)
        self.records.append(Record(name, has_rule, running_line(), sources, torch.unique(codes)))
        for item in tensors:
            item.source = number


def _known(item: Any) -> Any:
    return Coded.of(item) if isinstance(item, torch.Tensor) else item
