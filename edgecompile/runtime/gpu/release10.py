"""Calls of TensorRT 10 and 11 beyond those that all releases share; see releases.py."""

from typing import TYPE_CHECKING, Callable, Mapping, Optional, Sequence, Tuple

if TYPE_CHECKING:
    import tensorrt


class Release10:
    """Strongly typed networks, memory for each profile, reports of progress."""

    narrowed: Mapping[str, str] = {}

    def prepare(self, logger: "tensorrt.ILogger") -> None:
        """Registers the plugins of TensorRT's own library: the parser makes one of ScatterElements that adds up."""
        import tensorrt

        register = getattr(tensorrt, "init_libnvinfer_plugins", None)
        if register is not None:
            register(logger, "")

    def create_network(self, builder: "tensorrt.Builder") -> "tensorrt.INetworkDefinition":
        """A network that keeps the types of its ONNX."""
        import tensorrt

        flag = tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED
        return builder.create_network(1 << int(flag))

    def node_of(self, error: "tensorrt.ParserError") -> Tuple[str, str]:
        """Name and operator of the node that a parser's error is about."""
        return error.node_name(), error.node_operator()

    def configure(
        self,
        network: "tensorrt.INetworkDefinition",
        config: "tensorrt.IBuilderConfig",
        float32: Optional[Sequence[str]],
    ) -> None:
        """Nothing: strong types leave no choice."""

    def watch(
        self,
        config: "tensorrt.IBuilderConfig",
        make_monitor: "Callable[[], tensorrt.IProgressMonitor]",
    ) -> None:
        """Has the builder report its progress."""
        config.progress_monitor = make_monitor()

    def scratch_bytes(self, engine: "tensorrt.ICudaEngine", profile: int) -> int:
        """Bytes that a context of a profile needs beside inputs and outputs."""
        return int(engine.get_device_memory_size_for_profile_v2(profile))

    def create_context(
        self, engine: "tensorrt.ICudaEngine", scratch: int, size: int
    ) -> "Optional[tensorrt.IExecutionContext]":
        """A context that uses the memory at ``scratch``; None where TensorRT gives none."""
        import tensorrt

        context = engine.create_execution_context(
            tensorrt.ExecutionContextAllocationStrategy.USER_MANAGED
        )
        if context is not None:
            context.set_device_memory(scratch, size)
        return context
