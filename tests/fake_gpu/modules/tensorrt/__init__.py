"""A FAKE of NVIDIA's TensorRT, for tests on machines without a GPU. Nothing here is TensorRT.

It has only names that TensorRT 10.3 has, asks for the order of calls that TensorRT asks for, and
fails as TensorRT does: None or -1 or False where that returns them, RuntimeError where its bindings
raise that, with the reason in the logger.
What a caller would crash TensorRT with raises FakeTensorrtMisuse. Needs onnx; see hooks.py for the
environment variables that make it fail, wait or die.
"""

from .builder import (
    Builder,
    IBuilderConfig,
    INetworkDefinition,
    IOptimizationProfile,
    ITensor,
    ITimingCache,
    OnnxParser,
    ParserError,
)
from .execution import ICudaEngine, IExecutionContext, Runtime
from .hooks import version as _version
from .types import (
    BuilderFlag,
    DataType,
    ExecutionContextAllocationStrategy,
    IHostMemory,
    ILogger,
    IProgressMonitor,
    Logger,
    MemoryPoolType,
    NetworkDefinitionCreationFlag,
    TensorIOMode,
)

__version__ = _version()
__all__ = [
    "Builder",
    "BuilderFlag",
    "DataType",
    "ExecutionContextAllocationStrategy",
    "IBuilderConfig",
    "ICudaEngine",
    "IExecutionContext",
    "IHostMemory",
    "ILogger",
    "INetworkDefinition",
    "IOptimizationProfile",
    "IProgressMonitor",
    "ITensor",
    "ITimingCache",
    "Logger",
    "MemoryPoolType",
    "NetworkDefinitionCreationFlag",
    "OnnxParser",
    "ParserError",
    "Runtime",
    "TensorIOMode",
]
