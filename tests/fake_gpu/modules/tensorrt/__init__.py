"""A FAKE of NVIDIA's TensorRT, for tests on machines without a GPU. Nothing here is TensorRT.

It has only names that TensorRT 10.3 has, or with FAKE_TRT_VERSION=8.6.0 those of 8.6
(release8.py), asks for the order of calls that TensorRT asks for, and
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
if __version__.startswith("8."):
    from . import release8 as _release8

    for _name in ("IProgressMonitor", "ExecutionContextAllocationStrategy"):
        del globals()[_name]
    for _name, _item in vars(_release8).items():
        if getattr(_item, "__module__", "") == _release8.__name__ and _name[0] != "_":
            globals()[_name] = _item
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
