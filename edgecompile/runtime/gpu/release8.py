"""What TensorRT 8 (8.6 of JetPack 6.0) has in the place of release10's calls; see releases.py.

Its builder chooses precisions, so every layer is pinned to the ONNX's types. It has no int64 and reports
no progress.
"""

from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional, Set, Tuple

if TYPE_CHECKING:
    import tensorrt


class Release8:
    """Pinned precisions, one size of memory for all profiles, int32 in the place of int64."""

    narrowed: Mapping[str, str] = {"int64": "int32"}

    def create_network(self, builder: "tensorrt.Builder") -> "tensorrt.INetworkDefinition":
        """A network that takes shapes from profiles."""
        trt = _module()
        flag = trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH
        return builder.create_network(1 << int(flag))

    def node_of(self, error: "tensorrt.ParserError") -> Tuple[str, str]:
        """Nothing: this parser's errors have a node's number alone."""
        return "", ""

    def configure(self, network: Any, config: Any) -> None:
        """Leaves the builder no choice of types, and none of libraries beside TensorRT's own.

        What the network multiplies by dequantized matrices is free to be int8, as Q/DQ ask for.
        """
        trt = _module()
        sources = (trt.TacticSource.EDGE_MASK_CONVOLUTIONS, trt.TacticSource.JIT_CONVOLUTIONS)
        config.set_tactic_sources(sum(1 << int(source) for source in sources))
        # Else a profile serves one context at a time, and buckets can't share it.
        config.set_preview_feature(trt.PreviewFeature.PROFILE_SHARING_0806, True)
        config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
        _pin_precisions(trt, network, config)

    def watch(
        self,
        config: "tensorrt.IBuilderConfig",
        make_monitor: "Callable[[], tensorrt.IProgressMonitor]",
    ) -> None:
        """Nothing: this builder reports no progress."""

    def scratch_bytes(self, engine: Any, profile: int) -> int:
        """Bytes that a context of any profile needs beside inputs and outputs."""
        return int(engine.device_memory_size)

    def create_context(
        self, engine: Any, scratch: int, size: int
    ) -> "Optional[tensorrt.IExecutionContext]":
        """A context that uses the memory at ``scratch``; None where TensorRT gives none."""
        context: Optional[Any] = engine.create_execution_context_without_device_memory()
        if context is not None:
            context.device_memory = scratch
        return context


def _pin_precisions(trt: Any, network: Any, config: Any) -> None:
    """Pins layers to float16 or float32, and sets the flags that allow it.

    The parsed network says FLOAT of every tensor with floats. Constants and casts know better, and all
    other operators keep the type of their inputs. One float16 input decides: the parser adds float32
    constants of its own.
    """
    types, single, half = trt.LayerType, trt.DataType.FLOAT, trt.DataType.HALF
    floats = (single, half)
    halves: Set[str] = set()
    dequantized: Set[str] = set()
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        kind = layer.type
        outputs = [layer.get_output(number) for number in range(layer.num_outputs)]
        inputs = [layer.get_input(number) for number in range(layer.num_inputs)]
        inputs = [tensor for tensor in inputs if tensor is not None]
        names = {tensor.name for tensor in inputs if tensor.dtype in floats}
        if kind == types.CONSTANT:
            layer.__class__ = trt.IConstantLayer  # the bindings give its base class
            is_half = layer.weights.dtype.name == "float16"
        elif kind == types.CAST:
            layer.__class__ = trt.ICastLayer
            is_half = layer.to_type == half
        else:
            is_half = not halves.isdisjoint(names)
        made = [tensor for tensor in outputs if tensor.dtype in floats]
        if is_half:
            config.set_flag(trt.BuilderFlag.FP16)
            halves.update(tensor.name for tensor in made)
        if kind == types.QUANTIZE:
            config.set_flag(trt.BuilderFlag.INT8)
        elif kind == types.DEQUANTIZE:
            dequantized.update(tensor.name for tensor in outputs)
        elif kind in (types.CONSTANT, types.CAST) or not dequantized.isdisjoint(names):
            continue
        elif made or (names and kind == types.ELEMENTWISE):  # a comparison makes no floats
            layer.precision = half if is_half else single
            for number, tensor in enumerate(outputs):
                if tensor.dtype in floats:
                    layer.set_output_type(number, half if is_half else single)


def _module() -> Any:
    """TensorRT, of which our stub for the type checker describes later releases."""
    import tensorrt

    return tensorrt
