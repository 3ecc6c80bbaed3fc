"""A generation that is asked for: its prompt and options, checked."""

import sys
from typing import TYPE_CHECKING, Any, Dict, FrozenSet, List, NamedTuple, Optional, Tuple

import numpy as np

from ..base.errors import ContextLengthError, InputError
from ..call.inputs import as_array
from ..format.document import shorten
from ..format.manifest.schema import GenerationSpec, Manifest
from .constraint import is_constraint
from .options import Options
from .sampling import MAX_SEED, Sampling

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Without a default of the bundle.
DEFAULT_NEW_TOKENS = 20
MAX_STOPS = 1024

_WHOLE = (int, np.integer)
_NUMBER = (int, float, np.integer, np.floating)


class GenerationRequest(NamedTuple):
    """A generation, checked.

    ``stops`` are sequences that end it, by their last token. ``source`` has the encoder's inputs,
    where there is an encoder. ``marks`` are numbers of tokens at which later texts may well part from the prompt.
    """

    prompt: List[int]
    max_new_tokens: int
    sampling: Sampling
    eos: FrozenSet[int]
    stops: Dict[int, List[Tuple[int, ...]]]
    source: "Optional[Dict[str, NDArray[Any]]]" = None
    marks: Tuple[int, ...] = ()


def make_generation_request(
    manifest: Manifest, input_ids: Any, options: Options
) -> GenerationRequest:
    """Checks the arguments of ``Model.generate`` and fills in the bundle's defaults.

    ``input_ids`` are what the new tokens follow; the source of an encoder isn't among these arguments.

    Raises:
        ContextLengthError: prompt and new tokens don't fit into the context.
        InputError: lists everything else that is wrong.
    """
    spec = manifest.generation
    assert spec is not None
    problems: List[str] = []
    refuse_text(input_ids)
    prompt = _read_prompt(manifest, spec, input_ids, problems)
    max_new_tokens, eos = options.max_new_tokens, options.eos
    sampling = _read_sampling(spec, options, problems)
    vocabulary = manifest.outputs[0].shape[1]
    assert isinstance(vocabulary, int)
    ends = frozenset(spec.eos) if eos is None else _read_eos(eos, vocabulary, problems)
    stops = _read_stops(options.stop, vocabulary, problems)
    if max_new_tokens is not None and not _is_whole(max_new_tokens, 1, 2**31 - 1):
        text = "max_new_tokens is {!r}, must be an integer in 1..2147483647"
        problems.append(text.format(max_new_tokens))
    if options.constraint is not None and not is_constraint(options.constraint):
        name = type(options.constraint).__name__
        text = "constraint is a {}, must have methods mask and accept; forced and ended are methods too"
        problems.append(text.format(name))
    lookup: Any = options.lookup
    if not isinstance(lookup, (bool, np.bool_)):
        problems.append("lookup is {!r}, must be True or False".format(lookup))
    elif lookup and spec.lookup == 1:
        problems.append(
            "lookup was asked for, but the bundle has no program for it; build it with --lookup 8"
        )
    if problems:
        raise InputError("\n  ".join(["the generation can't be run:", *problems]))
    room = spec.max_context - len(prompt)
    count = max_new_tokens
    if count is None:
        count = min(spec.defaults.get("max_new_tokens", DEFAULT_NEW_TOKENS), max(room, 1))
    if count > room:
        text = "{} tokens of the prompt and {} new ones don't fit into the context of {}"
        cures = []
        if room > 0:
            cures.append("ask for at most {} new tokens".format(room))
        if count < spec.max_context:
            cures.append("cut the prompt to at most {} tokens".format(spec.max_context - count))
        cures.append("build the bundle with a larger max_context, where the model allows it")
        raise ContextLengthError(
            text.format(len(prompt), count, spec.max_context), ", or ".join(cures)
        )
    return GenerationRequest(prompt, int(count), sampling, ends, stops)


def begin_text(spec: GenerationSpec, tokens: Any) -> Any:
    """The start of a text behind a source.

    As in transformers: ``tokens`` with the first start token in front, if it isn't there; the start
    tokens after the first, which are forced, only where nothing else follows it.
    """
    start = list(spec.start)
    if tokens is None:
        return start
    try:
        array = as_array(tokens)
    except Exception:  # whatever an object's __array__ raises; told with the other problems
        return tokens
    if array.ndim == 2 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu" or _has_bools(tokens):
        return tokens
    ids = array.tolist()
    ids = ids if ids[0] == start[0] else start[:1] + ids
    return ids if len(ids) > 1 else start


def refuse_text(value: Any) -> None:
    """Raises InputError where a text was given instead of its token ids, and says how to get these."""
    if isinstance(value, (str, bytes)):
        raise InputError(
            "a text was given, must be token ids",
            "tokenizer = edgecompile.runtime.open_tokenizer(model) makes them: "
            "model.generate(tokenizer.encode(text).ids); its decode() makes text of the new tokens",
        )


