"""The error of narrow weights: a lowered program run by torch with any precision.

The operators' CPU implementations compute what the kernels do, so nothing has to be compiled to
learn which layers can't bear it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgecompile.backends.cpu.lowering.lower import lower_graph
from edgecompile.backends.lowering.constants import is_nameless
from edgecompile.backends.operators import ops
from edgecompile.bundle.cases import pad_array
from edgecompile.bundle.reference import Arrays
from edgecompile.export.program import ExportedModel
from edgecompile.models.arrays import to_tensors
from edgecompile.models.definite import definite
from edgecompile.models.double import run_in_float64
from edgecompile.models.loaded import LoadedModel
from edgecompile.precision import INT8, ROUNDED_PRODUCTS, Precision, Rounded
from edgecompile.quantization.gptq import RoundedWeights, round_products
from edgecompile.runtime.format.golden.compare import compare_arrays
from edgecompile.runtime.format.manifest.schema import Tolerance

_ANY = Tolerance(0.0, 0.0)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Deviation:
    """The largest distance of outputs from eager's.

    Attributes:
        error: largest difference, relative to the largest magnitude of its output.
        cosine: least cosine of an output; None where there is none.
    """

    error: float
    cosine: float | None

    def or_worse(self, other: Deviation) -> Deviation:
        """The larger error and the smaller cosine of two deviations."""
        cosines = [c for c in (self.cosine, other.cosine) if c is not None]
        return Deviation(max(self.error, other.error), min(cosines, default=None))

    def within(self, max_error: float, min_cosine: float | None) -> bool:
        """Whether both bounds hold."""
        near = min_cosine is None or self.cosine is None or self.cosine >= min_cosine
        return self.error <= max_error and near


class QuantizedProgram:
    """A program whose linears' weights can be exchanged for narrower ones.

    Args:
        model: tells what is right.
        exported: its program for sizes that hold all samples; a static one is given them padded.
        samples: inputs.
        expected: eager's outputs for each of them.
    """

    def __init__(
        self,
        model: LoadedModel,
        exported: ExportedModel,
        samples: Sequence[Mapping[str, npt.NDArray[np.generic]]],
        expected: Sequence[Mapping[str, npt.NDArray[np.generic]]],
    ) -> None:
        self._model = model
        self._axis = model.length_axis
        self._width = exported.ranges[self._axis][1] if self._axis and exported.static else None
        self._samples = [self._fit(item) for item in samples]
        self._expected = expected
        self._module = exported.program.module()
        #: The weights of each product, which are the model's own rather than copies of them.
        self._parts: dict[str, tuple[Tensor, ...]] = {}
        report = lower_graph(self._module, unpacked=self._parts)
        self._current: dict[str, tuple[tuple[str, str], Tensor]] = {}
        self._moments: dict[str, Tensor] = {}  # of the products whose inputs are to be gathered
        self._share = 1.0  # what a row of the present sample counts in them
        self._rounds_activations, self._pairs = True, False
        read = set()
        for node in self._module.graph.nodes:
            if node.target in (ops.LINEAR, ops.HEAD):
                # The weights are looked up by name, unpacked once and not for every run.
                weight = str(node.args[1].target)
                if weight not in self._parts:
                    continue
                read.add(weight)
                node.args = (node.args[0], weight, *node.args[2:])
                node.target = self._product
            elif node.target is ops.GROUPED_LINEAR:
                weight = str(node.args[1].target)
                read.add(weight)
                node.args = (node.args[0], weight, node.args[2])
                node.target = self._grouped_product
            elif node.target is ops.PACKED_ROWS:
                node.args = (str(node.args[0].target), node.args[1])
                node.target = self._rows
        graph = self._module.graph
        graph.eliminate_dead_code()
        # What isn't one of these products (a recurrent layer's weight) is never narrowed.
        self._names = {a: tuple(n) for a, n in report.packed.items() if a in read}
        #: Names of the tables of embeddings that are a product's weight, by the packed attribute.
        self.tables: Mapping[str, Sequence[str]] = report.tables
        #: The weights of each product.
        self.groups: tuple[tuple[str, ...], ...] = tuple(self._names.values())
        self._module.recompile()

    def _product(
        self,
        x: Tensor,
        weight: str,
        bias: Tensor | None,
        residual: Tensor | None,
        n: int,
        act: int,
        pairs: bool | None = None,
    ) -> Tensor:
        """``ec_linear`` or ``ec_head`` with a weight by name; int8 and int4 products round their activations."""
        x, matrix = self._operands(x, weight, self._pairs and pairs is not None)
        return ops.finish(torch.nn.functional.linear(x, matrix, bias), residual, act)

    def _grouped_product(self, x: Tensor, weight: str, offs: Tensor) -> Tensor:
        """``ec_grouped_linear`` likewise."""
        x, matrices = self._operands(x, weight)
        y: Tensor = ops.GROUPED_MM(x, matrices.transpose(1, 2), offs)
        return y

    def _rows(self, weight: str, indices: Tensor) -> Tensor:
        """``ec_packed_rows`` likewise."""
        return torch.nn.functional.embedding(indices, self._current[weight][1])

    def _operands(self, x: Tensor, weight: str, pairs: bool = False) -> tuple[Tensor, Tensor]:
        (name, _), matrix = self._current[weight]
        if weight in self._moments:
            rows = x.reshape(-1, x.shape[-1]).to(torch.float64)
            self._moments[weight] += self._share * (rows.t() @ rows)
        if name in ROUNDED_PRODUCTS and self._rounds_activations:
            # As the coarsest of all variants does.
            x = ops.round_activations(x, by_sums=pairs and name == INT8).to(torch.float32)
        return x, matrix

    @property
    def products(self) -> Mapping[str, tuple[tuple[str, ...], Tensor]]:
        """The names and the exact float32 values of each product's weights, by the packed attribute.

        Weights below each other are joined when they are asked for, so that one product's are held at a time.
        """
        return _Asked(self._names, lambda attr: (self._names[attr], self._exact(attr)))

    @property
    def names(self) -> Mapping[str, tuple[str, ...]]:
        """The names of each product's weights, by the packed attribute."""
        return self._names

    def shape(self, attr: str) -> tuple[int, ...]:
        """The sizes of a product's weights, below each other."""
        first, *others = self._parts[attr]
        rows = int(first.shape[0]) + sum(int(part.shape[0]) for part in others)
        return (rows, *(int(size) for size in first.shape[1:]))

    def _exact(self, attr: str) -> Tensor:
        parts = self._parts[attr]
        return parts[0].detach().contiguous() if len(parts) == 1 else torch.cat(parts).detach()

    def kept_value(self, attr: str, precision: Precision) -> Tensor:
        """The values that a precision keeps of a product's weights, which nothing here holds afterwards.

        Args:
            attr: the packed attribute.
            precision: the precision.
        """
        exact = self._exact(attr)
        return _narrowed(attr, exact, precision.of(self._names[attr]), precision.rounded)

    def deviation(self, precision: Precision) -> Deviation:
        """The deviation of all samples' outputs with this precision, activations being rounded, too."""
        return self._deviation(precision.of, precision)

    def answers(self, precision: Precision) -> Iterator[dict[str, npt.NDArray[np.generic]]]:
        """The outputs of each sample in float64, of the expected ones' sizes and types.

        The weights alone are rounded to this precision: how activations are depends on the CPU.
        """
        for attr, names in self._names.items():
            self._narrow(attr, precision.of(names), precision.rounded)
        self._rounds_activations = False
        try:
            for inputs, expected in zip(self._samples, self._expected, strict=True):
                outputs = run_in_float64(self._module, self._model.fresh(inputs))
                # What stands at padded positions doesn't count.
                yield {
                    key: outputs[key].numpy()[tuple(map(slice, want.shape))].astype(want.dtype)
                    for key, want in expected.items()
                }
        finally:
            self._rounds_activations = True

    def rank(
        self, precision: Precision, tell: Callable[[int], None] = lambda done: None
    ) -> list[tuple[tuple[str, ...], float]]:
        """The products by the error that narrowing them alone causes, the worst first.

        Args:
            precision: that keeps nothing.
            tell: a function that gets the number of products that were tried.
        """
        ranking = []
        for index, group in enumerate(self.groups):
            alone = self._deviation(
                lambda names, group=group: precision.name if names == group else "fp32",  # type: ignore[misc]
                precision,
            )
            ranking.append((group, alone.error))
            tell(index + 1)
        return sorted(ranking, key=lambda item: -item[1])

    def round_weights(
        self, shares: Sequence[float], tell: Callable[[int], None] = lambda done: None
    ) -> RoundedWeights:
        """int8 weights for the inputs that the products get from these samples.

        Args:
            shares: the weight of a row of each sample.
            tell: a function that gets the number of products that are done.
        """

        def gather(attrs: Sequence[str]) -> Mapping[str, Tensor]:
            return self._gather(attrs, shares)

        return round_products(self.roundable, gather, tell)[0]

    @property
    def roundable(self) -> Mapping[str, Tensor]:
        """The weights that may be rounded for their inputs, by the packed attribute.

        Stacks are left to the nearest: each of their matrices meets rows of its own. So is what has
        a name that may be another tensor's in the next program.
        """
        attrs = [
            attr
            for attr, names in self._names.items()
            if len(self.shape(attr)) == 2 and not any(map(is_nameless, names))
        ]
        return _Asked(attrs, self._exact)

    def _gather(self, attrs: Sequence[str], shares: Sequence[float]) -> Mapping[str, Tensor]:
        """The sums of ``xᵀ·x`` over the rows that some products get, all weights being exact."""
        for attr in self._names:
            self._narrow(attr, "fp32", None)
        sizes = {attr: self.shape(attr)[1] for attr in attrs}
        self._moments = {a: torch.zeros(k, k, dtype=torch.float64) for a, k in sizes.items()}
        with torch.no_grad():
            for inputs, share in zip(self._samples, shares, strict=True):
                self._share = share
                self._module(**inputs)
        moments, self._moments = self._moments, {}
        return moments

    def _deviation(self, of: Callable[[tuple[str, ...]], str], precision: Precision) -> Deviation:
        self._pairs = precision.pairs
        for attr, names in self._names.items():
            self._narrow(attr, of(names), precision.rounded)
        with torch.no_grad(), definite():
            return deviation_of(
                ({name: tensor.numpy() for name, tensor in self._module(**inputs).items()}, answers)
                for inputs, answers in zip(self._samples, self._expected, strict=True)
            )

    def _narrow(self, attr: str, name: str, rounded: Rounded | None) -> None:
        """Makes a weight what ``name`` keeps of it."""
        of_rounded = rounded is not None and name in ROUNDED_PRODUCTS
        state = name, rounded.digest if rounded is not None and of_rounded else ""
        if attr not in self._current or self._current[attr][0] != state:
            self._current.pop(attr, None)  # before there are two of them
            self._current[attr] = state, _narrowed(attr, self._exact(attr), name, rounded)

    def _fit(self, inputs: Mapping[str, npt.NDArray[np.generic]]) -> dict[str, Tensor]:
        """The inputs as tensors, padded to the program's length where it has only one."""
        sizes = {} if self._axis is None or self._width is None else {self._axis: self._width}
        arrays = {
            spec.name: pad_array(inputs[spec.name], spec.shape, sizes, spec.pad)
            for spec in self._model.inputs
        }
        return to_tensors({name: np.ascontiguousarray(a) for name, a in arrays.items()})


