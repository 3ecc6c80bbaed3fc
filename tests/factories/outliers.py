"""Random models made more like real ones: a few channels a thousand times as large as the others.

In trained transformers some channels of the residual stream are, from some layer on. Norms before layers take
them back. Norms on the stream itself, as in BERT, make them again, and the layers behind have small weights for
them. Random weights never do that, and hide what float32 loses there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

#: Of the residual stream, beginning at 0.
CHANNELS = (1, 6)
FACTOR = 1000.0


def add_outliers(module: nn.Module, inputs: Mapping[str, Tensor] | None = None) -> None:
    """Makes two channels of the table of tokens large, and the norms behind give back their size.

    What layers read is about what it was, so the model says as much as before. A module without
    a table, or whose layers have no norms, stays as it is.

    Args:
        module: Model, changed in place.
        inputs: Keyword arguments of a run that shows which norms stand on the stream; None: none does.
    """
    channels = list(CHANNELS)
    tables: dict[int, Tensor] = {}
    for part in module.modules():
        if isinstance(part, nn.Embedding) and part.weight.shape[1] >= 16:
            tables.setdefault(part.weight.shape[1], part.weight)  # of tokens; positions come later
    norms = [
        part
        for part in module.modules()
        if "Norm" in type(part).__name__
        and isinstance(getattr(part, "weight", None), Tensor)
        and part.weight.dim() == 1
        and part.weight.shape[0] in tables
    ]
    run = _Run(norms)
    if inputs is not None:
        run.watch(module, inputs)
    with torch.no_grad():
        for width in {norm.weight.shape[0] for norm in norms}:
            table = tables[width]
            size = table.std()
            # Of about one size for every token, as they are in real models. One is the other's negative:
            # the mean, which a LayerNorm takes off, stays as it was.
            table[:, channels[0]] = FACTOR * (size + 0.1 * table[:, channels[0]])
            table[:, channels[1]] = -table[:, channels[0]]
        if inputs is None:
            for norm in norms:
                _rescale(norm, None)
            return

        def meet(norm: nn.Module, args: tuple[Any, ...]) -> None:
            sizes = args[0].abs().flatten(0, -2).amax(0)
            if norm in left and sizes[channels].min() > 10 * sizes.median():
                left.remove(norm)
                _rescale(norm, run.readers.get(norm, []) if norm in run.streams else None)

        left = set(norms)
        hooks = [norm.register_forward_pre_hook(meet) for norm in norms]
        module(**inputs)
        for hook in hooks:
            hook.remove()


def _rescale(norm: nn.Module, readers: Sequence[nn.Module] | None) -> None:
    """Makes up for the large channels that a norm reads.

    Args:
        norm: Norm, changed in place.
        readers: Layers that read its output, which keeps the large channels; None: it loses them.
    """
    channels = list(CHANNELS)
    weight: Any = norm.weight
    # Of the root mean square that the large channels make.
    louder = FACTOR * math.sqrt(len(channels) / weight.shape[0])
    factors = torch.full_like(weight, louder)
    if readers is None:
        factors[channels] = louder / FACTOR
    from_one = 1.0 if float(weight.abs().mean()) < 0.5 else 0.0  # some multiply by 1 + weight
    weight.copy_((weight + from_one) * factors - from_one)
    for reader in readers or ():
        weight = reader.weight
        if type(reader).__name__ == "Conv1D":  # of transformers, with the inputs first
            weight = weight.t()
        if weight.shape[1] > 1:
            weight[:, channels] /= FACTOR
        else:  # a convolution of each channel alone
            weight[channels] /= FACTOR


class _Run(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Finds which norms stand on the residual stream: what they give is added to a layer's output.

    Attributes:
        streams: These norms.
        readers: By norm the linear layers and convolutions that read its output.
    """

    def __init__(self, norms: Sequence[nn.Module]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.streams: set[nn.Module] = set()
        self.readers: dict[nn.Module, list[nn.Module]] = {}
        self._norms = norms
        self._given: dict[
            int, tuple[nn.Module, Tensor]
        ] = {}  # by address; kept, so none comes again

    def watch(self, module: nn.Module, inputs: Mapping[str, Tensor]) -> None:
        """Runs the model."""

        def give(norm: nn.Module, _: Any, output: Tensor) -> None:
            self._given[output.data_ptr()] = norm, output

        def read(reader: nn.Module, args: tuple[Any, ...]) -> None:
            if args and isinstance(args[0], Tensor) and args[0].data_ptr() in self._given:
                readers = self.readers.setdefault(self._given[args[0].data_ptr()][0], [])
                readers += [] if reader in readers else [reader]

        hooks = [norm.register_forward_hook(give) for norm in self._norms]
        for part in module.modules():
            if isinstance(part, (nn.Linear, nn.Conv1d)) or type(part).__name__ == "Conv1D":
                hooks.append(part.register_forward_pre_hook(read))
        with torch.no_grad(), self:
            module(**inputs)
        for hook in hooks:
            hook.remove()
        self._given.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.add.Tensor and isinstance(args[1], Tensor):
            one, other = args[:2]
            if one.shape == other.shape:
                found = [self._given.get(t.data_ptr()) for t in (one, other)]
                self.streams.update(item[0] for item in found if item is not None)
        return result
