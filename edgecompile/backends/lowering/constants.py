"""A graph's constants and the values that export recorded for its nodes."""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from edgecompile.backends.lowering.in_place import is_changed

#: How the names of packed weights begin.
PACKED_PREFIX = "ecpack_"

#: How export names tensors that are no attribute of the model, in the order of their use: the same
#: name may be another tensor in another program.
_NAMELESS = ("lifted_tensor_", "_tensor_constant", "_lifted_tensor_constant")


def is_nameless(name: str) -> bool:
    """Whether another program's constant of this name may be another tensor."""
    return name.startswith(_NAMELESS)


def packed_name(names: Sequence[str]) -> str:
    """An attribute's name for what is made of these constants; other constants, another name.

    Attributes have no dots: ``a.b`` and ``a_b`` would be one name, so a hash tells them apart.
    """
    text = PACKED_PREFIX + "__".join(name.replace(".", "_") for name in names)
    if len(names) == 1 and "_" not in names[0]:
        return text
    return f"{text}_{hashlib.sha256(json.dumps(names).encode()).hexdigest()[:8]}"


def attribute_name(prefix: str, label: str, key: object) -> str:
    """An attribute's name for what is made according to ``key``, with a label to read."""
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:12]
    return prefix + re.sub(r"\W", "_", label) + "_" + digest


def constant_of(gm: GraphModule, node: Any) -> Tensor | None:
    """The tensor behind a ``get_attr`` node, or None if ``node`` is something else."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    value: Any = gm
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value.detach() if isinstance(value, Tensor) else None


def value_of(node: Any) -> Tensor | None:
    """The fake tensor that export recorded for ``node``, or None."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, Tensor) else None


@dataclass(frozen=True)
class Folded:
    """A tensor that is known at build time.

    Attributes:
        tensor: its values; several tensors for what is only an operand of another one.
        label: the name of the constant that it is, or is made of in the first place.
        key: its derivation, by names: equal keys in one module mean equal values.
        plain: whether it is the constant ``label`` itself.
    """

    tensor: Any
    label: str
    key: object
    plain: bool = False

    def node(self, gm: GraphModule) -> Node:
        """Reads a plain one; inserts where the graph's insertions go."""
        assert self.plain
        return gm.graph.get_attr(self.label)


def fold_constant(gm: GraphModule, node: Any) -> Folded | None:
    """Computes a node that reads constants alone; None if it reads anything else, or what is changed in place.

    Weights that a module computes when it is called (weight norm, say) are found in this way.
    """
    if isinstance(node, Node) and is_changed(node):
        return None
    constant = constant_of(gm, node)
    if constant is not None:
        name = str(node.target)
        key = name
        if is_nameless(name):
            content = constant.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            key += f" {tuple(constant.shape)} {hashlib.sha256(content).hexdigest()}"
        return Folded(constant, name, key, plain=True)
    if not isinstance(node, Node) or node.op != "call_function":
        return None
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        if node.target is not operator.getitem:
            return None
    elif schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags:  # type: ignore[union-attr]
        return None
    inputs: dict[Node, Folded] = {}
    for source in node.all_input_nodes:
        folded = fold_constant(gm, source)
        if folded is None:
            return None
        inputs[source] = folded
    if not inputs:
        return None

    def value(source: Node) -> Any:
        return inputs[source].tensor

    def key_of(source: Node) -> Any:
        return inputs[source].key

    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value)
    with torch.no_grad():
        tensor = node.target(*args, **kwargs)  # type: ignore[operator]
    if not isinstance(tensor, (Tensor, tuple, list)):
        return None
    # As a digest: the text of a derivation doubles with each step.
    recipe = repr((str(node.target), torch.fx.map_arg((node.args, node.kwargs), key_of)))
    key = hashlib.sha256(recipe.encode()).hexdigest()
    return Folded(tensor, next(iter(inputs.values())).label, key)


def drop_unused_constants(gm: GraphModule) -> None:
    """Removes the parameters and buffers that no node of the graph reads."""
    used = {str(n.target) for n in gm.graph.nodes if n.op == "get_attr"}
    for name in _constant_names(gm):
        if name not in used:
            owner, _, leaf = name.rpartition(".")
            delattr(gm.get_submodule(owner) if owner else gm, leaf)


def _constant_names(gm: GraphModule) -> list[str]:
    """Names of all parameters and buffers, those of tied ones included."""
    parameters = [name for name, _ in gm.named_parameters(remove_duplicate=False)]
    return parameters + [name for name, _ in gm.named_buffers(remove_duplicate=False)]


def make_constants_contiguous(gm: GraphModule) -> None:
    """Gives every constant that the graph reads a row-major memory of its own.

    The weights file holds nothing else, and what Inductor notes of a constant are the strides and
    the size of the memory behind it, which may be that of a larger tensor.
    """
    # By the old one's id, beside the old one, whose id no other tensor may get meanwhile.
    fresh: dict[int, tuple[Tensor, Tensor]] = {}
    for name in sorted({str(n.target) for n in gm.graph.nodes if n.op == "get_attr"}):
        owner, _, leaf = name.rpartition(".")
        module = gm.get_submodule(owner) if owner else gm
        tensor = getattr(module, leaf)
        if not isinstance(tensor, Tensor):
            continue  # a submodule
        whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
        if whole and tensor.is_contiguous():
            continue
        if id(tensor) not in fresh:
            copy = tensor.detach().clone(memory_format=torch.contiguous_format)
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            fresh[id(tensor)] = (
                tensor,
                torch.nn.Parameter(copy, requires_grad=False) if is_parameter else copy,
            )
        setattr(module, leaf, fresh[id(tensor)][1])  # tied constants stay tied
