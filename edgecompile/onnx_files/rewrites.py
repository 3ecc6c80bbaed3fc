"""Rewrites of an exported program before torch's exporter translates it to ONNX."""

from __future__ import annotations

import copy
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import GraphModule, Node
from torch.nn import Parameter
from torch.utils._pytree import tree_flatten

from edgecompile.backends.lowering.halves import widen_halves
from edgecompile.backends.lowering.last_writes import order_writes
from edgecompile.backends.lowering.rewriting import Lowering, LoweringReport
from edgecompile.errors import CompileError
from edgecompile.export.halves import computes_in_halves, is_half

aten = torch.ops.aten

#: Most comparisons that one operator's writes may take: of 8,192 with each other, which is 600 MB.
_MOST_COMPARED = 1 << 26
#: What becomes a view where the layout allows one.
_VIEWS = (
    aten.view.default,
    aten.reshape.default,
    aten.flatten.using_ints,
    aten.reshape_as.default,
    aten.view_as.default,
)
#: Operators with a number that torch's exporter doesn't translate where the number is a size, with those of a tensor.
_NUMBERS: dict[Any, Any] = {
    aten.remainder.Scalar: aten.remainder.Tensor,
    aten.fmod.Scalar: aten.fmod.Tensor,
    aten.floor_divide.Scalar: aten.floor_divide.default,
}


def rewritten(program: ExportedProgram) -> ExportedProgram:
    """A copy of a program that ONNX, TensorRT and torch's exporter give the model's answers for.

    All writes of an operator to one place write what the last one does, as ONNX leaves their order open. A selection
    gives its values in order, where the model lets it give them in any. Equations name every dimension, as TensorRT's
    parser knows no ellipsis before 10.12. Views are taken of contiguous copies,
    which the graph loses again: the exporter's attention gives its result in another layout than torch's.

    What forward computes in half precision is float32: the precision of the build is for all of the model.

    Raises:
        CompileError: a mask stands beside indices that may repeat, or too many writes are to be compared.
    """
    signature = program.graph_signature
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    root = copy.deepcopy(program.graph_module)
    # A copy calls an input otherwise that has the name of a function of Python's, such as "input".
    for node, copied in zip(program.graph.nodes, root.graph.nodes, strict=True):
        copied.name = node.name
    weights, own = program.state_dict, program.constants
    if computes_in_halves(root):
        weights, own = (_wide_tensors(tensors) for tensors in (weights, own))
        stored = {n for n, label in names.items() if label in weights or label in own}
        widen_halves(Lowering(root, LoweringReport()), stored)
    held = {**own, **weights}
    constants = {name: held[label] for name, label in names.items() if label in held}
    order_writes(root, _find_last, constants)
    for part in root.modules():
        if isinstance(part, GraphModule):
            changed = {_base(node.args[0]) for node in part.graph.nodes if _is_in_place(node)}
            for node in list(part.graph.nodes):
                if node.target in _VIEWS and _base(node) not in changed:
                    _copy_viewed(part, node)
                _rewrite(part, node)
            part.recompile()
    return ExportedProgram(
        root=root,
        graph=root.graph,
        graph_signature=_with_outputs(signature, root),
        state_dict=weights,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=own,
        verifiers=program.verifiers,
    )


def _wide_tensors(tensors: Mapping[str, Any]) -> dict[str, Any]:
    def wide(tensor: Any) -> Any:
        if not is_half(tensor):
            return tensor
        is_parameter = isinstance(tensor, Parameter)
        return Parameter(tensor.float(), requires_grad=False) if is_parameter else tensor.float()

    return {name: wide(tensor) for name, tensor in tensors.items()}


def _with_outputs(signature: ExportGraphSignature, root: GraphModule) -> ExportGraphSignature:
    """The signature with the names of the graph's own outputs, which rewrites may have changed."""
    nodes, _ = tree_flatten(next(iter(reversed(root.graph.nodes))).args[0])
    specs = [
        replace(spec, arg=replace(spec.arg, name=node.name))
        if isinstance(node, Node) and hasattr(spec.arg, "name")
        else spec
        for spec, node in zip(signature.output_specs, nodes, strict=True)
    ]
    return replace(signature, output_specs=specs)


