"""Recurrent layers: torch's own where they compute the same, and cells step by step otherwise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from edgecompile.onnx_import.graph import Node
from edgecompile.onnx_import.operators import recurrent_cells as cells
from edgecompile.onnx_import.steps import run_steps
from edgecompile.onnx_import.table import OWN, operator

#: The places in ONNX's order of each of torch's gates.
_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
#: Nodes of a program for each step of a cell.
_NODES = 30
_States = tuple[Tensor, ...]


@operator("LSTM", "GRU", "RNN", since=7)
def _recurrent(
    node: Node,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
    c: Tensor | None = None,
    peepholes: Tensor | None = None,
) -> _States:
    _check_weights(node, w, r, b, peepholes)
    x, start = _standard(node, x, w[0], r.shape[2], lengths, h, c)
    if _is_usual(node, peepholes is not None):
        return _arranged(node, *_run(node, x, _weights(node, w, r, b), lengths, start))
    used = cells.activations(node, w.shape[0])
    each = len(used) // w.shape[0]
    outputs, ends = [], []
    for side in range(w.shape[0]):
        both = (None, None) if b is None else b[side].chunk(2)
        gates = functional.linear(x, w[side], both[0])
        weights = cells.Weights(r[side], both[1], None if peepholes is None else peepholes[side])
        functions = used[side * each : (side + 1) * each]
        back = side == 1 or node.get("direction") == "reverse"
        y, *last = _run_cells(
            node, functions, gates, weights, lengths, [s[side] for s in start], back
        )
        outputs.append(y)
        ends.append(last)
    stacked = [torch.stack(states) for states in zip(*ends, strict=True)]
    return _arranged(node, torch.stack(outputs, 1), *stacked)


@operator("LSTM", "GRU", "RNN", domain=OWN)
def _prepared(
    node: Node,
    x: Tensor,
    lengths: Tensor | None,
    h: Tensor | None,
    c: Tensor | None,
    *weights: Tensor,
) -> _States:
    x, start = _standard(node, x, weights[0], weights[1].shape[1], lengths, h, c)
    return _arranged(node, *_run(node, x, weights, lengths, start))


def as_prepared(node: Node, tensors: list[Any]) -> tuple[str, list[Any]] | None:
    """A layer with constant weights as one with torch's; see :func:`operators.linear.as_linear`."""
    b = tensors[3] if len(node.inputs) > 3 and node.inputs[3] else None
    inputs = [*node.inputs, *[""] * (8 - len(node.inputs))]
    if not _is_usual(node, bool(inputs[7])):
        return None
    if tensors[1] is None or tensors[2] is None or (b is None and inputs[3]):
        return None
    _check_weights(node, tensors[1], tensors[2], b)
    places = [place if inputs[place] else None for place in (4, 5, 6)]
    return node.operator, [0, *places, *_weights(node, tensors[1], tensors[2], b)]


def lengths_place(node: Node) -> int | None:
    """The place of a recurrent layer's lengths among its inputs; None: it has none, or is another node."""
    if node.operator not in _ORDER or node.domain not in ("", OWN):
        return None
    place = 1 if node.domain == OWN else 4
    return place if place < len(node.inputs) and node.inputs[place] else None


def _is_usual(node: Node, peepholes: bool) -> bool:
    """Whether a layer of torch computes the node.

    Raises:
        ValueError: the node names an activation that ONNX doesn't have.
    """
    kind, sides = node.operator, _sides(node)
    named = cells.names_activations(node, sides)
    usual = list(cells.USUAL[kind]) * sides
    return (
        (named == usual or (kind == "RNN" and set(named) == {"relu"}))
        and not peepholes
        and node.get("clip") is None
        and not node.get("input_forget", 0)
        and (kind != "GRU" or bool(node.get("linear_before_reset", 0)))
    )


