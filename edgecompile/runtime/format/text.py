"""Reads the manifest's ``text`` and ``labels``: how texts become inputs, and what outputs mean."""

from typing import Any, Dict, Mapping, Optional, Tuple

from .document import Reader, is_printable, join, shorten
from .dtypes import BY_NAME, holds
from .schema import TEXT_PARTS, TEXT_STEPS, FileEntry, TensorSpec, TextSpec
from .signature import Signature

KEY, LABELS = "text", "labels"
MAX_TOKENIZER_BYTES = 64 << 20
MAX_PROMPTS = 64
#: Where a bundle has its chat template; the server reads it.
CHAT_FILE = "tokenizer/chat.json"
MAX_CHAT_BYTES = 1 << 20
MAX_LABELS = 65536


def read_text(
    document: Dict[str, Any],
    reader: Reader,
    files: Mapping[str, FileEntry],
    signature: Signature,
) -> Optional[TextSpec]:
    """The ``text`` of a manifest; None where there is none, or a problem was noted.

    Args:
        document: the whole manifest.
        reader: gets the problems.
        files: what the manifest lists.
        signature: what was read before; inputs are judged only if nothing is wrong so far.
    """
    if KEY not in document:
        return None
    sound = not reader.problems.items
    before = reader.problems.count
    entry = reader.mapping(document, KEY, "")
    if entry is not document[KEY]:
        return None
    tokenizer = reader.string(entry, "tokenizer", KEY)
    if tokenizer is not None:
        _check_file(tokenizer, reader, files)
    max_length = reader.integer(entry, "max_length", KEY)
    pad_id = reader.integer(entry, "pad_id", KEY)
    inputs = _read_inputs(entry, reader)
    steps = _read_steps(entry, reader)
    prompts, prompt = _read_prompts(entry, reader)
    if max_length is None or pad_id is None or tokenizer is None:
        return None
    spec = TextSpec(tokenizer, max_length, pad_id, inputs, steps, prompts, prompt)
    if sound and reader.problems.count == before:
        _check_inputs(spec, reader, signature)
    return spec


def read_labels(
    document: Dict[str, Any], reader: Reader, signature: Signature
) -> Dict[str, Tuple[str, ...]]:
    """The ``labels`` of a manifest by output; only those without a problem.

    Args:
        document: the whole manifest.
        reader: gets the problems.
        signature: what was read before; outputs are judged only if nothing is wrong so far.
    """
    sound = not reader.problems.items
    entries = reader.mapping(document, LABELS, "", optional=True)
    outputs = {item.name: item for item in signature.outputs}
    result = {}
    for name in entries:
        where = join(LABELS, name)
        labels = reader.strings(entries, name, LABELS, 1, MAX_LABELS)
        for index, label in enumerate(labels):
            if not 1 <= len(label) <= 200 or not is_printable(label):
                text = "{!r} must be 1 to 200 printable characters".format(shorten(label))
                reader.problems.add("label-form", "{}[{}]".format(where, index), text)
        if sound and isinstance(entries[name], list):
            count, output = len(entries[name]), outputs.get(name)
            if output is None:
                reader.problems.add("label-output", where, "there is no such output")
            elif not output.shape or output.shape[-1] != count:
                text = "{} labels, but the output's last dimension is {}"
                last = output.shape[-1] if output.shape else "missing"
                reader.problems.add("label-output", where, text.format(count, last))
        result[name] = labels
    return result


def _check_file(path: str, reader: Reader, files: Mapping[str, FileEntry]) -> None:
    where = join(KEY, "tokenizer")
    reader.check_listed(path, where, files)
    if path in files and files[path].size > MAX_TOKENIZER_BYTES:
        text = "has {} bytes, at most {}".format(files[path].size, MAX_TOKENIZER_BYTES)
        reader.problems.add("text-size", where, text)


def _read_inputs(entry: Dict[str, Any], reader: Reader) -> Dict[str, str]:
    where = join(KEY, "inputs")
    found = reader.mapping(entry, "inputs", KEY)
    if found is entry.get("inputs"):
        reader.count(len(found), where, 1, len(TEXT_PARTS))
    result: Dict[str, str] = {}
    seen = set()
    for name, value in found.items():
        part = reader.as_string(value, join(where, name))
        if part is None:
            continue
        known = reader.check_choice(part, join(where, name), TEXT_PARTS, "text-inputs")
        if known and part in seen:
            reader.problems.add("text-inputs", join(where, name), "{} goes twice".format(part))
        seen.add(part)
        result[name] = part
    return result


def _read_steps(entry: Dict[str, Any], reader: Reader) -> Tuple[str, ...]:
    if "prepare" not in entry:
        return ()
    steps = reader.strings(entry, "prepare", KEY, 0, len(TEXT_STEPS))
    for index, step in enumerate(steps):
        reader.check_choice(step, "{}.prepare[{}]".format(KEY, index), TEXT_STEPS, "text-prepare")
    return steps


def _read_prompts(entry: Dict[str, Any], reader: Reader) -> Tuple[Dict[str, str], Optional[str]]:
    where = join(KEY, "prompts")
    found = reader.mapping(entry, "prompts", KEY, optional=True)
    reader.count(len(found), where, 0, MAX_PROMPTS)
    prompts = {}
    for name, value in found.items():
        text = reader.as_string(value, join(where, name))
        if text is not None:
            prompts[name] = text
    chosen = None
    if entry.get("default_prompt") is not None:
        chosen = reader.as_string(entry["default_prompt"], join(KEY, "default_prompt"))
        if chosen is not None and chosen not in found:
            text = "{!r} isn't one of the prompts".format(shorten(chosen))
            reader.problems.add("text-prompts", join(KEY, "default_prompt"), text)
    return prompts, chosen


def _check_inputs(spec: TextSpec, reader: Reader, signature: Signature) -> None:
    """Holds the inputs that texts feed against the signature."""
    where = join(KEY, "inputs")
    add = reader.problems.add
    known = {item.name: item for item in signature.inputs}
    fed = []
    for name in spec.inputs:
        item = known.get(name)
        if item is None:
            add("text-inputs", join(where, name), "there is no such input")
        elif BY_NAME[item.dtype].kind != "i" or len(item.shape) != 2:
            text = "must be an input of signed integers with two dimensions"
            add("text-inputs", join(where, name), text)
        else:
            fed.append(item)
    ids = [item for item in fed if spec.inputs[item.name] == "ids"]
    if "ids" not in spec.inputs.values():
        add("text-inputs", where, "none of them gets the ids")
    if any(item.shape != fed[0].shape for item in fed):
        add("text-inputs", where, "they must have one shape")
    if ids:
        _check_ids(spec, reader, ids[0], signature)


def _check_ids(spec: TextSpec, reader: Reader, ids: TensorSpec, signature: Signature) -> None:
    dim = ids.shape[1]
    longest = dim if isinstance(dim, int) else signature.axes[str(dim)].hi
    if not 1 <= spec.max_length <= longest:
        text = "{} isn't within 1..{}, what {!r} takes".format(spec.max_length, longest, ids.name)
        reader.problems.add("text-length", join(KEY, "max_length"), text)
    outside = ids.bounds is not None and not ids.bounds[0] <= spec.pad_id <= ids.bounds[1]
    if outside or not holds(ids.dtype, spec.pad_id):
        text = "{} isn't a value of {!r}".format(spec.pad_id, ids.name)
        reader.problems.add("text-pad", join(KEY, "pad_id"), text)
