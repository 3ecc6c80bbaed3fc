"""Nodes with graphs inside: If, Loop and Scan.

A Loop or Scan of a known number of rounds is unrolled. One whose number of rounds is a size that varies
becomes torch's operator ``scan``, so that one program serves every size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from edgecompile.errors import ModelError
from edgecompile.onnx_import.graph import Graph, Node
from edgecompile.onnx_import.sizes import Known, as_tensor, known, stored
from edgecompile.onnx_import.steps import needs_scan, scan

#: Nodes of the domain of ONNX itself that have inner graphs.
OPERATORS = ("If", "Loop", "Scan")
#: Rounds of a run of the model, those of inner Loops too.
_MOST_ROUNDS = 1 << 16
#: Where a run's values have the number of its rounds: no value has this name.
_ROUNDS = ""
_Values = dict[str, Any]
_Run = Callable[[Iterable[Node], _Values], None]
_Body = Callable[[Sequence[Any]], list[Any]]


def has_inner_graphs(node: Node) -> bool:
    """Whether :func:`compute_inner` computes a node."""
    early = node.operator == "Scan" and node.opset < 9  # had a dimension of batches
    return node.operator in OPERATORS and not node.domain and not early


def compute_inner(node: Node, values: _Values, run: _Run) -> Sequence[Any]:
    """The results of an If, a Loop or a Scan.

    Args:
        node: the node.
        values: the values by name that its graphs may take.
        run: computes nodes; their results join the values that it is given.

    Raises:
        ModelError: a choice or a number of rounds depends on values of inputs, or the graphs don't fit the node.
    """
    if node.operator == "If":
        condition = values[node.inputs[0]]
        if not isinstance(condition, Known):
            raise ModelError(
                f"the ONNX node {node} chooses by '{node.inputs[0]}', which depends on values of inputs",
                hint="an If is taken where its condition follows from constants and shapes; `fixed_input` makes "
                "an input a constant",
            )
        branch = node.graphs["then_branch" if bool(condition.numbers[0]) else "else_branch"]
        return _body(branch, values, run)([])
    values.setdefault(_ROUNDS, [0])
    body = node.graphs.get("body")
    if body is None:
        raise ModelError(f"the ONNX node {node} has no body")
    rounds = _Loop(node, body, values) if node.operator == "Loop" else _Scan(node, body, values)
    return rounds.results(_body(body, values, run), values)


def _body(graph: Graph, values: _Values, run: _Run) -> _Body:
    def compute(inputs: Sequence[Any]) -> list[Any]:
        inner = dict(values)
        inner.update((name, stored(tensor)) for name, tensor in graph.tensors.items())
        inner.update(zip((value.name for value in graph.inputs), inputs, strict=True))
        run(graph.nodes, inner)
        return [inner[name] for name in graph.outputs]

    return compute


class _Rounds:
    """The rounds of one node.

    Attributes:
        carried: values that each round hands to the next, in the order of the body's inputs.
        rows: tensors of which each round gets a row.
        count: the number of rounds, which may be a size that varies; None: rounds go on while the
            condition holds.
    """

    def __init__(self, node: Node, body: Graph, carried: list[Any], rows: list[Any]) -> None:
        self._node, self._graph = node, body
        self.carried, self.rows = carried, rows
        self.count: Any = None

    def _check(self, inputs: int, outputs: int, results: int) -> None:
        if len(self._graph.inputs) != inputs or len(self._graph.outputs) < outputs:
            raise self._error("has a body with another number of inputs or outputs")
        if len(self._node.outputs) > results:
            raise self._error("has more outputs than its body gives")

    def _error(self, text: str, hint: str | None = None) -> ModelError:
        return ModelError(f"the ONNX node {self._node} {text}", hint=hint)

    def _step(
        self, body: _Body, carried: Sequence[Any], rows: Sequence[Any]
    ) -> tuple[bool, list[Any]]:
        """Whether the rounds go on, and what the body gives: carried values, then rows of results."""
        raise NotImplementedError

    def _unroll(self, body: _Body, spent: list[int]) -> tuple[list[Any], list[list[Any]]]:
        carried, made, done = list(self.carried), [], 0
        goes_on = True
        while goes_on and (self.count is None or done < self.count):
            spent[0] += 1
            if spent[0] > _MOST_ROUNDS:
                raise self._error(f"has more than {_MOST_ROUNDS} rounds, with those around it")
            goes_on, results = self._step(body, carried, [row[done] for row in self.rows])
            carried, done = results[: len(carried)], done + 1
            made.append([as_tensor(value) for value in results[len(carried) :]])
        return carried, [list(column) for column in zip(*made, strict=True)]

    def results(self, body: _Body, values: _Values) -> list[Any]:
        """What the node gives: the last carried values, then the rows that the rounds made, stacked."""
        nodes = sum(1 for _ in self._graph.walk()) + 1
        if needs_scan(self.count, nodes):
            carried, stacks = self._as_scan(body, values)
            return [*carried, *stacks]
        carried, columns = self._unroll(body, values[_ROUNDS])
        made = len(self._node.outputs) - len(carried)
        if made > 0 and not columns:
            raise self._error("runs no round, and the shape of its results isn't known then")
        return [*carried, *(torch.stack(column) for column in columns)]

    def _as_scan(self, body: _Body, values: _Values) -> tuple[list[Any], list[Any]]:
        taken = self._graph.taken - {value.name for value in self._graph.inputs}
        outer = {name: values[name] for name in sorted(taken & values.keys())}
        tensors = {name: v for name, v in outer.items() if isinstance(v, torch.Tensor)}
        sizes = {name: v for name, v in outer.items() if isinstance(v, Known) and v.symbolic}
        numbers = [number for value in sizes.values() for number in value.numbers]
        start = [as_tensor(value) for value in self.carried]

        def step(*given: Any) -> list[torch.Tensor]:
            carried, rows = given[: len(start)], given[len(start) : len(start) + len(self.rows)]
            rest = list(given[len(start) + len(self.rows) :])
            inside = dict(zip(tensors, rest, strict=False))
            rest = rest[len(tensors) :]
            for name, value in sizes.items():
                size = value.array.size
                inside[name] = known(rest[:size], value.array.shape, value.dtype)
                rest = rest[size:]
            values.update(inside)
            goes_on, results = self._step(body, carried, rows)
            if not goes_on:
                raise self._error("ends after its first round, and a size says how many there are")
            for before, after in zip(carried, results, strict=False):
                after = as_tensor(after)
                if before.shape != after.shape or before.dtype != after.dtype:
                    raise self._error(
                        "has a value that changes its shape or type from round to round, and a size says how "
                        "many there are"
                    )
            return [as_tensor(result) for result in results]

        kept = dict(values)
        try:
            made = scan(step, start, self.rows, (*tensors.values(), *numbers))
        finally:
            values.clear()
            values.update(kept)
        return made[: len(start)], made[len(start) :]


class _Loop(_Rounds):
    def __init__(self, node: Node, body: Graph, values: _Values) -> None:
        # Both the number of rounds and the condition may be left out.
        names = [*node.inputs, "", ""]
        most, condition = (values[name] if name else None for name in names[:2])
        carried = [values[name] for name in node.inputs[2:]]
        super().__init__(node, body, carried, [])
        self._check(2 + len(carried), 1 + len(carried), len(body.outputs) - 1)
        for value, name in ((most, "as often as"), (condition, "while")):
            if value is not None and not isinstance(value, Known):
                raise self._error(
                    f"runs {name} values of inputs say",
                    hint="a Loop is taken where its number of rounds follows from constants and shapes",
                )
        begins = condition is None or bool(condition.numbers[0])
        self.count = (None if most is None else most.numbers[0]) if begins else 0
        if isinstance(self.count, int) and self.count > _MOST_ROUNDS:
            self.count = None

    def _unroll(self, body: _Body, spent: list[int]) -> tuple[list[Any], list[list[Any]]]:
        self.rows = [range(_MOST_ROUNDS)]
        return super()._unroll(body, spent)

    def _as_scan(self, body: _Body, values: _Values) -> tuple[list[Any], list[Any]]:
        self.rows = [torch.arange(self.count)]
        return super()._as_scan(body, values)

    def _step(
        self, body: _Body, carried: Sequence[Any], rows: Sequence[Any]
    ) -> tuple[bool, list[Any]]:
        number = rows[0]
        if not isinstance(number, torch.Tensor):
            number = known([number], (), torch.int64)
        goes_on, *results = body([number, known([True], (), torch.bool), *carried])
        if not isinstance(goes_on, Known):
            raise _EndsByValuesError
        return bool(goes_on.numbers[0]), results

    def results(self, body: _Body, values: _Values) -> list[Any]:
        kept = dict(values)
        try:
            return super().results(body, values)
        except _EndsByValuesError:
            text = "goes on or ends by values of inputs"
        if self.count is None:
            raise self._error(
                text,
                hint="a Loop is taken where constants or shapes say how many rounds there are at most, up to "
                f"{_MOST_ROUNDS}",
            )
        if len(self._graph.outputs) > 1 + len(self.carried):
            raise self._error(f"{text}, and gives a row for each round")
        values.clear()
        values.update(kept)
        masked = _MaskedLoop(self._node, self._graph, kept)
        return masked.results(body, values)[: len(self.carried)]


class _EndsByValuesError(Exception):
    """A body's condition depends on values."""