def _sides(node: Node) -> int:
    direction = node.get("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise ValueError(f"it has the direction {direction}, which isn't supported")
    return 2 if direction == "bidirectional" else 1


def _check_weights(
    node: Node, w: Tensor, r: Tensor, b: Tensor | None, p: Tensor | None = None
) -> None:
    """Refuses weights that don't fit the node's directions and gates: torch reads without a check.

    Raises:
        ValueError: a weight has another shape, or is of no states; says which.
    """
    sides, hidden = _sides(node), int(r.shape[-1]) if r.dim() else 0
    rows = len(_ORDER[node.operator]) * hidden
    _check_shape("R", r, [sides, rows, hidden])
    _check_shape("W", w, [sides, rows, int(w.shape[-1]) if w.dim() else 0])
    _check_shape("B", b, [sides, 2 * rows])
    _check_shape("P", p, [sides, 3 * hidden])
    if not hidden:  # torch divides by it
        raise ValueError(f"its R has the shape {list(r.shape)}, which has no states")


def _check_shape(name: str, tensor: Tensor | None, wanted: list[Any]) -> None:
    if tensor is not None and list(tensor.shape) != wanted:
        raise ValueError(f"its {name} has the shape {list(tensor.shape)}, not {wanted}")


def _weights(node: Node, w: Tensor, r: Tensor, b: Tensor | None) -> list[Tensor]:
    order = _ORDER[node.operator]

    def sort(rows: Tensor) -> Tensor:
        parts = rows.chunk(len(order))
        return torch.cat([parts[place] for place in order]).contiguous()

    weights = []
    for side in range(w.shape[0]):
        weights += [sort(w[side]), sort(r[side])]
        if b is not None:
            weights += [sort(half) for half in b[side].chunk(2)]
    return weights


def _standard(
    node: Node,
    x: Tensor,
    w: Tensor,
    hidden: int,
    lengths: Tensor | None,
    h: Tensor | None,
    c: Tensor | None,
) -> tuple[Tensor, list[Tensor]]:
    """The input ``[L, B, I]`` and the first states ``[sides, B, H]``, two of an LSTM.

    Raises:
        ValueError: an input doesn't fit the weights ``w``, ``[G*H, I]``, or the others; says which.
    """
    if x.dim() != 3:
        raise ValueError(f"its X has {x.dim()} dimensions, not 3")
    _check_shape("X", x, [*x.shape[:2], w.shape[1]])
    given = {"initial_h": h}
    if node.operator == "LSTM":
        given["initial_c"] = c
    batch_first = bool(node.get("layout", 0))
    rows, sides = x.shape[0 if batch_first else 1], _sides(node)
    _check_shape("sequence_lens", lengths, [rows])
    empty = x.new_zeros(sides, rows, hidden)
    start = []
    for name, state in given.items():
        _check_shape(name, state, [rows, sides, hidden] if batch_first else [sides, rows, hidden])
        turned = state.transpose(0, 1) if state is not None and batch_first else state
        start.append(empty if turned is None else turned)
    return x.transpose(0, 1) if batch_first else x, start


def _arranged(node: Node, y: Tensor, *ends: Tensor) -> _States:
    """The node's results, from ``[L, sides, B, H]`` and the last states ``[sides, B, H]``."""
    if node.get("layout", 0):
        return (y.permute(2, 0, 1, 3), *(part.transpose(0, 1) for part in ends))
    return (y, *ends)


def _checked(lengths: Tensor | None, steps: Any) -> Tensor | None:
    """The lengths, int64 ``[B]``, each between 0 and ``steps``.

    A program limits them, since a GPU's can't stop. Its runtime refuses longer ones where an input of lengths
    has bounds: there a layer has as many steps as the axis of lengths, or a fixed size of an input.

    Raises:
        ValueError: outside of a program, a length is beyond the number of steps.
    """
    if lengths is None:
        return None
    lengths = lengths.long()
    limited = lengths.clamp(min=0).clamp(max=steps)
    if not torch.compiler.is_compiling() and not torch.equal(limited, lengths):
        raise ValueError(f"it has lengths that aren't between 0 and its {steps} steps")
    return limited


def _turn(x: Tensor, lengths: Tensor | None) -> Tensor:
    """The steps ``[L, B, ...]`` in the other order, each row's own ones if there are lengths."""
    if lengths is None:
        return x.flip(0)
    step = torch.arange(x.shape[0], device=x.device)[:, None]
    turned = torch.where(step < lengths, lengths - 1 - step, step)
    return x[turned, torch.arange(x.shape[1], device=x.device)]


def _run(
    node: Node, x: Tensor, weights: Any, lengths: Tensor | None, start: list[Tensor]
) -> list[Tensor]:
    """What torch's layer computes: ``[L, sides, B, H]`` and the last states."""
    sides, reverse = _sides(node), node.get("direction", "forward") == "reverse"
    lengths = _checked(lengths, x.shape[0])
    x = _turn(x, lengths) if reverse else x
    if lengths is None:
        y, *ends = _layer(node, (x, _state(start)), weights)
    else:
        # torch packs no row without steps.
        packed = pack_padded_sequence(x, lengths.clamp(min=1), enforce_sorted=False)
        order, back = packed.sorted_indices, packed.unsorted_indices
        assert order is not None and back is not None  # rows in any order are taken
        # torch.nn.RNNBase sorts states in the same way.
        first = [state.index_select(1, order) for state in start]
        data, *ends = _layer(node, (packed.data, packed.batch_sizes, _state(first)), weights)
        y, _ = pad_packed_sequence(PackedSequence(data, *packed[1:]), total_length=x.shape[0])
        some = (lengths > 0)[:, None]
        ends = [state.index_select(1, back) for state in ends]
        y, *ends = (torch.where(some, part, 0.0) for part in (y, *ends))
    y = _turn(y, lengths) if reverse else y
    # ONNX has a dimension of its own for the directions.
    return [y.unflatten(2, (sides, -1)).transpose(1, 2), *ends]


def _state(start: list[Tensor]) -> Any:
    return tuple(start) if len(start) > 1 else start[0]


def _layer(node: Node, first: tuple[Any, ...], weights: Any) -> _States:
    """torch's function of a layer; ``first`` has its arguments before the weights."""
    sides = _sides(node)
    biased = len(weights) == 4 * sides
    options = [list(weights), biased, 1, 0.0, False, sides == 2]
    if len(first) == 2:
        options.append(False)  # the batch isn't first; packed rows have no such argument
    if node.operator == "LSTM":
        return torch.lstm(*first, *options)
    named = [str(name).lower() for name in node.get("activations") or ()]
    plain = torch.rnn_relu if "relu" in named else torch.rnn_tanh
    run = torch.gru if node.operator == "GRU" else plain
    return run(*first, *options)


def _run_cells(
    node: Node,
    used: list[cells.Activation],
    gates: Tensor,
    weights: cells.Weights,
    lengths: Tensor | None,
    start: list[Tensor],
    back: bool,
) -> list[Tensor]:
    """One direction, step by step: ``[L, B, H]`` and the last states ``[B, H]``."""
    lengths = _checked(lengths, gates.shape[0])
    count = len(start)
    rows = [_turn(gates, lengths) if back else gates]
    if lengths is not None:
        step = torch.arange(gates.shape[0], device=gates.device)[:, None]
        rows.append((step < lengths)[..., None])
    given = [part for part in weights if part is not None]
    there = [part is not None for part in weights]

    def compute(*values: Tensor) -> list[Tensor]:
        states, rest = list(values[:count]), list(values[count:])
        x = rest.pop(0)
        real = rest.pop(0) if lengths is not None else None
        own = cells.Weights(*(rest.pop(0) if has else None for has in there))  # type: ignore[arg-type]
        h, c = cells.step(node, used, x, states[0], states[-1], own)
        made = [h] if c is None else [h, c]
        if real is None:
            return [*made, h]
        kept = [torch.where(real, a, b) for a, b in zip(made, states, strict=True)]
        return [*kept, torch.where(real, h, 0.0)]

    *ends, y = run_steps(compute, start, rows, given, _NODES)
    if lengths is not None:
        some = (lengths > 0)[:, None]
        ends = [torch.where(some, state, 0.0) for state in ends]
    return [_turn(y, lengths) if back else y, *ends]
