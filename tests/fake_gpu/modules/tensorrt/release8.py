"""What TensorRT 8.6 has in the place of 10's names: FAKE_TRT_VERSION=8.6.x.

Its networks aren't strongly typed: they say float32 (of others the real builder has no kernel), and layers may be
pinned to it. FAKE_TRT_HALF=wrong: float16 without pins overflows;
profiles: float16 of several profiles does. FAKE_TRT_LEAST_WORKSPACE: bytes below which no kernel is found. Where memory is
short, the log speaks of kernels and handles. docs/benchmarks/gpu-tensorrt.md compares all of this with the real one. Engines have int32 where the ONNX has int64, and one size of scratch memory for all of their profiles.
"""

from __future__ import annotations

import os
from typing import Any

from . import builder, execution, types
from .hooks import called, device, require
from .types import BuilderFlag, ILogger


class DataType:
    """No int64 and no bfloat16 among them."""

    FLOAT = types.DataType.FLOAT
    HALF = types.DataType.HALF
    INT8 = types.DataType.INT8
    INT32 = types.DataType.INT32
    UINT8 = types.DataType.UINT8
    BOOL = types.DataType.BOOL


_FLOATS = (DataType.FLOAT, DataType.HALF)


class NetworkDefinitionCreationFlag(types._Enum):
    EXPLICIT_BATCH = "explicit batch"


class TacticSource(types._Enum):
    CUBLAS = "cublas"
    CUBLAS_LT = "cublas lt"
    CUDNN = "cudnn"
    EDGE_MASK_CONVOLUTIONS = "edge mask"
    JIT_CONVOLUTIONS = "jit"


class PreviewFeature(types._Enum):
    PROFILE_SHARING_0806 = "profile sharing"


class LayerType(types._Enum):
    CONSTANT = "Constant"
    CAST = "Cast"
    QUANTIZE = "QuantizeLinear"
    DEQUANTIZE = "DequantizeLinear"
    SHUFFLE = "anything else"


class ILayer:
    """A node of the ONNX."""

    def __init__(self, node: Any, tensors: dict[str, builder.ITensor]) -> None:
        self.name = node.name
        kinds = {item.value: item for item in LayerType}
        self.type = kinds.get(node.op_type, LayerType.SHUFFLE)
        self._inputs = [tensors.get(name) for name in node.input]
        self._outputs = [tensors[name] for name in node.output if name]
        self.precision: types.DataType | None = None
        self._pinned: dict[int, types.DataType] = {}

    @property
    def num_inputs(self) -> int:
        return len(self._inputs)

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    def get_input(self, index: int) -> builder.ITensor | None:
        return self._inputs[index]

    def get_output(self, index: int) -> builder.ITensor:
        return self._outputs[index]

    def set_output_type(self, index: int, dtype: types.DataType) -> None:
        require(dtype in _FLOATS, "only what is computed in floats is pinned")
        self._pinned[index] = dtype
        called("set_output_type", self._outputs[index].name + " " + dtype.name)


class INetworkDefinition(builder.INetworkDefinition):
    _layers: list[ILayer]

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    def get_layer(self, index: int) -> ILayer:
        return self._layers[index]


class IBuilderConfig(builder.IBuilderConfig):
    def __init__(self, maker: builder.Builder) -> None:
        super().__init__(maker)
        self._sources: int | None = None
        self._previews: set[PreviewFeature] = set()

    def __setattr__(self, name: str, value: Any) -> None:
        # The bindings have no such attribute; the fake's base has, at None.
        if name == "progress_monitor" and value is not None:
            raise AttributeError(name)
        super().__setattr__(name, value)

    def set_flag(self, flag: BuilderFlag) -> None:
        called("set_flag", flag.name)
        self._flags.add(flag)

    def create_timing_cache(self, serialized_timing_cache: bytes) -> builder.ITimingCache:
        # It takes any bytes; the build says that it doesn't use them, begins with none, and keeps what it measures.
        called("create_timing_cache", str(len(serialized_timing_cache)))
        try:
            return builder.ITimingCache(bytes(serialized_timing_cache))
        except ValueError:
            cache = builder.ITimingCache(b"")
            cache._owner = "nobody"
            return cache

    def set_timing_cache(self, cache: builder.ITimingCache, ignore_mismatch: bool) -> bool:
        called("set_timing_cache")
        self._cache = cache
        return True

    def set_tactic_sources(self, tactic_sources: int) -> bool:
        called("set_tactic_sources", str(tactic_sources))
        self._sources = tactic_sources
        return True

    def set_preview_feature(self, feature: PreviewFeature, enable: bool) -> None:
        called("set_preview_feature", feature.name)
        if enable:
            self._previews.add(feature)


