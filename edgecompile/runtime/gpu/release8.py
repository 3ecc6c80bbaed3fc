"""TensorRT 8's calls (8.6 of JetPack 6.0) in the place of release10's; see releases.py.

Its builder chooses precisions: a network whose values all say float32 is computed in float16 where it is
faster. One pinned value is enough for all of a transformer to stay float32, and float16 beside int8 ends
the build (docs/benchmarks/gpu-tensorrt.md). It has no int64 and reports no progress.
"""

from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional, Sequence, Tuple

if TYPE_CHECKING:
    import tensorrt


class Release8:
    """Allowed precisions, one size of memory for all profiles, int32 in the place of int64."""

    narrowed: Mapping[str, str] = {"int64": "int32"}

    def prepare(self, logger: "tensorrt.ILogger") -> None:
        """Nothing: no operator that is taken here is a plugin."""

    def create_network(self, builder: "tensorrt.Builder") -> "tensorrt.INetworkDefinition":
        """A network that takes shapes from profiles."""
        trt = _module()
        flag = trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH
        return builder.create_network(1 << int(flag))

    def node_of(self, error: "tensorrt.ParserError") -> Tuple[str, str]:
        """Nothing: this parser's errors have a node's number alone."""
        return "", ""

    def configure(self, network: Any, config: Any, float32: Optional[Sequence[str]]) -> None:
        """Allows float16 or int8, pins what stays float32; no libraries beside TensorRT's own."""
        trt = _module()
        sources = (trt.TacticSource.EDGE_MASK_CONVOLUTIONS, trt.TacticSource.JIT_CONVOLUTIONS)
        config.set_tactic_sources(sum(1 << int(source) for source in sources))
        # Else a profile serves one context at a time, and buckets can't share it.
        config.set_preview_feature(trt.PreviewFeature.PROFILE_SHARING_0806, True)
        if float32 is None:
            return
        layers = [network.get_layer(index) for index in range(network.num_layers)]
        if any(layer.type == trt.LayerType.QUANTIZE for layer in layers):
            config.set_flag(trt.BuilderFlag.INT8)
            return
        config.set_flag(trt.BuilderFlag.FP16)
        if not float32:
            return
        config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
        stays = set(float32)
        for layer in layers:
            for number in range(layer.num_outputs):
                tensor = layer.get_output(number)
                if tensor.name in stays and tensor.dtype == trt.DataType.FLOAT:
                    layer.precision = trt.DataType.FLOAT
                    layer.set_output_type(number, trt.DataType.FLOAT)

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


def _module() -> Any:
    """TensorRT, of which our stub for the type checker describes later releases."""
    import tensorrt

    return tensorrt