class _MaskedLoop(_Loop):
    """A Loop that values end: all rounds that there may be run, and those behind its end change nothing.

    They run with the inputs of the last round, which can't fail where that round didn't. Carried are the
    values, the inputs of the last round, the number of rounds, and whether the Loop goes on.
    """

    def __init__(self, node: Node, body: Graph, values: _Values) -> None:
        super().__init__(node, body, values)
        self._carries = len(self.carried)
        start = [as_tensor(value) for value in self.carried]
        self.carried = [*start, *start, torch.tensor(0), torch.tensor(True)]

    def _step(
        self, body: _Body, carried: Sequence[Any], rows: Sequence[Any]
    ) -> tuple[bool, list[Any]]:
        *both, done, alive = carried
        state, last = both[: self._carries], both[self._carries :]
        taken = [torch.where(alive, a, b) for a, b in zip(state, last, strict=True)]
        number = torch.where(alive, done, done - 1)
        goes_on, *given = body([number, known([True], (), torch.bool), *taken])
        after = [as_tensor(value) for value in given]
        if [(x.shape, x.dtype) for x in after] != [(x.shape, x.dtype) for x in state]:
            raise self._error(
                "has a value that changes its shape or type, and values of inputs end it"
            )
        kept = [torch.where(alive, a, b) for a, b in zip(after, state, strict=True)]
        more = torch.logical_and(alive, as_tensor(goes_on).reshape(()))
        return True, [*kept, *taken, done + alive.long(), more]


