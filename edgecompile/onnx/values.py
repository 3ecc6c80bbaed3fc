"""The element types of a graph's values, inferred by ONNX's own rules."""

from __future__ import annotations

from typing import Any

from edgecompile.errors import ExportError
from edgecompile.onnx.graph import EXTERNAL_ABOVE, OnnxGraph

__all__ = ["infer_values", "schema_of", "value_dtypes"]

#: Operators are looked up at the opset that graphs are made in.
_OPSET = 20


def value_dtypes(graph: OnnxGraph) -> dict[str, str]:
    """numpy's name of the dtype of every value that ONNX's rules tell one of."""
    return {name: dtype for name, (dtype, _) in infer_values(graph).items()}


def infer_values(graph: OnnxGraph) -> dict[str, tuple[str, int | None]]:
    """The dtype of every value, and its rank where the rules tell it.

    Raises:
        ExportError: the graph contradicts the rules.
    """
    import onnx

    # The rules read small initializers (axes, shapes) alone; others need not be there.
    external = {n: ("none", 0) for n, a in graph.tensors.items() if a.nbytes > EXTERNAL_ABOVE}
    try:
        proto = onnx.shape_inference.infer_shapes(
            graph.model(external), check_type=True, strict_mode=True
        )
    except Exception as error:  # the rules' errors have no common class
        raise ExportError(f"the ONNX graph breaks ONNX's rules: {error}") from error
    found: dict[str, tuple[str, int | None]] = {
        name: (array.dtype.name, array.ndim) for name, array in graph.tensors.items()
    }
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        kind = value.type.tensor_type
        if kind.elem_type:
            found[value.name] = _describe(kind)
    return found


def schema_of(node: Any) -> Any:
    """ONNX's definition of a node's operator; None if it has none."""
    import onnx

    try:
        return onnx.defs.get_schema(node.op_type, max_inclusive_version=_OPSET, domain=node.domain)
    except Exception:  # the class of the error differs between versions of onnx
        return None


def _describe(kind: Any) -> tuple[str, int | None]:
    import onnx

    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name)
    return dtype, len(kind.shape.dim) if kind.HasField("shape") else None
