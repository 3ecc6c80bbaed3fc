"""One calling convention for every module: inputs by name, outputs as a flat dict of tensors."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

import torch

from edgecompile.errors import ModelError
from edgecompile.models.definite import definite
from edgecompile.models.source_lines import line_of_error

# torch lists what an operator does have in forty lines.
_NO_CODE = re.compile(r"Could not run '([^']+)' with arguments from the 'CPU' backend")


class NamedModule(torch.nn.Module):
    """Calls ``model`` with keyword arguments and names what it returns.

    Args:
        model: the module itself.
        names: the names of its inputs, in order.
        constants: further keyword arguments that are always the same (``use_cache=False``).
        output_names: names for a tensor or the items of a tuple; None: made up.
        only: the outputs to keep; None: all.
        positional: the number of inputs that ``model`` wants by position.

    Attributes:
        copied: names of the inputs of which ``model`` gets copies, because it changes them in place.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        names: Sequence[str],
        *,
        constants: Mapping[str, Any] | None = None,
        output_names: Sequence[str] | None = None,
        only: Sequence[str] | None = None,
        positional: int = 0,
    ) -> None:
        super().__init__()
        self.model = model
        self.copied: tuple[str, ...] = ()
        constants = dict(constants or {})
        names = tuple(names)

        def run(bound: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            for name in self.copied:
                bound[name] = bound[name].clone()
            first = [bound.pop(name) for name in names[:positional]]
            outputs = name_outputs(self.model(*first, **bound, **constants), output_names)
            return outputs if only is None else {name: outputs[name] for name in only}

        self.forward = named_forward(names, run)


def named_forward(
    names: Sequence[str], run: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> Callable[..., dict[str, torch.Tensor]]:
    """A ``forward`` with arguments of these names, which calls ``run`` with them as a dict.

    torch.export takes the names of a program's inputs from the signature, and can't handle
    ``**kwargs`` with dynamic sizes.
    """

    def forward(*args: torch.Tensor, **kwargs: torch.Tensor) -> dict[str, torch.Tensor]:
        return run({**dict(zip(names, args, strict=False)), **kwargs})

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    forward.__signature__ = signature  # type: ignore[attr-defined]
    return forward


def name_outputs(value: Any, names: Sequence[str] | None = None) -> dict[str, torch.Tensor]:
    """Flattens what a module returned into named tensors; None values are left out.

    A single tensor is called ``output``, the items of a tuple ``output_0`` and so on, unless
    ``names`` says otherwise; keys of a mapping and fields of a dataclass or named tuple name
    theirs; nested ones are joined with ``_``.

    Raises:
        ModelError: it holds something else than tensors, or the names don't fit.
    """
    pairs = list(_flatten("", value))
    if names is not None and not isinstance(value, Mapping):
        if len(names) != len(pairs):
            raise ModelError(
                f"the model returns {len(pairs)} tensors, but {len(names)} output names were given"
            )
        pairs = [(name, tensor) for name, (_, tensor) in zip(names, pairs, strict=True)]
    if len(pairs) == 1 and pairs[0][0] == "":
        pairs = [("output", pairs[0][1])]
    if not pairs:
        raise ModelError("the model returns no tensor")
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ModelError("the names of the model's outputs aren't unique: " + _listed(pairs))
    return result


def run_module(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], name: str
) -> dict[str, torch.Tensor]:
    """Runs a :class:`NamedModule` without gradients, definite where torch leaves results open.

    Raises:
        ModelError: it raises; the message names the line of the model's code.
    """
    # What a model prints must not end up on stdout, which is for data.
    with torch.no_grad(), definite(), redirect_stdout(sys.stderr):
        try:
            result: dict[str, torch.Tensor] = module(**inputs)
        except ModelError:
            raise
        except Exception as exc:
            shapes = ", ".join(f"{key} {list(value.shape)}" for key, value in inputs.items())
            raise ModelError(
                f"the model '{name}' fails on {shapes}: {describe_error(exc)}",
                hint="it must work at every size within its limits; a factory declares limits, sizes that follow "
                'from others ({"f0": {2: "2*length"}} as axes) and values that a size bounds '
                '({"lengths": (1, "length")} as bounds)',
            ) from exc
    return result


def describe_error(exc: BaseException) -> str:
    """The message of an exception, with its place in the model."""
    lines = str(exc).strip().splitlines()
    missing = _NO_CODE.match(lines[0]) if lines else None
    if missing is not None:
        text = f"the operator {missing[1]} has no code for the CPU"
    else:
        text = type(exc).__name__ + (f": {lines[0]}" if lines else "")
    place = line_of_error(exc)
    return text if place is None else f"{text} (at {place})"


def _flatten(prefix: str, value: Any) -> Iterable[tuple[str, torch.Tensor]]:
    if value is None:
        return
    if isinstance(value, torch.Tensor):
        yield prefix, value
        return
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping):
        items = value.items()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        items = zip(value._fields, value, strict=True)
    elif isinstance(value, (tuple, list)):
        prefix = prefix or "output"
        items = enumerate(value)
    else:
        where, kind = f"output '{prefix}'" if prefix else "result", type(value).__name__
        hint = "wrap the model so that it returns a tensor, a tuple or a dict of tensors"
        if kind.endswith("Cache"):
            hint = f'`task="causal-lm"` generates text with a cache; or {hint}'
        raise ModelError(f"the model's {where} is a {kind}, not a tensor", hint=hint)
    for key, item in items:
        yield from _flatten(f"{prefix}_{key}" if prefix else str(key), item)


def _listed(pairs: Iterable[tuple[str, torch.Tensor]]) -> str:
    return ", ".join(name for name, _ in pairs)