class _Scan(_Rounds):
    def __init__(self, node: Node, body: Graph, values: _Values) -> None:
        given = [as_tensor(values[name]) for name in node.inputs]
        rows = int(node.get("num_scan_inputs", 0))
        if not 0 < rows <= len(given):
            super().__init__(node, body, [], [])
            raise self._error(f"has {len(given)} inputs, {rows} of them in rows")
        first = len(given) - rows
        super().__init__(node, body, given[:first], given[first:])
        self._check(len(given), first, len(body.outputs))
        axes = node.get("scan_input_axes") or [0] * rows
        back = node.get("scan_input_directions") or [0] * rows
        self.rows = [
            row.movedim(axis, 0).flip(0) if turned else row.movedim(axis, 0)
            for row, axis, turned in zip(self.rows, axes, back, strict=True)
        ]
        self.count = self.rows[0].shape[0]

    def _step(
        self, body: _Body, carried: Sequence[Any], rows: Sequence[Any]
    ) -> tuple[bool, list[Any]]:
        return True, body([*carried, *rows])

    def results(self, body: _Body, values: _Values) -> list[Any]:
        made = super().results(body, values)
        first = len(self.carried)
        count = len(made) - first
        axes = self._node.get("scan_output_axes") or [0] * count
        back = self._node.get("scan_output_directions") or [0] * count
        stacks = [
            (stack.flip(0) if turned else stack).movedim(0, axis)
            for stack, axis, turned in zip(made[first:], axes, back, strict=True)
        ]
        return [*made[:first], *stacks]
