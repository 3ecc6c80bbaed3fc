"""Runs as a script in a process of its own: parses and builds an ONNX file with TensorRT-RTX.

Needs the standard library and ``tensorrt_rtx_bindings`` alone, so that any interpreter that has
them will do. It is given a JSON file (onnx, profiles, compute_capability, level, answer) and writes
the answer's file: whatever TensorRT prints, and even a crash, leaves it in order.
"""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any


def peak_bytes() -> int | None:
    """Largest resident memory of this process. Not getrusage's: that counts the parent's before exec."""
    peak = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    return 1024 * int(peak[1]) if peak else None


def main(request_path: str) -> int:
    """Builds, and writes what came of it."""
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    answer: dict[str, Any] = {"stage": "import", "errors": [], "messages": []}

    def save() -> None:
        answer["peak_bytes"] = peak_bytes()
        Path(request["answer"]).write_text(json.dumps(answer), encoding="utf-8")

    save()
    import tensorrt_rtx_bindings as trt

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            name = str(severity).rpartition(".")[2]
            if name in ("INTERNAL_ERROR", "ERROR", "WARNING"):
                answer["messages"].append([name, message])

    answer["version"] = trt.__version__
    logger = Logger()
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    answer["stage"] = "parse"
    save()
    began = time.monotonic()
    parsed = parser.parse_from_file(request["onnx"])
    answer["parse_seconds"] = time.monotonic() - began
    if not parsed:
        for index in range(parser.num_errors):
            error = parser.get_error(index)
            answer["errors"].append(
                {
                    "node": error.node_name(),
                    "operator": error.node_operator(),
                    "text": error.desc(),
                }
            )
        save()
        return 0
    answer["inputs"] = [network.get_input(i).name for i in range(network.num_inputs)]
    answer["layers"] = network.num_layers
    answer["stage"] = "profiles"
    save()
    config = builder.create_builder_config()
    config.builder_optimization_level = request["level"]
    if request["compute_capability"]:
        config.num_compute_capabilities = 1
        capability = getattr(trt.ComputeCapability, request["compute_capability"])
        config.set_compute_capability(capability, 0)
    for number, shapes in enumerate(request["profiles"]):
        profile = builder.create_optimization_profile()
        for name, shape in shapes.items():
            profile.set_shape(name, shape["min"], shape["opt"], shape["max"])
        if config.add_optimization_profile(profile) < 0:
            answer["errors"].append({"node": "", "text": f"profile {number} is refused"})
            save()
            return 0
    answer["stage"] = "build"
    save()
    began = time.monotonic()
    plan = builder.build_serialized_network(network, config)
    answer["build_seconds"] = time.monotonic() - began
    if plan is None:
        save()
        return 0
    answer["engine_bytes"] = plan.nbytes
    answer["stage"] = "built"
    save()
    # Without a GPU of a kind that it runs on there is no engine, and it says nothing of scratch.
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    if engine is not None:
        answer["scratch_bytes"] = [
            engine.get_device_memory_size_for_profile_v2(index)
            for index in range(engine.num_optimization_profiles)
        ]
        save()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
