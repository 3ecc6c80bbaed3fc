"""Other runtimes on an ONNX file of the same model, timed beside a bundle: whichever is installed.

Nothing here is needed to run a bundle. The packages are imported by name, and only for ``report``.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping

from ..base.errors import InputError
from ..format.document import shorten

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]
    Run = Callable[[Arrays], List[NDArray[Any]]]

#: Names of the packages that can be timed.
PEERS = ("onnxruntime", "openvino")


def find_peers() -> List[str]:
    """Names of the packages that are installed here."""
    return [name for name in PEERS if importlib.util.find_spec(name) is not None]


def open_peer(name: str, path: str, threads: int) -> "Run":
    """A function that runs the file.

    Args:
        name: Package, one of :data:`PEERS`.
        path: Path of the ONNX file.
        threads: Threads of a run.

    Returns:
        Takes an array for each input by its name, and returns the outputs in the file's order.

    Raises:
        InputError: the package can't read the file.
    """
    try:
        return _OPENERS[name](importlib.import_module(name), path, threads)
    except Exception as error:  # whatever that package raises
        text = "{}: {} can't open it: {}".format(shorten(path, 1024), name, shorten(error, 300))
        raise InputError(text) from None


def peer_version(name: str) -> str:
    """Version of an installed package."""
    return str(getattr(importlib.import_module(name), "__version__", "unknown"))


def _open_onnxruntime(package: Any, path: str, threads: int) -> "Run":
    options = package.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = package.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]

    def run(arrays: "Arrays") -> "List[NDArray[Any]]":
        outputs: List[NDArray[Any]] = session.run(None, _pick(names, arrays, path))
        return outputs

    return run


def _open_openvino(package: Any, path: str, threads: int) -> "Run":
    # fp32, as the bundle computes it: some CPUs would take bfloat16 unasked.
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = package.Core().compile_model(path, "CPU", settings)
    names = [item.any_name for item in compiled.inputs]
    count = len(compiled.outputs)
    request = compiled.create_infer_request()

    def run(arrays: "Arrays") -> "List[NDArray[Any]]":
        request.infer(_pick(names, arrays, path))
        return [request.get_output_tensor(index).data for index in range(count)]

    return run


def _pick(names: List[str], arrays: "Arrays", path: str) -> "Dict[str, NDArray[Any]]":
    """The file's inputs: an export may have left out one that the model doesn't read."""
    unknown = [name for name in names if name not in arrays]
    if unknown:
        text = "{}: has the input {!r}; the bundle's are {}"
        hint = "give the ONNX file of the bundle's own model, with the same names of inputs"
        raise InputError(text.format(shorten(path, 1024), unknown[0], ", ".join(arrays)), hint)
    return {name: arrays[name] for name in names}


_OPENERS: Dict[str, Callable[[Any, str, int], "Run"]] = {
    "onnxruntime": _open_onnxruntime,
    "openvino": _open_openvino,
}