def _copy_viewed(part: GraphModule, node: Node) -> None:
    source = node.args[0]
    assert isinstance(source, Node)
    with part.graph.inserting_before(node):
        plain = part.graph.call_function(aten.clone.default, (source,))
    plain.kwargs = {"memory_format": torch.contiguous_format}
    plain.meta = {**node.meta, "val": source.meta["val"].contiguous()}
    node.args = (plain, *node.args[1:])


def _is_in_place(node: Node) -> bool:
    return hasattr(node.target, "_schema") and node.target._schema.is_mutable


def _base(node: Any) -> Any:
    """The tensor whose memory a node's result is, or may be."""
    while isinstance(node, Node) and hasattr(node.target, "_schema") and node.args:
        returned = node.target._schema.returns
        if not returned or returned[0].alias_info is None:
            break
        node = node.args[0]
    return node


def _rewrite(part: GraphModule, node: Node) -> None:
    if node.target is aten.topk.default:
        node.args, node.kwargs = node.args[:4], {**node.kwargs, "sorted": True}
    elif node.target is aten.einsum.default:
        equation, operands = node.args[:2]
        values = [operand.meta["val"] for operand in operands]  # type: ignore[union-attr]
        node.args = (_without_ellipsis(str(equation), values), *node.args[1:])
    elif node.target in _NUMBERS and isinstance(node.args[1], Node):
        with part.graph.inserting_before(node):
            number = part.graph.call_function(aten.scalar_tensor.default, (node.args[1],))
            number.kwargs = {"dtype": node.meta["val"].dtype}
        number.meta = {k: v for k, v in node.meta.items() if k != "val"}
        number.meta["val"] = node.meta["val"].new_empty(())
        node.target, node.args = _NUMBERS[node.target], (node.args[0], number)


def _without_ellipsis(equation: str, operands: Sequence[Tensor]) -> str:
    """An equation with a letter for each dimension that an ellipsis stands for.

    It stays as it is where one of these dimensions is broadcast, which no letter says in ONNX.
    """
    equation = equation.replace(" ", "")
    if "..." not in equation:
        return equation
    sources, arrow, result = equation.partition("->")
    terms = sources.split(",")
    named = [len(term.replace("...", "")) for term in terms]
    counts = [
        operand.dim() - count if "..." in term else 0
        for term, operand, count in zip(terms, operands, named, strict=True)
    ]
    free = [letter for letter in string.ascii_lowercase if letter not in equation]
    letters = "".join(free[: max(counts)])
    if len(letters) < max(counts):
        return equation
    if not arrow:  # those of the ellipsis, then those that stand once, in the alphabet's order
        once = sorted(x for x in set(sources) if x.isalpha() and sources.count(x) == 1)
        result = "..." + "".join(once)
    sizes: dict[str, set[Any]] = {}
    for term, operand, count in zip(terms, operands, counts, strict=True):
        if count:
            first = term.index("...")
            shape = operand.shape[first : first + count]
            for letter, size in zip(letters[len(letters) - count :], shape, strict=True):
                sizes.setdefault(letter, set()).add(size if isinstance(size, int) else str(size))
    if any(1 in found and len(found) > 1 for found in sizes.values()):
        return equation
    written = [
        term.replace("...", letters[len(letters) - count :])
        for term, count in zip(terms, counts, strict=True)
    ]
    return ",".join(written) + "->" + result.replace("...", letters)


def _find_last(places: Tensor, room: Any) -> Tensor:
    """Compares every write with every other: ONNX has no largest value at indices that all of TensorRT takes, and
    TensorRT sorts 3,840 values at most."""
    lines, count = (_most(size) for size in places.shape)
    if lines * count * count > _MOST_COMPARED:
        raise CompileError(
            f"the model makes up to {lines * count:,} writes at indices that may repeat: for TensorRT each is compared "
            f"with every other of its line, {lines * count * count:,} times, and {_MOST_COMPARED:,} are the limit",
            hint="lower the largest length, write at places that can't repeat (a range, those of a sort), or build for "
            'the module\'s own cores (`target="jetson-orin-cpu"`)',
        )
    order = torch.arange(places.shape[1], device=places.device)
    same = places[:, :, None] == places[:, None, :]
    return torch.where(same, order, -1).amax(-1)


def _most(size: Any) -> int:
    """The largest value of a size; 2**31 where none is known."""
    if isinstance(size, int):
        return size
    upper = size.node.shape_env.bound_sympy(size.node.expr).upper
    return int(upper) if upper.is_finite and upper < 1 << 31 else 1 << 31
