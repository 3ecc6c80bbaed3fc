"""Reads the manifest's ``text``, ``labels`` and ``ranges``: texts as inputs, and the meaning of outputs."""

from typing import Dict, Mapping, Optional, Tuple

from ..document import Field, is_printable, shorten
from ..dtypes import BY_NAME, holds
from .schema import TEXT_PARTS, TEXT_STEPS, FileEntry, TensorSpec, TextSpec
from .signature import Signature

MAX_TOKENIZER_BYTES = 64 << 20
MAX_PROMPTS = 64
#: Where a bundle has its chat template; the server reads it.
CHAT_FILE = "tokenizer/chat.json"
MAX_CHAT_BYTES = 1 << 20
MAX_LABELS = 65536
MAX_RANGES = 65536


def read_text(
    entry: Field, files: Mapping[str, FileEntry], signature: Signature
) -> Optional[TextSpec]:
    """The ``text`` of a manifest; None where there is none, or a problem was noted.

    Args:
        entry: the entry of the manifest.
        files: the files that the manifest lists.
        signature: the signature that was read before; inputs are judged only if nothing is wrong so
            far.
    """
    sound = not entry.problems.items
    if not entry.object():
        return None
    before = entry.problems.count
    tokenizer = entry.at("tokenizer").path(files)
    size = files[tokenizer].size if tokenizer in files else 0
    if size > MAX_TOKENIZER_BYTES:
        text = "has {} bytes, at most {}".format(size, MAX_TOKENIZER_BYTES)
        entry.find("tokenizer").refuse("text-size", text)
    max_length = entry.at("max_length").integer()
    pad_id = entry.at("pad_id").integer()
    inputs = _read_inputs(entry.at("inputs"))
    prepare = entry.find("prepare").items(0, len(TEXT_STEPS))
    steps = tuple(item.choice(TEXT_STEPS, "text-prepare") or "" for item in prepare)
    prompts, prompt = _read_prompts(entry)
    if max_length is None or pad_id is None:
        return None
    spec = TextSpec(tokenizer, max_length, pad_id, inputs, steps, prompts, prompt)
    if sound and entry.problems.count == before:
        _check_inputs(spec, entry, signature)
    return spec


def read_labels(entries: Field, signature: Signature) -> Dict[str, Tuple[str, ...]]:
    """The ``labels`` of a manifest by output; only those without a problem.

    Args:
        entries: the entries of the manifest.
        signature: the signature that was read before; outputs are judged only if nothing is wrong
            so far.
    """
    sound = not entries.problems.items
    outputs = {item.name: item for item in signature.outputs}
    result = {}
    for name, field in entries.members():
        labels = []
        for item in field.items(1, MAX_LABELS):
            label = item.string()
            if label is not None and not (1 <= len(label) <= 200 and is_printable(label)):
                text = "{!r} must be 1 to 200 printable characters".format(shorten(label))
                item.refuse("label-form", text)
            labels.append(label or "")
        if sound and isinstance(field.value, list):
            count, output = len(field.value), outputs.get(name)
            if output is None:
                field.refuse("label-output", "there is no such output")
            elif not output.shape or output.shape[-1] != count:
                text = "{} labels, but the output's last dimension is {}"
                last = output.shape[-1] if output.shape else "missing"
                field.refuse("label-output", text.format(count, last))
        result[name] = tuple(labels)
    return result


def read_ranges(
    entries: Field, signature: Signature
) -> Dict[str, Tuple[Tuple[float, ...], Tuple[float, ...]]]:
    """The ``ranges`` of a manifest by output: smallest and largest values of each of a row's numbers.

    Args:
        entries: the entries of the manifest.
        signature: the signature that was read before; outputs are judged only if nothing is wrong
            so far.
    """
    sound = not entries.problems.items
    outputs = {item.name: item for item in signature.outputs}
    result = {}
    for name, field in entries.members():
        before = field.problems.count
        ends = [
            tuple(item.number() for item in end.items(1, MAX_RANGES)) for end in field.items(2, 2)
        ]
        if field.problems.count > before:
            continue
        low, high = (tuple(float(item or 0) for item in end) for end in ends)
        output = outputs.get(name)
        if len(low) != len(high) or any(a > b for a, b in zip(low, high)):
            field.refuse("range-ends", "the first list must have the lower end of each range")
        if sound and output is None:
            field.refuse("range-output", "there is no such output")
        elif sound and output is not None:
            floats = bool(output.dtype) and BY_NAME[output.dtype].kind == "f"
            if not floats or len(output.shape) != 2 or output.shape[1] != len(low):
                text = "must be an output of floats with two dimensions, the last one {}"
                field.refuse("range-output", text.format(len(low)))
        result[name] = (low, high)
    return result


def _read_inputs(entries: Field) -> Dict[str, str]:
    result: Dict[str, str] = {}
    for name, field in entries.members(1, len(TEXT_PARTS)):
        part = field.choice(TEXT_PARTS, "text-inputs")
        if part is None:
            continue
        if part in result.values():
            field.refuse("text-inputs", "{} goes twice".format(part))
        result[name] = part
    return result


def _read_prompts(entry: Field) -> Tuple[Dict[str, str], Optional[str]]:
    prompts = {}
    for name, field in entry.find("prompts").members(0, MAX_PROMPTS):
        prompts[name] = field.string() or ""
    default = entry.find("default_prompt")
    prompt = default.string() if default.given else None
    if prompt is not None and prompt not in prompts:
        default.refuse("text-prompts", "{!r} isn't one of the prompts".format(shorten(prompt)))
    return prompts, prompt


def _check_inputs(spec: TextSpec, entry: Field, signature: Signature) -> None:
    """Holds the inputs that texts feed against the signature."""
    inputs = entry.find("inputs")
    tensors = {item.name: item for item in signature.inputs}
    fed = []
    for name in spec.inputs:
        item = tensors.get(name)
        if item is None:
            inputs.find(name).refuse("text-inputs", "there is no such input")
        elif BY_NAME[item.dtype].kind != "i" or len(item.shape) != 2:
            text = "must be an input of signed integers with two dimensions"
            inputs.find(name).refuse("text-inputs", text)
        elif any(isinstance(dim, str) and dim not in signature.axes for dim in item.shape):
            text = "must have axes or fixed sizes as dimensions, no sums"
            inputs.find(name).refuse("text-inputs", text)
        else:
            fed.append(item)
    ids = [item for item in fed if spec.inputs[item.name] == "ids"]
    if "ids" not in spec.inputs.values():
        inputs.refuse("text-inputs", "none of them gets the ids")
    if any(item.shape != fed[0].shape for item in fed):
        inputs.refuse("text-inputs", "they must have one shape")
    if ids:
        _check_ids(spec, entry, ids[0], signature)


def _check_ids(spec: TextSpec, entry: Field, ids: TensorSpec, signature: Signature) -> None:
    dim = ids.shape[1]
    longest = dim if isinstance(dim, int) else signature.axes[str(dim)].hi
    if not 1 <= spec.max_length <= longest:
        text = "{} isn't within 1..{}, what {!r} takes".format(spec.max_length, longest, ids.name)
        entry.find("max_length").refuse("text-length", text)
    outside = ids.bounds is not None and not ids.bounds[0] <= spec.pad_id <= ids.bounds[1]
    if outside or not holds(ids.dtype, spec.pad_id):
        text = "{} isn't a value of {!r}".format(spec.pad_id, ids.name)
        entry.find("pad_id").refuse("text-pad", text)
