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
from edgecompile.models.mapped import is_large, to_file
from edgecompile.quantization.program import QuantizedProgram


@dataclass(frozen=True)
class _Place:
    """The rows of a product that are a weight of some modules.

    Attributes:
        owners: the modules, and the weight's name in each. A table of embeddings is among them where the
            program reads its rows from the product's weight.
        begin, end: the rows.
        transposed: whether the modules hold the matrix as ``[K, N]``.
        own: the weight itself.
    """

    owners: tuple[tuple[nn.Module, str], ...]
    begin: int
    end: int
    transposed: bool
    own: Tensor

    def cut(self, matrix: Tensor) -> Tensor:
        rows = matrix[self.begin : self.end]
        return rows.t().contiguous() if self.transposed else rows


@dataclass(frozen=True)
class _Held:
    """A weight, and the modules that hold it with its name in each: tables of embeddings, and others."""

    weight: Tensor
    owners: list[tuple[nn.Module, str]]
    tables: list[tuple[nn.Module, str]]


class StandIns:
    """The places of a program's products among the weights of its module.

    Args:
        module: the module that the program was exported from.
        program: the program.
    """

    def __init__(self, module: nn.Module, program: QuantizedProgram) -> None:
        held = _find_held(module)
        self._program = program
        self._places: dict[str, list[_Place]] = {}
        #: Products whose weights the module doesn't hold as they are.
        self.missing: tuple[str, ...] = ()
        for attr, (names, exact) in program.products.items():  # one product at a time
            places = _find_places(names, exact, held, program.tables.get(attr, ()))
            if places is None:
                self.missing += (attr,)
            else:
                self._places[attr] = places

    @contextmanager
    def replacing(self, values: Iterable[tuple[str, Tensor | None]]) -> Iterator[None]:
        """Lets the module have these values for as long as the context lasts; in files where they are many.

        Args:
            values: pairs of a packed attribute and its values, taken one after another. None: its own.
        """
        before: list[tuple[nn.Module, str, Any]] = []
        places = [place for places in self._places.values() for place in places]
        large = is_large(sum(place.own.numel() for place in places))
        try:
            for attr, matrix in values:
                for place in self._places.get(attr, ()):
                    weight: Any = place.own
                    if matrix is not None:
                        part = to_file(place.cut(matrix)) if large else place.cut(matrix)
                        weight = nn.Parameter(part, requires_grad=False)
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
        with self._hooking_inputs(attrs, lambda x: ops.round_activations(x).to(x.dtype)):
            yield

    @contextmanager
    def moving_inputs(self, attrs: Sequence[str], size: float, seed: int) -> Iterator[None]:
        """The modules of some products get rows with noise, before they round them, for as long as the context lasts.

        Args:
            attrs: the packed attributes of the products.
            size: the standard deviation of the noise, of a row's root mean square.
            seed: the seed of the noise.
        """
        random = torch.Generator().manual_seed(seed)

        def move(x: Tensor) -> Tensor:
            noise = torch.randn(x.shape, generator=random).to(x.dtype)
            return x + size * noise * x.square().mean(-1, keepdim=True).sqrt()

        with self._hooking_inputs(attrs, move, first=True):
            yield

    @contextmanager
    def _hooking_inputs(
        self, attrs: Sequence[str], change: Callable[[Tensor], Tensor], first: bool = False
    ) -> Iterator[None]:
        """The modules of some products get changed rows, ``first``: before other changes."""

        def hook(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            x, *rest = args if args else (None,)
            if isinstance(x, Tensor) and x.is_floating_point():
                x = change(x)
            return (x, *rest) if args else args

        owners = {id(owner): owner for attr in attrs for owner in self._owners_of(attr)}
        handles = [
            owner.register_forward_pre_hook(hook, prepend=first) for owner in owners.values()
        ]
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
            for k in [self._program.shape(attr)[1]]
        }
        seen = dict.fromkeys(attrs, 0)

        def watch(attr: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
            def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
                x = args[0] if args else None
                total = sums[attr]
                if isinstance(x, Tensor) and x.is_floating_point() and x.shape[-1] == len(total):
                    rows = x.detach().reshape(-1, x.shape[-1]).to(torch.float32)
                    total.add_(rows.t() @ rows)  # of a text's rows; texts are added up in float64
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


def _find_held(module: nn.Module) -> dict[str, _Held]:
    """Each weight, by all of its names."""
    by_id: dict[int, _Held] = {}
    by_name = {}
    for path, part in module.named_modules(remove_duplicate=False):
        for name, weight in part._parameters.items():
            if weight is None:
                continue
            found = by_id.setdefault(id(weight), _Held(weight, [], []))
            holders = found.tables if isinstance(part, nn.Embedding) else found.owners
            if not any(owner is part and own == name for owner, own in holders):
                holders.append((part, name))
            by_name[f"{path}.{name}" if path else name] = found
    return by_name


def _find_places(
    names: Sequence[str], exact: Tensor, held: Mapping[str, _Held], tables: Sequence[str]
) -> list[_Place] | None:
    """The places of a product whose weights have these names; None where one isn't found.

    With ``tables`` its only weight stands for these tables of embeddings, too.
    """
    if exact.dim() != 2 or not all(name in held for name in (*names, *tables)):
        return None
    shared = [owner for name in tables for owner in (*held[name].tables, *held[name].owners)]
    places, begin = [], 0
    for name in names:
        weight, owners = held[name].weight, held[name].owners
        if weight.dim() < 2 or not owners:
            return None
        plain = weight.detach()
        for transposed in (False, True):
            matrix = plain.t() if transposed and plain.dim() == 2 else plain
            rows = matrix.shape[0]
            part = exact[begin : begin + rows]
            if part.shape == matrix.shape and torch.equal(part, matrix.to(part.dtype)):
                both = (*owners, *(owner for owner in shared if owner not in owners))
                places.append(_Place(both, begin, begin + rows, transposed, weight))
                begin += rows
                break
        else:
            return None
    return places if begin == len(exact) else None
