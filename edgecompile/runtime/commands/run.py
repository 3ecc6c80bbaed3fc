"""``run``: inputs of a file through a bundle, from the command line."""

import io
import json
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional

import numpy as np

from ..base.errors import InputError
from ..base.limits import memory_for
from ..format.document import shorten
from ..format.dtypes import array_type
from ..format.output import check_output, write_output
from ..model.open_bundle import open_bundle

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..format.manifest.schema import Manifest

    Arrays = Dict[str, NDArray[Any]]

_SHOWN = 6  # values of an output


def run_file(
    bundle: str,
    inputs: str,
    *,
    output: Optional[str] = None,
    **how: Any,
) -> Dict[str, Any]:
    """Runs a bundle once.

    Args:
        bundle: its path.
        inputs: a .npz archive with an array for each input, a .npy file for the only one or the only
            one without a default, or a .json object of nested lists.
        output: a .npz file to write the outputs to; None: they are in the report.
        how: threads, variant and verify of ``open_bundle``.

    Returns:
        Plain JSON values: "bundle", "name", "variant", "ms" of the run, and "outputs", each with
        "dtype", "shape" and, unless they were written, "values" as nested lists (null for what isn't
        finite) and, of floating-point numbers, "not_finite", the count of these.

    Raises:
        InputError: a file can't be read or written, or holds no inputs of this model.
        MemoryLimitError: the inputs take more memory than there is.
        EdgecompileError: see ``open_bundle`` and ``Model.run``.
    """
    path = None if output is None else check_output(output, "--output", bundle)
    with open_bundle(bundle, **how) as model:
        arrays = read_inputs(inputs, model.manifest)
        started = time.perf_counter()
        outputs = model.run(arrays)
        ms = (time.perf_counter() - started) * 1e3
        info = model.info
    if path is not None:
        stream = io.BytesIO()
        np.savez(stream, **outputs)  # type: ignore[arg-type]
        write_output(path, stream.getvalue())
    return {
        "bundle": bundle,
        "name": info["name"],
        "variant": info["variant"],
        "ms": ms,
        "output": output,
        "outputs": {name: _describe(array, path is None) for name, array in outputs.items()},
    }


def read_inputs(path: str, manifest: "Manifest") -> "Arrays":
    """The arrays of a file; the model judges names, sizes and values.

    Raises:
        InputError: the file can't be read, or isn't of a form that is known here.
        MemoryLimitError: its arrays take more memory than there is, or its header says so.
    """
    specs = {item.name: np.dtype(array_type(item.dtype)) for item in manifest.inputs}
    needed = [item.name for item in manifest.inputs if item.default is None] or list(specs)
    shown = shorten(path, 1024)
    try:
        with memory_for("reading " + shown):
            return _read_arrays(path, specs, needed)
    except MemoryError:
        raise
    except OSError as error:
        raise InputError("{}: {}".format(shown, error.strerror or error)) from None
    except Exception as error:  # whatever json, zipfile, zlib and numpy raise
        text = "holds objects, not numbers" if "allow_pickle" in str(error) else error
        hint = "give a .npz archive with an array for each input, a .npy file or a .json object"
        raise InputError("{}: {}".format(shown, shorten(text, 200)), hint) from None


def _read_arrays(path: str, specs: "Dict[str, np.dtype[Any]]", needed: List[str]) -> "Arrays":
    if path.endswith(".json"):
        with open(path, "rb") as text:
            document = json.load(text)
        if not isinstance(document, dict):
            raise ValueError("isn't an object of inputs")
        arrays = {name: _as_array(name, value) for name, value in document.items()}
        for name, array in arrays.items():
            # An integer's type isn't forced on: 1.5 would become 1.
            if name in specs and specs[name].kind == "f" and array.dtype.kind in "iuf":
                arrays[name] = array.astype(specs[name])
        return arrays
    loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        if len(needed) != 1:
            raise ValueError("has one array, the model needs " + ", ".join(needed))
        return {needed[0]: loaded}
    with loaded:
        return {name: _as_array(name, loaded[name]) for name in loaded.files}


def _as_array(name: str, value: Any) -> "NDArray[Any]":
    try:
        return np.asarray(value)
    except ValueError:
        raise ValueError("{}: rows of unequal lengths".format(shorten(name, 100))) from None


def _describe(array: "NDArray[Any]", values: bool) -> Dict[str, Any]:
    entry: Dict[str, Any] = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if values:
        plain = array.astype(object) if array.dtype.kind == "f" else array
        if array.dtype.kind == "f":
            lost = ~np.isfinite(array)
            plain[lost] = None
            entry["not_finite"] = int(lost.sum())
        entry["values"] = plain.tolist()
    return entry


def format_run(report: Dict[str, Any]) -> List[str]:
    """For people: a line for each output, with the first of its values."""
    lines = []
    for name, entry in report["outputs"].items():
        line = "{}: {}[{}]".format(name, entry["dtype"], ", ".join(map(str, entry["shape"])))
        if "values" in entry:
            flat = np.asarray(entry["values"], dtype=object).ravel()
            shown = ["?" if item is None else "{:.6g}".format(item) for item in flat[:_SHOWN]]
            line += "  " + " ".join(shown) + (" ..." if flat.size > _SHOWN else "")
            if entry.get("not_finite"):
                line += "  ({} of {} are NaN or infinite)".format(entry["not_finite"], flat.size)
        lines.append(line)
    if report["output"] is not None:
        lines.append("wrote " + report["output"])
    return lines
