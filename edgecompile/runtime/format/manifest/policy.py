"""Reads the manifest's ``policy``: how a robot's observations become actions."""

from typing import Dict, Mapping, Optional, Tuple

from ..document import Field, is_printable, shorten
from ..dtypes import Number, holds
from .policy_schema import ObservationSpec, PolicySpec, Scaling
from .schema import Dim, TensorSpec
from .signature import MAX_INPUTS, Signature

MAX_NUMBERS = 4096
MAX_ACTIONS = 65536
MAX_STEPS = 256
#: Dtypes of values that are normalized, and of those that are not.
_SCALED = ("float32",)
_PLAIN = (*_SCALED, "int64", "bool")


def read_policy(top: Field, signature: Signature) -> Optional[PolicySpec]:
    """The ``policy`` of a manifest; None where there is none, or a problem was noted.

    Args:
        top: the whole manifest.
        signature: the signature that was read before; tensors are judged only if nothing is wrong so far.
    """
    entry = top.find("policy")
    sound = not entry.problems.items
    if not entry.object():
        return None
    before = entry.problems.count
    for key in ("generation", "state"):
        if top.find(key):
            entry.refuse("policy-inputs", "a policy has no {}".format(key))
    steps = _count(entry.find("steps"), 1, MAX_STEPS) if entry.find("steps") else 0
    noise = entry.find("noise").string() if entry.find("noise").given else None
    action = entry.at("action").object()
    ensemble = None
    if entry.find("ensemble").given:
        ensemble = _number(entry.find("ensemble"))
    spec = PolicySpec(
        observations=_read_observations(entry.at("observations")),
        output=action.at("output").string() or "",
        scaling=_read_scaling(action.find("scaling"), divides=False),
        action_steps=_count(entry.at("action_steps"), 1, MAX_ACTIONS) or 1,
        steps=steps or 0,
        ensemble=ensemble,
        noise=noise,
    )
    if sound and entry.problems.count == before:
        _check_inputs(spec, entry, signature)
        _check_action(spec, entry, signature)
    return spec if entry.problems.count == before else None


def _count(field: Field, least: int, most: int) -> Optional[int]:
    return field.within(least, most, "policy-steps")


def _number(field: Field) -> Optional[Number]:
    value = field.number()
    if value is not None and not holds("float32", value):
        field.refuse("policy-numbers", "{} isn't a finite float32".format(value))
        return None
    return value


def _read_observations(entries: Field) -> Dict[str, ObservationSpec]:
    result = {}
    for name, entry in entries.members(1, MAX_INPUTS):
        if not (1 <= len(name) <= 200 and is_printable(name)):
            text = "{!r} must be 1 to 200 printable code points".format(shorten(name))
            entry.refuse("policy-observations", text)
        if entry.object():
            scaling = _read_scaling(entry.find("scaling"), divides=True)
            result[name] = ObservationSpec(entry.at("input").string() or "", scaling)
    return result


def _read_scaling(entry: Field, divides: bool) -> Optional[Scaling]:
    """A normalization; ``divides``: whether its scale mustn't be 0."""
    if not entry.given:
        return None
    entry = entry.object()
    offset, scale = (_numbers(entry.at(key)) for key in ("offset", "scale"))
    shift = _number(entry.at("shift"))
    if divides and any(value == 0 for value in scale):
        entry.find("scale").refuse("policy-numbers", "an observation can't be divided by 0")
    return Scaling(offset, scale, shift or 0)


def _numbers(field: Field) -> Tuple[Number, ...]:
    values = [_number(item) for item in field.items(1, MAX_NUMBERS)]
    return tuple(value for value in values if value is not None)


def _check_inputs(spec: PolicySpec, entry: Field, signature: Signature) -> None:
    """Holds the observations and the noise against the signature."""
    tensors = {item.name: item for item in signature.inputs}
    rest = dict(tensors)
    for key, item in spec.observations.items():
        field = entry.find("observations").find(key)
        tensor = _take(item.input, rest, field.find("input"))
        if tensor is None:
            continue
        first = 2 if spec.steps else 1
        if tensor.shape[1:2] != (spec.steps,) and spec.steps:
            text = "{!r} must have {} observations in its second dimension"
            field.refuse("policy-inputs", text.format(item.input, spec.steps))
        elif not _is_value(tensor, first, _PLAIN if item.scaling is None else _SCALED):
            text = "{!r} must be {} with fixed sizes behind its batch"
            dtypes = "float32, int64 or bool" if item.scaling is None else "float32"
            field.refuse("policy-inputs", text.format(item.input, dtypes))
        else:
            _check_scaling(item.scaling, tensor.shape[first], field.find("scaling"))
    if spec.noise is not None:
        tensor = _take(spec.noise, rest, entry.find("noise"))
        if tensor is not None and not _is_value(tensor, 1):
            text = "{!r} must be float32 with fixed sizes behind its batch"
            entry.find("noise").refuse("policy-inputs", text.format(spec.noise))
    if rest:
        text = "nothing gives the input {!r}".format(next(iter(rest)))
        entry.find("observations").refuse("policy-inputs", text)
    if len({item.shape[:1] for item in tensors.values()}) > 1:
        entry.find("observations").refuse("policy-inputs", "inputs must have one batch")


def _take(name: str, rest: Dict[str, TensorSpec], field: Field) -> Optional[TensorSpec]:
    tensor = rest.pop(name, None)
    if tensor is None:
        text = "there is no {!r} that nothing else gives".format(shorten(name))
        field.refuse("policy-inputs", text)
    return tensor


def _is_value(tensor: TensorSpec, first: int, dtypes: Tuple[str, ...] = _SCALED) -> bool:
    """Whether a tensor has fixed sizes from the dimension ``first`` on, of which there is one at least."""
    rest = tensor.shape[first:]
    return tensor.dtype in dtypes and bool(rest) and all(isinstance(dim, int) for dim in rest)


def _check_scaling(scaling: Optional[Scaling], size: Dim, field: Field) -> None:
    for key, values in () if scaling is None else zip(("offset", "scale"), scaling[:2]):
        if len(values) not in (1, size):
            text = "has {} numbers, must have 1 or {}".format(len(values), size)
            field.find(key).refuse("policy-numbers", text)


def _check_action(spec: PolicySpec, entry: Field, signature: Signature) -> None:
    """Holds the action against the signature."""
    outputs: Mapping[str, TensorSpec] = {item.name: item for item in signature.outputs}
    field, tensor = entry.find("action"), outputs.get(spec.output)
    if tensor is None:
        text = "there is no output {!r}".format(shorten(spec.output))
        field.find("output").refuse("policy-action", text)
        return
    batch = signature.inputs[0].shape[:1]
    if not _is_value(tensor, 1) or len(tensor.shape) != 3 or tensor.shape[:1] != batch:
        text = "{!r} must be float32 [batch, actions, size] with the inputs' batch"
        field.find("output").refuse("policy-action", text.format(spec.output))
        return
    _check_scaling(spec.scaling, tensor.shape[2], field.find("scaling"))
    actions = tensor.shape[1]
    assert isinstance(actions, int)
    if spec.action_steps > actions:
        text = "a chunk has {} actions, {} can't be performed".format(actions, spec.action_steps)
        entry.find("action_steps").refuse("policy-steps", text)
    if spec.ensemble is not None and spec.action_steps != 1:
        entry.find("action_steps").refuse("policy-steps", "must be 1 with an ensemble")