def _read_prompt(
    manifest: Manifest, spec: GenerationSpec, value: Any, problems: List[str]
) -> List[int]:
    try:
        array = as_array(value)
    except Exception as error:  # whatever an object's __array__ raises
        problems.append("input_ids: isn't an array: {}".format(shorten(error, 160)))
        return []
    if array.ndim == 2 and array.shape[0] == 1:
        array = array[0]
    if array.size == 0:
        problems.append("input_ids: is empty, must have at least one token id")
        return []
    if array.ndim != 1:
        text = "input_ids: has shape {}, must be that of one text: [length] or [1, length]"
        problems.append(text.format(list(array.shape)))
        return []
    if array.dtype.kind not in "iu" or _has_bools(value):
        found = "bool" if _has_bools(value) else array.dtype
        problems.append("input_ids: has dtype {}, must be integers".format(found))
        return []
    item = next(item for item in manifest.inputs if item.name == spec.input)
    assert item.bounds is not None
    low, high = item.bounds
    bad = np.flatnonzero((array < low) | (array > high))
    if bad.size:
        text = "input_ids: {} of {} values lie outside {}..{}, the first is {} at [{}]"
        first = int(bad[0])
        problems.append(text.format(bad.size, array.size, low, high, array[first], first))
        return []
    ids: List[int] = array.tolist()
    return ids


def _has_bools(value: Any) -> bool:
    """Whether truth values stand in a row of ids: numpy makes ones and zeros of them among numbers."""
    row = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
    return isinstance(row, (list, tuple)) and not {bool, np.bool_}.isdisjoint(map(type, row))


def _read_sampling(spec: GenerationSpec, options: Options, problems: List[str]) -> Sampling:
    """The given options, else the bundle's defaults, else neutral values."""
    arguments = options._asdict()
    do_sample: Any = options.do_sample
    seed = options.seed
    values: Dict[str, Any] = {}
    for key, fallback in (
        ("temperature", 1.0),
        ("top_k", 0),
        ("top_p", 1.0),
        ("repetition_penalty", 1.0),
    ):
        value = arguments[key]
        if value is None:
            value = spec.defaults.get(key, fallback)
        elif key == "top_k":
            if not _is_whole(value, 0, 2**31 - 1):
                problems.append("top_k is {!r}, must be an integer from 0 on".format(value))
        elif not _is_number(value) or not _in_range(key, value):
            problems.append("{} is {!r}, must be {}".format(key, value, _RANGES[key]))
        values[key] = value
    if do_sample is None:
        # Who says how to sample wants that, and a temperature of 0 means the likeliest.
        implied = any(arguments[key] is not None for key in ("temperature", "top_k", "top_p"))
        do_sample = implied or bool(spec.defaults.get("do_sample", False))
    elif not isinstance(do_sample, (bool, np.bool_)):
        problems.append("do_sample is {!r}, must be True or False".format(do_sample))
    if seed is not None and not _is_whole(seed, 0, MAX_SEED):
        problems.append("seed is {!r}, must be an integer from 0 to {}".format(seed, MAX_SEED))
    if problems:
        return Sampling()
    cold = values["temperature"] == 0
    return Sampling(
        do_sample=bool(do_sample) and not cold,
        temperature=1.0 if cold else float(values["temperature"]),
        top_k=int(values["top_k"]),
        top_p=float(values["top_p"]),
        repetition_penalty=float(values["repetition_penalty"]),
        seed=None if seed is None else int(seed),
    )


_RANGES = {
    "temperature": "a number from 0 on",
    "top_p": "a number over 0, at most 1",
    "repetition_penalty": "a number over 0",
}


def _in_range(key: str, value: float) -> bool:
    if not value <= sys.float_info.max:
        return False
    if key == "top_p":
        return 0 < value <= 1
    return value >= 0 if key == "temperature" else value > 0


def _is_whole(value: Any, low: int, high: int) -> bool:
    return isinstance(value, _WHOLE) and not isinstance(value, bool) and bool(low <= value <= high)


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBER) and not isinstance(value, bool)


def _read_eos(value: Any, vocabulary: int, problems: List[str]) -> FrozenSet[int]:
    items = [value] if isinstance(value, _WHOLE) else value
    if not isinstance(items, (list, tuple, set, frozenset)) or not all(
        _is_whole(item, 0, vocabulary - 1) for item in items
    ):
        text = "eos is {}, must be token ids, 0..{}; none: ()"
        problems.append(text.format(shorten(repr(value)), vocabulary - 1))
        return frozenset()
    return frozenset(int(item) for item in items)


def _read_stops(
    value: Any, vocabulary: int, problems: List[str]
) -> Dict[int, List[Tuple[int, ...]]]:
    """Each item of ``stop``, a token or a sequence of tokens, by its last token."""
    result: Dict[int, List[Tuple[int, ...]]] = {}
    items = [value] if isinstance(value, _WHOLE) else value
    if not isinstance(items, (list, tuple)) or len(items) > MAX_STOPS:
        problems.append(
            "stop must be a list of at most {} token ids or lists of token ids".format(MAX_STOPS)
        )
        return result
    for item in items:
        sequence = [item] if isinstance(item, _WHOLE) else item
        if isinstance(sequence, np.ndarray):
            sequence = sequence.tolist()
        good = isinstance(sequence, (list, tuple)) and len(sequence) > 0
        if not good or not all(_is_whole(token, 0, vocabulary - 1) for token in sequence):
            text = "stop has {}, must have token ids, 0..{}, or lists of them"
            problems.append(text.format(shorten(repr(item)), vocabulary - 1))
            continue
        tokens = tuple(int(token) for token in sequence)
        result.setdefault(tokens[-1], []).append(tokens)
    return result
