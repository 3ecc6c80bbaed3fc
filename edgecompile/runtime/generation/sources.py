"""The source of a text in an encoder-decoder bundle, which the encoder reads."""

from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional

import numpy as np

from ..base.errors import BundleError, InputError, NativeError
from ..call.inputs import as_array
from ..format.document import Problems
from ..format.dtypes import BY_NAME
from ..format.manifest.schema import Extent, GenerationSpec, Manifest, TensorSpec
from .request import refuse_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..open.bundle import OpenBundle

    Arrays = Dict[str, NDArray[Any]]


def check_encoder(spec: GenerationSpec, manifest: Manifest, encoder: Manifest, path: str) -> None:
    """Checks that an encoder's bundle makes what the decoder's takes.

    Args:
        spec, manifest: the generation entry and the manifest of the decoder.
        encoder: the manifest of the bundle within.
        path: the path of that bundle, for errors.

    Raises:
        BundleError: rule generation-encoder; lists every problem.
    """
    problems = Problems(path)

    def add(where: str, text: str) -> None:
        problems.add("generation-encoder", where, text)

    if encoder.generation is not None:
        add("generation", "an encoder cannot generate text")
    cross = {item.name: item for item in manifest.inputs if item.name in spec.cross}
    outputs = {item.name: item for item in encoder.outputs}
    if set(outputs) != set(cross):
        add("outputs", "must be what the decoder takes: {}".format(", ".join(spec.cross)))
    rows = cross[spec.cross[0]].shape[0]
    own = encoder.length_axis if isinstance(rows, str) else rows
    shared = sorted(set(outputs) & set(cross))
    if isinstance(rows, str) and shared and outputs[shared[0]].shape[:1] == (None,):
        own = None  # each run tells it
    for name in shared:
        shape = (own, *cross[name].shape[1:])
        if (outputs[name].dtype, outputs[name].shape) != ("float32", shape):
            text = "{!r} must be float32[{}]"
            dims = ["null" if dim is None else str(dim) for dim in shape]
            add("outputs", text.format(name, ", ".join(dims)))
    if isinstance(rows, str) and isinstance(own, str):
        ours, theirs = encoder.axes[own], manifest.axes[rows]
        if ours.lo not in theirs or ours.hi not in theirs:
            add("axes", "reach {}, the decoder takes sources of {}".format(ours, theirs))
    inputs = {item.name: item for item in encoder.inputs}
    if spec.source not in inputs:
        add("inputs", "{!r} isn't one of them".format(spec.source))
    else:
        for name in sorted(set(inputs) - {spec.source}):
            if not _is_mask(inputs[name], inputs[spec.source]):
                add("inputs", "nothing says what {!r} is".format(name))
    speech = manifest.speech
    item = None if speech is None else inputs.get(speech.input)
    if speech is not None and item is not None:
        shape, wanted = item.shape[1:], "samples"
        fits = len(shape) == 1
        if speech.windows is not None and speech.log_mel is not None:
            bins, frames = speech.log_mel.bins, speech.windows.frames
            fits, wanted = shape == (bins, frames), "{} bins and {} frames".format(bins, frames)
        if item.dtype != "float32" or not fits:
            text = "{!r} must be float32 of a batch, {}"
            problems.add("speech-input", "inputs", text.format(speech.input, wanted))
    problems.raise_if_any(BundleError, "the bundle was written wrongly or changed; build it again")


def _is_mask(item: TensorSpec, source: TensorSpec) -> bool:
    bounds = item.bounds
    ones = bounds is None or bounds[0] <= 1 <= bounds[1]
    return item.shape == source.shape and BY_NAME[item.dtype].kind in "biu" and ones


def read_source(spec: GenerationSpec, encoder: "OpenBundle", value: Any) -> "Arrays":
    """The encoder's inputs for a source, checked: masks that aren't given see all of it.

    Args:
        spec: the generation entry of the decoder.
        encoder: the open bundle of the encoder.
        value: token ids, [length] or [1, length]; or arrays by the names of the encoder's inputs.

    Raises:
        InputError: lists everything that is wrong.
        OutsideBucketsError: no bucket of the encoder takes a source of this size.
    """
    inputs = {item.name: item for item in encoder.manifest.inputs}
    arrays: Dict[str, Any] = {}
    if isinstance(value, Mapping):
        arrays.update(value)
    else:
        if BY_NAME[inputs[spec.source].dtype].kind == "f":
            text = "the source is a {}, must be a mapping with {!r}"
            hint = "give {{{!r}: array}}".format(spec.source)
            raise InputError(text.format(type(value).__name__, spec.source), hint)
        refuse_text(value)
        arrays[spec.source] = _as_ids(value)
    main = arrays.get(spec.source)
    shape = getattr(main, "shape", None)
    for name, item in inputs.items():
        if name not in arrays and shape is not None and _is_mask(item, inputs[spec.source]):
            arrays[name] = np.ones(shape, item.dtype)
    # Copies: a session compares them with the next ones, and a caller may change its own.
    return {name: array.copy() for name, array in encoder.check_inputs(arrays).items()}


def _as_ids(value: Any) -> "NDArray[Any]":
    try:
        array = as_array(value)
    except Exception as error:  # whatever an object's __array__ raises
        raise InputError("the source isn't an array: {}".format(error)) from None
    if array.ndim == 1 and array.size:
        array = array[None]
    return array


def same_source(one: "Optional[Arrays]", other: "Arrays") -> bool:
    """Whether two sources are equal, to the last bit."""
    return one is not None and all(np.array_equal(one[name], other[name]) for name in other)


def run_encoder(
    spec: GenerationSpec, encoder: "OpenBundle", source: "Arrays", sizes: Optional[Extent]
) -> "Arrays":
    """Keys and values of a source by the names of the decoder's inputs.

    Args:
        spec: the generation entry of the decoder.
        encoder: the open bundle of the encoder.
        source: the result of :func:`read_source`.
        sizes: Numbers of rows that the decoder takes; None: the only one.

    Raises:
        NativeError: the encoder made others, or of several numbers.
    """
    outputs = encoder.run(source)
    cross = {name: outputs[name] for name in spec.cross}
    counts = {array.shape[0] for array in cross.values()}
    if len(counts) > 1 or (sizes is not None and min(counts) not in sizes):
        text = "the encoder made {} rows of the source, the decoder takes one number of {}"
        raise NativeError(text.format(" and ".join(map(str, sorted(counts))), sizes))
    return cross
