"""Rounded weights in the place of a language model's own: its library then runs the rounded model.

A program's products are found again among the modules' weights by name and by value, so that nothing is
taken for a weight that isn't one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgecompile.backends.operators import ops
from edgecompile.quantization.program import QuantizedProgram


@dataclass(frozen=True)
class _Place:
    """The rows of a product that are a weight of some modules.

    Attributes:
        owners: the modules, and the weight's name in each. A table of embeddings isn't among them: the
            kernels don't read it.
        begin, end: the rows.
        transposed: whether the modules hold the matrix as ``[K, N]``.
    """

    owners: tuple[tuple[nn.Module, str], ...]
    begin: int
    end: int
    transposed: bool

    def cut(self, matrix: Tensor) -> Tensor:
        rows = matrix[self.begin : self.end]
        return rows.t().contiguous() if self.transposed else rows


class StandIns:
    """The places of a program's products among the weights of its module.

    Args:
        module: the module that the program was exported from.
        program: the program.
    """

    def __init__(self, module: nn.Module, program: QuantizedProgram) -> None:
        owners = _owners(module)
        self._program = program
        self._places: dict[str, list[_Place]] = {}
        #: Products whose weights the module doesn't hold as they are.
        self.missing: tuple[str, ...] = ()
        for attr, (names, exact) in program.products.items():
            places = _find_places(names, exact, owners)
            if places is None:
                self.missing += (attr,)
            else:
                self._places[attr] = places

    @contextmanager
    def replacing(self, values: Iterable[tuple[str, Tensor]]) -> Iterator[None]:
        """Lets the module have these values for as long as the context lasts.

        Args:
            values: pairs of a packed attribute and its values, taken one after another.
        """
        before: list[tuple[nn.Module, str, Any]] = []
        try:
            for attr, matrix in values:
                for place in self._places.get(attr, ()):
                    weight = nn.Parameter(place.cut(matrix), requires_grad=False)
                    for owner, name in place.owners:
                        before.append((owner, name, owner._parameters[name]))
                        owner._parameters[name] = weight
            yield
        finally:
            for owner, name, own in reversed(before):
                owner._parameters[name] = own

    @contextmanager
    def rounding_inputs(self, attrs: Sequence[str]) -> Iterator[None]:
        """The modules of some products round the rows that they get, for as long as the context lasts."""

        def hook(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            x, *rest = args if args else (None,)
            if isinstance(x, Tensor) and x.is_floating_point():
                x = ops.round_activations(x).to(x.dtype)
            return (x, *rest) if args else args

        owners = {id(owner): owner for attr in attrs for owner in self._owners_of(attr)}
        handles = [owner.register_forward_pre_hook(hook) for owner in owners.values()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _owners_of(self, attr: str) -> list[nn.Module]:
        return [owner for place in self._places.get(attr, ()) for owner, _ in place.owners]

    def moments(
        self, attrs: Sequence[str], runs: Sequence[Callable[[], object]]
    ) -> dict[str, Tensor]:
        """The sums of ``xᵀ·x`` over the rows that some products get in runs of the module.

        Those of a product whose module gets no such rows are NaN, which no rounding takes.
        """
        sums = {
            attr: torch.zeros(k, k, dtype=torch.float64)
            for attr in attrs
            for k in [int(self._program.products[attr][1].shape[1])]
        }
        seen = dict.fromkeys(attrs, 0)

        def watch(attr: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
            def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
                x = args[0] if args else None
                total = sums[attr]
                if isinstance(x, Tensor) and x.is_floating_point() and x.shape[-1] == len(total):
                    rows = x.detach().reshape(-1, x.shape[-1]).to(torch.float64)
                    total.addmm_(rows.t(), rows)
                    seen[attr] += len(rows)

            return hook

        handles = [
            owner.register_forward_pre_hook(watch(attr))
            for attr in attrs
            for place in self._places.get(attr, [])[:1]  # products that are merged read one input
            for owner, _ in place.owners
        ]
        try:
            with torch.no_grad():
                for run in runs:
                    run()
        finally:
            for handle in handles:
                handle.remove()
        return {attr: total if seen[attr] else total + torch.nan for attr, total in sums.items()}


def _owners(module: nn.Module) -> dict[str, tuple[Tensor, list[tuple[nn.Module, str]]]]:
    """Each weight with the modules that hold it, by all of its names."""
    by_id: dict[int, tuple[Tensor, list[tuple[nn.Module, str]]]] = {}
    by_name = {}
    for path, part in module.named_modules(remove_duplicate=False):
        for name, weight in part._parameters.items():
            if weight is None:
                continue
            found = by_id.setdefault(id(weight), (weight, []))
            known = any(owner is part and own == name for owner, own in found[1])
            if not isinstance(part, nn.Embedding) and not known:
                found[1].append((part, name))
            by_name[f"{path}.{name}" if path else name] = found
    return by_name


def _find_places(
    names: Sequence[str],
    exact: Tensor,
    owners: Mapping[str, tuple[Tensor, list[tuple[nn.Module, str]]]],
) -> list[_Place] | None:
    """The places of a product whose weights have these names; None where one isn't found."""
    places, begin = [], 0
    for name in names:
        if name not in owners or exact.dim() != 2:
            return None
        weight, held = owners[name]
        if weight.dim() < 2 or not held:
            return None
        plain = weight.detach()
        for transposed in (False, True):
            matrix = plain.t() if transposed and plain.dim() == 2 else plain
            rows = matrix.shape[0]
            part = exact[begin : begin + rows]
            if part.shape == matrix.shape and torch.equal(part, matrix.to(part.dtype)):
                places.append(_Place(tuple(held), begin, begin + rows, transposed))
                begin += rows
                break
        else:
            return None
    return places if begin == len(exact) else None
