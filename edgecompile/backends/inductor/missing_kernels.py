"""Refuses programs that call what the native runtime lacks, before anything is compiled."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule

from edgecompile.backends.inductor.source import PROXY, ExternCall, extern_calls
from edgecompile.errors import MissingKernelError
from edgecompile.models.source_lines import line_of_trace

#: Why some kernels will never be there.
_REASONS: tuple[tuple[str, str], ...] = (
    (r"rand|bernoulli|multinomial|exponential|normal|uniform|dropout", "draws random numbers"),
    (r"repeat_interleave", "the size of its result depends on values: output_size gives it one"),
    (r"unique|bincount|nms|suppress", "the size of its result depends on values"),
    (
        r"^aten\.(item|_local_scalar_dense)",
        "a size is made of its number, which has no end: torch._check(number <= most) gives it one",
    ),
)

#: Kernels that the runtime has for float32 alone.
_FLOAT32 = re.compile(
    r"(?:add|badd)?b?mm_out|_scaled_dot_product_flash_attention_for_cpu",
)

#: Modules that are named for one kernel.
_MOST = 6


def modules_of_nodes(gm: GraphModule) -> dict[str, str]:
    """The module of the model that each node of an exported graph comes from, by node name, and its line.

    ``encoder.layer.0.attention (BertAttention) at bert.py:12``; nodes that export gave no module are left
    out, and so is the line of those that don't come from the model's own code.
    """
    modules = {}
    for node in gm.graph.nodes:
        stack = node.meta.get("nn_module_stack") or {}
        if not stack:
            continue
        levels = [(str(path), _short(kind)) for path, kind in stack.values()]
        path, kind = levels[-1]
        if levels[0][1] == "NamedModule":  # edgecompile's own, around the model
            path = path.partition(".")[2]
        place = line_of_trace(node.meta.get("stack_trace"))
        line = "" if place is None else f" at {place.short}"
        modules[str(node.name).lower()] = f"{path or 'the model'} ({kind}){line}"
    return modules


def dtypes_of_nodes(gm: GraphModule) -> dict[str, str]:
    """The dtype of each node's result that isn't float32, by node name: ``float64``."""
    values = {str(node.name).lower(): node.meta.get("val") for node in gm.graph.nodes}
    return {
        name: str(value.dtype).removeprefix("torch.")
        for name, value in values.items()
        if isinstance(value, Tensor) and value.dtype != torch.float32
    }


def _short(kind: object) -> str:
    return str(kind if isinstance(kind, str) else getattr(kind, "__name__", kind)).split(".")[-1]


def refuse_missing_kernels(
    wrapper: str,
    modules: Mapping[str, str],
    exports: Container[str],
    dtypes: Mapping[str, str] | None = None,
) -> None:
    """Raises a MissingKernelError that lists every call the runtime has no function for, or none of its dtype.

    Args:
        wrapper: generated C++ that calls the kernels.
        modules: the modules from :func:`modules_of_nodes`.
        exports: the runtime's symbols, ``ec_`` and the called name each.
        dtypes: from :func:`dtypes_of_nodes`.
    """
    missing: dict[str, list[ExternCall]] = {}
    for call in extern_calls(wrapper):
        dtype = (dtypes or {}).get(call.nodes[-1].lower()) if call.nodes else None
        if f"ec_{call.symbol}" not in exports:
            label = f"{call.name} (no C interface)" if call.symbol == PROXY else call.symbol
            missing.setdefault(label, []).append(call)
        elif dtype is not None and _FLOAT32.fullmatch(call.name):
            missing.setdefault(f"{call.symbol} of {dtype}", []).append(call)
    if missing:
        raise missing_kernels_error(missing, modules)


def missing_kernels_error(
    missing: Mapping[str, Sequence[ExternCall]], modules: Mapping[str, str]
) -> MissingKernelError:
    """One error for all that is missing.

    Args:
        missing: the calls by what they call, none for symbols that only the linker would miss
            (vector functions, OpenMP).
        modules: the modules from :func:`modules_of_nodes`.
    """
    lines = []
    for name, calls in sorted(missing.items()):
        times = f"{len(calls)} times" if len(calls) > 1 else "once"
        nodes = [node.lower() for call in calls for node in call.nodes]
        callers = list(dict.fromkeys(modules[node] for node in nodes if node in modules))
        rest = len(callers) - _MOST
        places = ", ".join(callers[:_MOST]) + (f" and {rest} more" if rest > 0 else "")
        reason = next((text for pattern, text in _REASONS if re.search(pattern, name)), "")
        line = f"  {name}, {times}" + (f", in {places}" if places else "")
        lines.append(line + (f": {reason}" if reason else ""))
    noun = "a kernel" if len(lines) == 1 else f"{len(lines)} kernels"
    return MissingKernelError(
        f"the model calls {noun} that the native runtime doesn't have:\n" + "\n".join(lines),
        hint="rewrite these operations in the model, or move them outside the compiled part; "
        '`backend="torch"` makes a bundle for hosts that have torch',
    )
