"""A graph as an ONNX file states it, without protobuf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Value:
    """An input or output of a graph.

    Attributes:
        name: its name in the file.
        dtype: its element type.
        shape: its sizes: a number, a name, or None where the file says neither.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True)
class Node:
    """A node.

    Attributes:
        operator, domain: the operator's name and domain; ONNX's own domain is empty.
        opset: the version of the domain's operators.
        label: the node's name, or one made of its place.
        inputs, outputs: the names of values; an empty one stands for an absent value.
        attributes: the attributes; a tensor is known numbers where it
            is small, else a torch tensor; an inner graph a :class:`Graph`.
    """

    operator: str
    domain: str
    opset: int
    label: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute's value."""
        return self.attributes.get(name, default)

    @property
    def kind(self) -> str:
        """The operator with its domain."""
        return f"{self.domain}.{self.operator}" if self.domain else self.operator

    @property
    def graphs(self) -> dict[str, Graph]:
        """Inner graphs by the attribute that holds them."""
        return {name: item for name, item in self.attributes.items() if isinstance(item, Graph)}

    def __str__(self) -> str:
        return f"'{self.label}' ({self.kind})"


@dataclass(frozen=True)
class Graph:
    """A graph.

    Attributes:
        inputs: the inputs that a caller gives.
        outputs: the names of its outputs.
        nodes: the nodes, each behind those that it takes values of.
        tensors: the initializers by name.
        folder_files: names of the files of weights beside the graph's own.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    folder_files: tuple[str, ...] = ()

    def walk(self) -> Iterator[Node]:
        """All nodes, those of inner graphs too."""
        for node in self.nodes:
            yield node
            for inner in node.graphs.values():
                yield from inner.walk()

    @property
    def taken(self) -> set[str]:
        """The values that its nodes and outputs name and that it may take from outside."""
        names = {name for node in self.walk() for name in node.inputs}
        for node in self.walk():
            for inner in node.graphs.values():
                names.update(inner.outputs)
        return names | set(self.outputs)