class _Asked(Mapping[str, _T]):
    """Values that are made when they are asked for.

    Args:
        keys: the keys.
        make: a function from a key to its value.
    """

    def __init__(self, keys: Collection[str], make: Callable[[str], _T]) -> None:
        self._keys, self._make = keys, make

    def __getitem__(self, key: str) -> _T:
        if key not in self._keys:
            raise KeyError(key)
        return self._make(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def _narrowed(attr: str, exact: Tensor, name: str, rounded: Rounded | None) -> Tensor:
    """The values that the precision ``name`` keeps of a weight; in fp32 the weight itself."""
    packed = None if rounded is None else rounded.take(attr, exact, name)
    if packed is not None:
        return ops.unpack_weight(packed, *exact.shape)
    if name == "fp32":
        return exact
    matrices = exact if exact.dim() == 3 else exact[None]
    return torch.stack(
        [ops.unpack_weight(ops.pack_weight(m, name), *m.shape) for m in matrices]
    ).reshape(exact.shape)


def deviation_of(pairs: Iterable[tuple[Arrays, Arrays]]) -> Deviation:
    """The largest distance of outputs from others; those may be larger, by what padding makes of them."""
    error, cosines = 0.0, []
    for outputs, answers in pairs:
        for key, expected in answers.items():
            # What stands at padded positions doesn't count.
            actual = outputs[key][tuple(map(slice, expected.shape))]
            agreement = compare_arrays(actual, expected, _ANY)
            finite = not np.isnan(actual).any() or np.isnan(expected).any()
            relative = agreement.max_abs_error / (agreement.scale or 1.0)
            error = max(error, relative if finite else float("inf"))
            if agreement.cosine is not None:
                cosines.append(agreement.cosine)
    return Deviation(error, min(cosines, default=None))


def fewest_kept(
    ranked: Sequence[tuple[str, ...]],
    pure: Precision,
    wider: str,
    holds: Callable[[Precision], bool],
) -> tuple[Precision, int] | None:
    """The precision that keeps the fewest products wider with which ``holds`` is true.

    Args:
        ranked: products, the worst first; the first few of them are kept.
        pure: precision of the rest, which keeps nothing.
        wider: precision of those that are kept.
        holds: asked a logarithm of times, since keeping more hardly ever makes it worse.

    Returns:
        The precision and how many products it keeps, less than all; None if none will do.
    """

    def keeping(count: int) -> Precision:
        return replace(pure, kept=tuple((w, wider) for group in ranked[:count] for w in group))

    counts = range(1, len(ranked))  # with all of them kept it is the wider precision
    if not counts or not holds(keeping(counts[-1])):
        return None
    count = counts[bisect_left(counts, True, hi=len(counts) - 1, key=lambda n: holds(keeping(n)))]
    return keeping(count), count
