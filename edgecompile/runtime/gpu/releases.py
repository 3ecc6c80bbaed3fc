"""The adapter of the major release of TensorRT that is installed.

All other code uses names alone that 8.6, 10.3, 10.16 and 11.4 have.
"""

from typing import TYPE_CHECKING, Callable, Mapping, Optional, Protocol, Sequence, Tuple

from .release8 import Release8
from .release10 import Release10

if TYPE_CHECKING:
    import tensorrt


class Release(Protocol):
    """Calls that differ. ``narrowed``: dtypes of an engine's inputs and outputs, by the manifest's."""

    narrowed: Mapping[str, str]

    def prepare(self, logger: "tensorrt.ILogger") -> None:
        """Prepares TensorRT, once, before networks are parsed or engines read."""
        ...

    def create_network(self, builder: "tensorrt.Builder") -> "tensorrt.INetworkDefinition":
        """An empty network of a builder."""
        ...

    def node_of(self, error: "tensorrt.ParserError") -> Tuple[str, str]:
        """Name and operator of the node that a parser's error is about, "" where it can't be told."""
        ...

    def configure(
        self,
        network: "tensorrt.INetworkDefinition",
        config: "tensorrt.IBuilderConfig",
        float32: Optional[Sequence[str]],
    ) -> None:
        """Makes the builder compute in the types that the recipe asks for.

        ``float32``: None where the ONNX says them all; else the values that stay float32 where the builder may
        choose float16.
        """
        ...

    def watch(
        self,
        config: "tensorrt.IBuilderConfig",
        make_monitor: "Callable[[], tensorrt.IProgressMonitor]",
    ) -> None:
        """Has the builder report its progress, where it can."""
        ...

    def scratch_bytes(self, engine: "tensorrt.ICudaEngine", profile: int) -> int:
        """Bytes that a context of a profile needs beside inputs and outputs."""
        ...

    def create_context(
        self, engine: "tensorrt.ICudaEngine", scratch: int, size: int
    ) -> "Optional[tensorrt.IExecutionContext]":
        """A context that uses ``size`` bytes at ``scratch``; None where TensorRT gives none."""
        ...


def find_release() -> Release:
    """The adapter for the module ``tensorrt``, which can be imported."""
    import tensorrt

    return Release8() if tensorrt.__version__.startswith("8.") else Release10()
