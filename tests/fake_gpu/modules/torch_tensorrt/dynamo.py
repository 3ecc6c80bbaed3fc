"""The fake's conversion: through torch's ONNX exporter into a plan of the fake TensorRT."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

_HOW = os.environ.get("FAKE_TORCH_TENSORRT", "").split(",")
_log = logging.getLogger("torch_tensorrt.dynamo._compiler")


def _convert(program: Any, arg_inputs: Any, kwarg_inputs: Any, timing_cache_path: str) -> Any:
    from fake_plans import build_plan

    assert isinstance(program, torch.export.ExportedProgram)
    assert not os.path.exists("/tmp/torch_tensorrt_engine_cache"), "its default path was used"
    assert Path(timing_cache_path).is_absolute()
    if "silent" in _HOW:
        return None
    if "raises" in _HOW:
        _log.error("Conversion of module GraphModule() not currently fully supported!")
        raise UnboundLocalError("cannot access local variable 'interpreter_result'")
    args, kwargs = program.example_inputs
    assert len(arg_inputs) == len(args) == 0, "the program takes its inputs by name"
    assert list(kwarg_inputs) == list(kwargs), "its inputs are in another order"
    names = program.graph_signature.user_inputs
    profiles: list[dict[str, Any]] = []
    for name, (key, item) in zip(names, kwarg_inputs.items(), strict=True):
        example = kwargs[key]
        assert item.dtype == example.dtype, f"{key} has another dtype"
        for number, shapes in enumerate(item.ranges):
            assert all(len(shape) == example.dim() for shape in shapes)
            assert all(a <= b <= c for a, b, c in zip(*shapes, strict=True)), f"{key}: {shapes}"
            if number == len(profiles):
                profiles.append({})
            profiles[number][name] = shapes
    assert len({len(item.ranges) for item in kwarg_inputs.values()}) == 1, "not all have as many"
    if "one" in _HOW and len(profiles) > 1:
        raise RuntimeError("only one profile is implemented")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "fake.onnx")
        outputs = [f"output{i}" for i in range(len(program.graph_signature.user_outputs))]
        made = torch.onnx.export(
            program,
            dynamo=True,
            input_names=list(names),
            output_names=outputs,
            opset_version=20,
            verbose=False,
        )
        assert made is not None
        made.save(str(path))
        # Real ones say much where nobody wants to read it.
        print("a fake conversion")
        return build_plan(str(path), profiles)


if "old" in _HOW:

    def convert_exported_program_to_serialized_trt_engine(
        exported_program: Any,
        inputs: Any = None,
        *,
        arg_inputs: Any = None,
        kwarg_inputs: Any = None,
        enabled_precisions: Any = (torch.float32,),
        optimization_level: int | None = None,
        require_full_compilation: bool = False,
        disable_tf32: bool = False,
        timing_cache_path: str = "/tmp/torch_tensorrt_engine_cache/timing_cache.bin",
        use_explicit_typing: bool = False,
        **kwargs: Any,
    ) -> Any:
        assert not kwargs, f"nobody reads {kwargs}"
        assert disable_tf32, "float32 would be computed in TF32"
        if use_explicit_typing:
            assert set(enabled_precisions) == {torch.float32}, "typed, and with precisions"
        else:
            assert torch.float16 in enabled_precisions
        return _convert(exported_program, arg_inputs, kwarg_inputs, timing_cache_path)

elif "typed-only" in _HOW:

    def convert_exported_program_to_serialized_trt_engine(  # type: ignore[misc]
        exported_program: Any,
        inputs: Any = None,
        *,
        arg_inputs: Any = None,
        kwarg_inputs: Any = None,
        timing_cache_path: str = "/tmp/torch_tensorrt_engine_cache/timing_cache.bin",
        **kwargs: Any,
    ) -> Any:
        assert not kwargs, f"nobody reads {kwargs}"
        return _convert(exported_program, arg_inputs, kwarg_inputs, timing_cache_path)

else:

    def convert_exported_program_to_serialized_trt_engine(  # type: ignore[misc]
        exported_program: Any,
        inputs: Any = None,
        *,
        arg_inputs: Any = None,
        kwarg_inputs: Any = None,
        optimization_level: int | None = None,
        require_full_compilation: bool = False,
        disable_tf32: bool = False,
        timing_cache_path: str = "/tmp/torch_tensorrt_engine_cache/timing_cache.bin",
        use_explicit_typing: bool = True,
        enable_autocast: bool = False,
        low_precision_type: Any = None,
        **kwargs: Any,
    ) -> Any:
        assert not kwargs, f"nobody reads {kwargs}"
        assert use_explicit_typing and optimization_level == 3
        precision = os.environ["FAKE_TORCH_TENSORRT_PRECISION"]
        assert disable_tf32, "float32 would be computed in TF32"
        assert (enable_autocast, low_precision_type) == (
            (True, torch.float16) if precision == "fp16" else (False, None)
        )
        return _convert(exported_program, arg_inputs, kwarg_inputs, timing_cache_path)
