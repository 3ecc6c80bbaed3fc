"""From an ONNX file to an engine of the FAKE TensorRT, by the calls that TensorRT asks for."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import tensorrt

Shapes = Mapping[str, Sequence[Sequence[int]]]


def build_plan(path: str, profiles: Sequence[Shapes]) -> bytes:
    """A plan with profiles of (min, opt, max) by input; inputs of fixed shape may be left out."""

    class Logger(tensorrt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            tensorrt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            print(severity, msg, file=sys.stderr)

    logger = Logger()
    builder = tensorrt.Builder(logger)
    flag = tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED
    network = builder.create_network(1 << int(flag))
    parser = tensorrt.OnnxParser(network, logger)
    if not parser.parse_from_file(path):
        raise RuntimeError("the fake parser refuses the ONNX")
    config = builder.create_builder_config()
    config.set_memory_pool_limit(tensorrt.MemoryPoolType.WORKSPACE, 1 << 20)
    config.clear_flag(tensorrt.BuilderFlag.TF32)
    for shapes in profiles:
        profile = builder.create_optimization_profile()
        for name, (least, best, most) in shapes.items():
            profile.set_shape(name, least, best, most)
        if config.add_optimization_profile(profile) < 0:
            raise RuntimeError("the fake builder refuses a profile")
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise RuntimeError("the fake builder gave no engine")
    return bytes(memoryview(plan))
