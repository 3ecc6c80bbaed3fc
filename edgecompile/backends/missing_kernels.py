"""What a program calls that the native runtime hasn't got, known before anything is compiled."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from torch.fx import GraphModule

from edgecompile.backends.generated import PROXY, all_calls
from edgecompile.errors import MissingKernelError

__all__ = ["missing_symbols_error", "modules_of_nodes", "refuse_missing_kernels"]

#: Why some kernels will never be there.
_REASONS: tuple[tuple[str, str], ...] = (
    (r"rand|bernoulli|multinomial|exponential|normal|uniform|dropout", "draws random numbers"),
    (
        r"masked_select|unique|bincount|repeat_interleave",
        "the size of its result depends on values",
    ),
)

#: Modules that are named for one kernel.
_MOST = 6


@dataclass
class _Missing:
    """One kernel: how often it is called, and from where."""

    count: int = 0
    modules: dict[str, None] = field(default_factory=dict)  # an ordered set


def modules_of_nodes(gm: GraphModule) -> dict[str, str]:
    """The module of the model that each node of an exported graph comes from, by node name.

    ``encoder.layer.0.attention (BertAttention)``; nodes that export gave no module are left out.
    """
    found = {}
    for node in gm.graph.nodes:
        stack = node.meta.get("nn_module_stack") or {}
        if not stack:
            continue
        levels = [(str(path), _short(kind)) for path, kind in stack.values()]
        path, kind = levels[-1]
        if levels[0][1] == "NamedModule":  # edgecompile's own, around the model
            path = path.partition(".")[2]
        found[str(node.name).lower()] = f"{path} ({kind})" if path else f"the model ({kind})"
    return found


def _short(kind: object) -> str:
    return str(kind if isinstance(kind, str) else getattr(kind, "__name__", kind)).split(".")[-1]


def refuse_missing_kernels(
    wrapper: str, modules: Mapping[str, str], exports: Container[str]
) -> None:
    """Raises a MissingKernelError that lists every call the runtime has no function for.

    Args:
        wrapper: generated C++ that calls the kernels.
        modules: from :func:`modules_of_nodes`.
        exports: the runtime's symbols, ``ec_`` and the called name each.
    """
    missing: dict[str, _Missing] = {}
    for call in all_calls(wrapper):
        if f"ec_{call.symbol}" in exports:
            continue
        label = call.symbol
        if call.symbol == PROXY:
            label = f"{', '.join(call.operators) or 'an operator'} (no C interface)"
        entry = missing.setdefault(label, _Missing())
        entry.count += 1
        names = [name.lower() for name in call.nodes]
        entry.modules.update((modules[n], None) for n in names if n in modules)
    if missing:
        raise _error(missing)


def _error(missing: Mapping[str, _Missing]) -> MissingKernelError:
    """One error for all of it."""
    lines = []
    for name, entry in sorted(missing.items()):
        times = "once" if entry.count == 1 else f"{entry.count} times"
        shown = list(entry.modules)[:_MOST]
        rest = len(entry.modules) - len(shown)
        places = ", ".join(shown) + (f" and {rest} more" if rest else "")
        reason = next((text for pattern, text in _REASONS if re.search(pattern, name)), "")
        line = f"  {name}, {times}" + (f", in {places}" if places else "")
        lines.append(line + (f": {reason}" if reason else ""))
    noun = "a kernel" if len(lines) == 1 else f"{len(lines)} kernels"
    return MissingKernelError(
        f"the model calls {noun} that the native runtime doesn't have:\n" + "\n".join(lines),
        hint="rewrite these operations in the model, or move them outside the compiled part; "
        "--runtime torch makes a bundle for hosts that have torch",
    )


def missing_symbols_error(names: list[str]) -> MissingKernelError:
    """The same for symbols that the linker would miss: vector functions, OpenMP."""
    return _error({name: _Missing(1) for name in names})
