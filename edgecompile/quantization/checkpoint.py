"""The precision of a checkpoint that is quantized already: its own numbers, where products read their grid.

Other matrices are rounded anew or stay wider, and the notes count them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edgecompile.backends.operators import ops
from edgecompile.errors import CompileError
from edgecompile.models.stored import Found, GridValues, StoredWeights
from edgecompile.precision import FP32, INT4, INT8, Precision, widest
from edgecompile.quantization.gptq import RoundedWeights, hash_matrix
from edgecompile.quantization.kept_grids import KeptGrid, keep_grids
from edgecompile.quantization.program import QuantizedProgram

#: The precision that holds the numbers of a form as they are.
_EXACT: Mapping[str, str] = {"F32": "fp32", "F16": "fp32", "BF16": "bf16"}
#: The narrowest precision that rounds numbers of any grid by little.
_ROUNDED = INT8
_PRECISION_OF = {torch.uint8: INT4, torch.int8: INT8}
_UNKNOWN = "a form that isn't told"


@dataclass(frozen=True)
class CheckpointPrecision:
    """The precision of a checkpoint's weights.

    Attributes:
        precision: the precision.
        kept: numbers of weights whose values are the checkpoint's own, by form.
        rounded: numbers of weights that are rounded anew, by form.
        kind: name of the checkpoint's format.
    """

    precision: Precision
    kept: Mapping[str, int]
    rounded: Mapping[str, int]
    kind: str

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for people."""
        said = []
        if self.kept:
            said.append(
                f"weights that keep the {self.kind} checkpoint's numbers: {_list(self.kept)}"
            )
        if self.rounded:
            said.append(
                f"weights of the {self.kind} checkpoint that are rounded to {_ROUNDED} again: "
                + _list(self.rounded)
            )
        return tuple(said)


def keep_checkpoint(
    program: QuantizedProgram,
    module: nn.Module,
    stored: StoredWeights,
    tell: Callable[[int], None] = lambda done: None,
) -> CheckpointPrecision:
    """The precision that keeps as many of a checkpoint's numbers as products can read.

    Args:
        program: a program of the model.
        module: the model that the program was exported from.
        stored: the checkpoint.
        tell: a function that gets the number of products that are done.
    """
    held = dict(module.named_parameters(remove_duplicate=False))
    by_weight: dict[str, str] = {}
    packed: dict[str, Tensor] = {}
    origins: dict[str, str] = {}
    kept: Counter[str] = Counter()
    rounded: Counter[str] = Counter()
    for done, (attr, (names, exact)) in enumerate(program.products.items(), 1):
        found = [_find(held, name, stored) for name in names]
        own = _pack(attr, names, exact, found)
        if own is not None:
            packed[attr], origins[attr] = own, hash_matrix(exact)
            chosen = _PRECISION_OF[own.dtype]
        else:
            chosen = widest(_EXACT.get(form, _ROUNDED) for form in map(_form, found))
        for form in map(_form, found):
            exactly = own is not None or chosen == FP32.name or form in _EXACT
            (kept if exactly else rounded)[form] += 1
        by_weight.update(dict.fromkeys(names, chosen))
        tell(done)
    used = set(by_weight.values())
    base = INT4 if INT4 in used else INT8
    if not used & {INT4, INT8}:
        base = "bf16" if "bf16" in used else FP32.name
    wider = tuple((name, chosen) for name, chosen in by_weight.items() if chosen != base)
    weights = RoundedWeights(packed, origins, f"the {stored.kind} checkpoint") if packed else None
    return CheckpointPrecision(Precision(base, wider, weights), kept, rounded, stored.kind)


def _find(held: Mapping[str, Tensor], name: str, stored: StoredWeights) -> Found | None:
    """The weight of that name as it is stored; a name that ends in .t is read transposed."""
    weight = held.get(name)
    if weight is None:
        weight = held.get(name.removesuffix(".t"))
        weight = None if weight is None or weight.dim() != 2 else weight.t()
    return None if weight is None or weight.dim() != 2 else stored.find(weight.detach())


def _form(found: Found | None) -> str:
    return _UNKNOWN if found is None else found.form


def _pack(
    attr: str, names: tuple[str, ...], exact: Tensor, found: list[Found | None]
) -> Tensor | None:
    """The packed weight of a product with its weights' own numbers; None where products read no such grid."""
    grids = {
        name: _kept_grid(one.rows)
        for name, one in zip(names, found, strict=True)
        if one is not None and one.rows is not None
    }
    try:
        return keep_grids({attr: (names, exact)}, grids).packed.get(attr)
    except CompileError:
        return None


def _kept_grid(rows: GridValues) -> KeptGrid:
    # One group of all inputs may be no multiple of what products read at once.
    whole = rows.scales.shape[1] == 1
    block = -(-rows.block // ops.HALF_BLOCK) * ops.HALF_BLOCK if whole else rows.block
    return KeptGrid(rows.values, rows.scales, block, rows.zeros, rows.minimums)


def _list(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} in {form}" for form, count in sorted(counts.items()))