class Builder(builder.Builder):
    def create_network(self, flags: int = 0) -> INetworkDefinition:
        called("create_network")
        explicit_batch = 1 << int(NetworkDefinitionCreationFlag.EXPLICIT_BATCH)
        require(flags == explicit_batch, "a network without an explicit batch")
        return INetworkDefinition(self)

    def create_builder_config(self) -> IBuilderConfig:
        called("create_builder_config")
        return IBuilderConfig(self)

    def build_serialized_network(
        self, network: builder.INetworkDefinition, config: builder.IBuilderConfig
    ) -> types.IHostMemory | None:
        assert isinstance(network, INetworkDefinition) and isinstance(config, IBuilderConfig)
        flags = config._flags
        own = (TacticSource.EDGE_MASK_CONVOLUTIONS, TacticSource.JIT_CONVOLUTIONS)
        require(
            config._sources == sum(1 << int(item) for item in own),
            "tactics of libraries that may be missing",
        )
        for layer in network._layers:
            dtypes = [item.dtype for item in layer._outputs]
            require(DataType.HALF not in dtypes, f"{layer.name} is computed in float16")
            if layer.type == LayerType.QUANTIZE:
                require(BuilderFlag.INT8 in flags, "quantized, but INT8 isn't allowed")
                if BuilderFlag.FP16 in flags:
                    text = "params.weights.type() != DataType::kINT8 failed. "
                    self._say(ILogger.ERROR, f"Error Code 2: Internal Error (Assertion {text})")
                    return None
            if layer._pinned:
                require(BuilderFlag.OBEY_PRECISION_CONSTRAINTS in flags, "pins are mere wishes")
                require(layer.precision in layer._pinned.values(), f"{layer.name} is half pinned")
        if config._cache is not None and config._cache._owner != device():
            self._say(ILogger.ERROR, "The timing cache will not be used!")
            config._cache = builder.ITimingCache(b"")
        return super().build_serialized_network(network, config)

    def _have_memory(self, workspace: int, level: int, profiles: int) -> bool:
        if workspace < int(os.environ.get("FAKE_TRT_LEAST_WORKSPACE", "0")):
            text = "Could not find any implementation for node {} due to insufficient workspace. See verbose log"
            self._say(ILogger.ERROR, f"Error Code 10: Internal Error ({text})")
            return False
        return super()._have_memory(workspace, level, profiles)

    def _tell_lack(self, needed: int) -> None:
        self._say(ILogger.ERROR, "Error Code 1: Cask (no further information)")
        self._say(ILogger.ERROR, "Error Code 1: Cuda Runtime (invalid resource handle)")

    def _more(self, config: builder.IBuilderConfig) -> dict[str, Any]:
        assert isinstance(config, IBuilderConfig)
        free = BuilderFlag.OBEY_PRECISION_CONSTRAINTS not in config._flags
        return {
            "shared": PreviewFeature.PROFILE_SHARING_0806 in config._previews,
            "half": free and BuilderFlag.FP16 in config._flags,
        }


class ParserError(builder.ParserError):
    def __getattribute__(self, name: str) -> Any:
        if name in ("node_name", "node_operator"):
            raise AttributeError(name)
        return super().__getattribute__(name)


class OnnxParser(builder.OnnxParser):
    _last_opset = 17

    def get_error(self, index: int) -> builder.ParserError:
        error = super().get_error(index)
        return ParserError(error._number, None, error._text)

    def parse_from_file(self, model: str) -> bool:
        done = super().parse_from_file(model)
        network: Any = self._network
        if network._model is not None:
            for tensor in (*network._inputs, *network._outputs):
                tensor.dtype = _narrowed(tensor.dtype)
            network._layers = _layers(network._model)
        return done


def _narrowed(dtype: types.DataType) -> types.DataType:
    return DataType.INT32 if dtype == types.DataType.INT64 else dtype


def _layers(model: Any) -> list[ILayer]:
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model)
    graph = inferred.graph
    tensors = {
        item.name: builder.ITensor(
            item.name, _narrowed(builder._TYPES[item.type.tensor_type.elem_type]), ()
        )
        for item in (*graph.input, *graph.output, *graph.value_info)
    }
    return [ILayer(node, tensors) for node in graph.node]


class ICudaEngine(execution.ICudaEngine):
    def __init__(self, logger: ILogger, header: dict[str, Any], model: bytes) -> None:
        super().__init__(logger, header, model)
        self._shared = bool(header["shared"])
        how = os.environ.get("FAKE_TRT_HALF")
        several = len(header["profiles"]) > 1
        self._wrong = header["half"] and (how == "wrong" or (how == "profiles" and several))
        self._taken: set[int] = set()

    def __getattribute__(self, name: str) -> Any:
        if name in ("get_device_memory_size_for_profile_v2", "create_execution_context"):
            raise AttributeError(name)
        return super().__getattribute__(name)

    @property
    def device_memory_size(self) -> int:
        return max(self._scratch_bytes(index) for index in range(self.num_optimization_profiles))

    def create_execution_context_without_device_memory(self) -> IExecutionContext | None:
        if called("create_execution_context"):
            self._say("Error Code 1: Myelin (No Myelin Error exists)")
            return None
        return IExecutionContext(self)

    def _compute(self, inputs: dict[str, Any]) -> list[Any]:
        import numpy as np

        kinds = {item.name: item.type for item in self._session.get_inputs()}
        wide = {
            name: value.astype(np.int64) if kinds[name] == "tensor(int64)" else value
            for name, value in inputs.items()
        }
        values = super()._compute(wide)
        return [np.full_like(value, np.inf) for value in values] if self._wrong else values


class IExecutionContext(execution.IExecutionContext):
    _engine: ICudaEngine

    def __del__(self) -> None:
        if self._profile is not None:
            self._engine._taken.discard(self._profile)
        super().__del__()

    @property
    def device_memory(self) -> int:
        return self._memory[0]

    @device_memory.setter
    def device_memory(self, memory: int) -> None:
        called("set_device_memory", "")
        self._use_memory(memory, self._engine.device_memory_size)

    def __getattribute__(self, name: str) -> Any:
        if name == "set_device_memory":
            raise AttributeError(name)
        return super().__getattribute__(name)

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        if profile_index in self._engine._taken and not self._engine._shared:
            text = "Profile {} has been chosen by another IExecutionContext"
            self._engine._say("Error Code 3: API Usage Error (" + text.format(profile_index) + ")")
            raise RuntimeError("Error in set optimization profile async.")
        done = super().set_optimization_profile_async(profile_index, stream_handle)
        self._engine._taken.add(profile_index)
        return done


class Runtime(execution.Runtime):
    _engine_type = ICudaEngine
