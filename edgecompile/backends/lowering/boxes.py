"""torchvision's operators on boxes, which the native runtime has as its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from edgecompile.backends.lowering.rewriting import Lowering, arguments_of, replace
from edgecompile.export.operators.boxes import ROI_ALIGN, SUPPRESS

#: Our operator, and a function from torchvision's arguments to ours, by torchvision's name. Names, since
#: the operators exist only where torchvision was imported.
_OURS: Mapping[str, tuple[Any, Callable[..., tuple[Any, ...]]]] = {
    "torchvision::nms": (
        SUPPRESS,
        lambda boxes, scores, threshold: (boxes, scores, None, threshold),
    ),
    "torchvision::roi_align": (ROI_ALIGN, lambda *arguments: arguments),
}


def name_of(node: Node) -> str:
    """The name of the operator that a node calls, such as ``torchvision::nms``; "" of other nodes."""
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name)


def lower_boxes(low: Lowering) -> None:
    """Replaces torchvision's operators by ours, ``roi_align`` only in float32, as the runtime has it."""
    for node in list(low.gm.graph.nodes):
        if name_of(node) not in _OURS:
            continue
        ours, arguments = _OURS[name_of(node)]
        value = node.meta.get("val")
        if ours is ROI_ALIGN and value is not None and value.dtype != torch.float32:
            low.report.kept[node.name] = f"it computes in {value.dtype}"
            continue
        replace(low.gm, node, ours, arguments(*arguments_of(node).values()))
        low.report.counts["boxes"] += 1
