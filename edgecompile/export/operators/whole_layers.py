"""Keeps torch's recurrent layers whole while a model is traced, over padded rows and packed ones."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from edgecompile.export.operators.packing import Padded, pack, run_packed, unpack
from edgecompile.export.operators.recurrence import KINDS, Stack

#: Of torch.lstm, torch.gru and so on, as the modules call them.
_ARGUMENTS = 9
_FIRST = 0


class WholeRecurrences(TorchFunctionMode):
    """While it is entered, torch's recurrent layers call :data:`PLAIN`.

    Layers with projections and other dtypes than float32 stay torch's.
    """

    def __init__(self) -> None:
        super().__init__()
        # By the identity of their numbers of rows, which are kept so that it stays theirs.
        self._packed: dict[int, tuple[Tensor, Padded]] = {}
        # The layers make an int of a number of rows, which would fix it.
        self._whole = patch.object(nn.RNNBase, "get_expected_hidden_size", _state_size)

    def __enter__(self) -> Any:
        self._whole.start()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._whole.stop()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        result: Any = NotImplemented
        if name in KINDS and len(args) == _ARGUMENTS and not kwargs:
            padded = self._padded(args[1])
            result = _layer(name, *args) if padded is None else _packed_layer(name, padded, *args)
        elif name == "_pack_padded_sequence" and not kwargs:
            *result, padded = pack(*args)
            self._packed[id(result[1])] = result[1], padded
        elif name == "_pad_packed_sequence" and not kwargs:
            data, counts, *rest = args
            padded = self._padded(counts)
            result = NotImplemented if padded is None else unpack(data, padded, *rest)
        elif name in ("__getitem__", "size") and len(args) == 2 and args[1] is _FIRST:
            padded = self._padded(args[0])
            if padded is not None:  # the first step has all rows
                result = padded.most if name == "size" else padded.rows
        return func(*args, **kwargs) if result is NotImplemented else result

    def _padded(self, counts: object) -> Padded | None:
        """The padded rows of a packed sequence with these numbers of rows; None of other values."""
        return self._packed.get(id(counts), (None, None))[1]


_own_state_size = nn.RNNBase.get_expected_hidden_size


def _state_size(layer: nn.RNNBase, x: Tensor, counts: Any) -> Any:
    """The size of a layer's states; the numbers of rows of a packed sequence may vary."""
    rows = None if counts is None else counts[0]
    if not isinstance(rows, torch.SymInt):
        return _own_state_size(layer, x, counts)
    directions = 2 if layer.bidirectional else 1
    return layer.num_layers * directions, rows, layer.proj_size or layer.hidden_size


def _is_plain(stack: Stack, x: Tensor, weights: Any, training: bool) -> bool:
    return (
        isinstance(stack.biases, bool)
        and isinstance(weights, (list, tuple))
        and len(weights) == stack.weights
        and not training
        and x.dtype == torch.float32
    )


def _states(state: Any) -> tuple[Tensor, ...]:
    return (state,) if isinstance(state, Tensor) else tuple(state)


def _layer(name: str, *args: Any) -> Any:
    x, state, weights, biases, layers, _, training, bidirectional, batch_first = args
    stack = Stack(name, biases, layers, bidirectional, batch_first)
    if not _is_plain(stack, x, weights, training):
        return NotImplemented
    return stack.run(x, *_states(state), *weights)


def _packed_layer(name: str, padded: Padded, *args: Any) -> Any:
    data, _, state, weights, biases, layers, _, training, bidirectional = args
    stack = Stack(name, biases, layers, bidirectional, False)
    if not _is_plain(stack, data, weights, training):
        raise NotImplementedError(
            "a packed sequence goes through a recurrent layer with projections, or of another type than float32"
        )
    return run_packed(stack, data, padded, *_states(state), *weights)
