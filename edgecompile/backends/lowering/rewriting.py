"""Steps that all graph rewrites share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from edgecompile.backends.lowering.inlining import inline

aten = torch.ops.aten

#: Registers a weight with its name, packed, and returns the name of the attribute.
Pack = Callable[[Tensor, str], str]

#: Rewrites a node; False where it isn't what the rule is for, the reason where it is but can't be.
Rule = Callable[[Node], bool | str]


@dataclass
class LoweringReport:
    """Counts of rewrites, for the build log, explanations and tests.

    Attributes:
        counts: the number of rewrites by kind: ``linears``, ``norms``, ``attentions``,
            ``recurrences``, ``convolutions``: calls of the runtime's operators that were emitted;
            ``merged``: linears that became part of a wider one because they share an input;
            ``activations`` and ``residuals``: activations and sums fused into a product; ``exact``:
            remainders, floored quotients and variances done as torch's kernels do them; ``equal``:
            nodes that computed what another one does; ``rows``: nodes that compute the one row that is
            read instead of all; ``halves``: operators of half precision that
            compute in float32 and round; ``grouped``: products of groups of rows (mixtures of
            experts); ``heads``: products of which a run may leave out tokens; ``tables``: embeddings whose table is a packed weight; ``pointwise``: convolutions that became linears; ``batch_norms``, ``pads`` and
            ``convolved_activations``: what was taken over into convolutions; ``boxes``: torchvision's
            suppressions and averages over boxes; ``samples``: images at places between their pixels;
            ``means``: means over images, by lines.
        kept: reasons, by node name, why a candidate was left to Inductor.
        plain_convolutions: reasons, by node name, why one was left to the general kernel.
        packed: names of the weights behind each packed one, by the attribute of the latter.
        tables: names of the tables of embeddings that a packed weight stands for, by its attribute.
        narrowed: precision of each weight that isn't stored in fp32, by its name.
        windows: the widest window of each cache that is read through windows alone, by its name.
    """

    counts: Counter[str] = field(default_factory=Counter)
    kept: dict[str, str] = field(default_factory=dict)
    plain_convolutions: dict[str, str] = field(default_factory=dict)
    packed: dict[str, list[str]] = field(default_factory=dict)
    tables: dict[str, list[str]] = field(default_factory=dict)
    narrowed: dict[str, str] = field(default_factory=dict)
    windows: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Lowering:
    """A graph that is being rewritten in place, with the report of it."""

    gm: GraphModule
    report: LoweringReport

    def each(self, kind: str, targets: Container[Any], rule: Rule) -> None:
        """Applies a rule to every node that calls one of some operators, and counts as ``kind``."""
        for node in list(self.gm.graph.nodes):
            if node.target in targets:
                outcome = rule(node)
                if isinstance(outcome, str):
                    self.report.kept[node.name] = outcome
                else:
                    self.report.counts[kind] += outcome


def is_float32(value: Tensor | None) -> TypeGuard[Tensor]:
    """Whether there is a tensor, and it is of this dtype."""
    return value is not None and value.dtype == torch.float32


def arguments_of(node: Node) -> dict[str, Any]:
    """The arguments of an operator's call by the names in its schema, with the defaults of those
    that the call leaves out."""
    target: Any = node.target
    arguments = target._schema.arguments
    names = [argument.name for argument in arguments]
    values = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return {item.name: values.get(item.name, item.default_value) for item in arguments}


def replace(
    gm: GraphModule, first: Node, target: Any, args: Sequence[Any], last: Node | None = None
) -> Node:
    """Puts a call in place of a node, or of the chain of nodes from ``first`` to ``last``."""
    with gm.graph.inserting_before(first):
        new = gm.graph.call_function(target, tuple(args))
    last = last or first
    new.meta = dict(last.meta)
    last.replace_all_uses_with(new)
    erase_chain(gm, first, last)
    return new


def replace_results(gm: GraphModule, node: Node, results: Sequence[Node]) -> None:
    """Puts nodes in place of one, or of those that take their results from its tuple."""
    if isinstance(node.meta.get("val"), Tensor):
        results[0].meta.update(val=node.meta["val"])
        node.replace_all_uses_with(results[0])
    else:
        for taker in list(node.users):
            new = results[taker.args[1]]  # type: ignore[index]
            new.meta.update(val=taker.meta["val"])
            taker.replace_all_uses_with(new)
            gm.graph.erase_node(taker)
    gm.graph.erase_node(node)


def erase_chain(gm: GraphModule, first: Node, last: Node) -> None:
    """Removes a chain of nodes, each the only reader of the one before it."""
    while last is not first:
        before = last.args[0]
        assert isinstance(before, Node)
        gm.graph.erase_node(last)
        last = before
    gm.graph.erase_node(first)


def select_by_masks(gm: GraphModule) -> None:
    """Writes ``masked_select`` as an index: a mask of the same sizes."""
    for node in list(gm.graph.nodes):
        if node.target is aten.masked_select.default:
            x, mask = inline(gm, node, torch.broadcast_tensors, list(node.args), symbolic=True)
            replace(gm, node, aten.index.Tensor, (x, [mask]))


def drop_dropout(gm: GraphModule) -> None:
    """Removes dropout nodes of evaluation mode, so that they don't hide patterns."""
    for node in list(gm.graph.nodes):
        if node.target is aten.dropout.default and not node.args[2]:
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)


#: torch's names for its own checks (``torch._check_tensor_all``), which no runtime has, with the plain operators.
_PLAIN = {
    aten._is_all_true.default: aten.all.default,
    aten._is_any_true.default: aten.any.default,
}


def write_checks(gm: GraphModule) -> None:
    """Calls plain operators where a model checks values."""
    for node in gm.graph.nodes:
        node.target = _PLAIN.get(node.target, node.target)
