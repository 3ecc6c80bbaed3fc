"""The caches of a language model that are read through sliding windows alone.

No token that is run later reads a row that has left such a window, so whoever holds the cache needn't keep it. The
window of an attention counts from the row that it takes for its first token's: that must be the row which the program
writes, else other rows would be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from edgecompile.backends.lowering.in_place import changes_in_place, memory_of
from edgecompile.backends.lowering.rewriting import Lowering, arguments_of
from edgecompile.export.operators.cached_attention import CACHED_ATTENTION
from edgecompile.export.operators.texts_attention import CACHES, TEXTS_ATTENTION

aten = torch.ops.aten

#: Operators that read sizes and types alone, or write rows and read none.
_HARMLESS = (
    aten.sym_size.int,
    aten._assert_tensor_metadata.default,
    aten.index_copy_.default,
)
#: The arguments of each attention that it reads through its window.
_READ = {CACHED_ATTENTION: ("k", "v"), TEXTS_ATTENTION: ("keys", "values")}


def note_windows(low: Lowering) -> None:
    """Notes the widest window of each cache that nothing reads but attentions with windows.

    A cache has the name of its input, or of its addresses: ``caches[2]`` are those in row 2 of the input ``caches``.
    """
    windows: dict[str, int] = {}
    others: set[str] = set()
    changes = set(changes_in_place(low.gm))
    for node in low.gm.graph.nodes:
        for source in node.all_input_nodes:
            cache = memory_of(source)
            is_view = memory_of(node) is cache and node not in changes
            if cache.op != "placeholder" or is_view or _is_harmless(node, source):
                continue
            name, window = _name(source), _window(node, source)
            windows[name] = max(window, windows.get(name, 0))
            if window <= 0:
                others.add(name)
    found = {
        name: window
        for name, window in windows.items()
        if others.isdisjoint((name, name.partition("[")[0]))
    }
    low.report.windows.update(found)


def common_windows(
    programs: Sequence[Mapping[str, int]], joint: Sequence[Mapping[str, int]], caches: Sequence[str]
) -> dict[str, int]:
    """The widest window of each cache that every program reads through windows alone.

    Args:
        programs: Windows that :func:`note_windows` noted of each program.
        joint: Windows of each program over the addresses of caches.
        caches: Names of the caches, in the order of their addresses.
    """
    numbers = {f"{CACHES}[{number}]": name for number, name in enumerate(caches)}
    named = [
        {numbers[key]: window for key, window in windows.items() if key in numbers}
        for windows in joint
    ]
    found = [*programs, *named]
    return {
        name: max(windows[name] for windows in found)
        for name in caches
        if found and all(name in windows for windows in found)
    }


def _name(source: Node) -> str:
    """The name of the cache that a node is a view of, or has the addresses of."""
    parts, cache = source.args[:1], memory_of(source).name
    if not parts or getattr(parts[0], "target", None) is not aten.unbind.int:
        return cache
    unbound: Any = parts[0]
    return f"{cache}[{source.args[1]}]" if unbound.args == (memory_of(source),) else cache


def _is_harmless(node: Node, source: Node) -> bool:
    if node.op == "call_module" and not node.users:
        return True  # what export puts in front of a graph to check the sizes of its inputs
    return node.target in _HARMLESS and node.args[0] is source and source not in node.args[1:]


def _window(node: Node, source: Node) -> int:
    """The window through which a node reads its argument; 0: it reads other rows, too."""
    if node.target not in _READ:
        return 0
    given = arguments_of(node)
    others = [value for name, value in given.items() if name not in _READ[node.target]]
    if source in others:
        return 0
    # Over addresses, an operator writes the row of its token itself.
    sound = node.target is TEXTS_ATTENTION or _counts_from_written(given["position"], source)
    return int(given["window"]) if sound else 0


def _counts_from_written(position: Node, keys: Node) -> bool:
    """Whether ``keys`` are a cache's rows in their order, and ``position`` is the row of the first token, as written."""
    turned: Any = keys.args[0] if keys.args else None
    if keys.target is not aten.unsqueeze.default or keys.args[1:] != (0,):
        return False
    if turned.target is not aten.transpose.int or turned.args[1:] != (0, 1):
        return False
    rows: Any = turned.args[0]
    while rows.target is aten.index_copy_.default:
        rows = rows.args[0]
    writes = [user for user in _views(rows) if user.target is aten.index_copy_.default]
    return (
        rows.op == "placeholder"
        and bool(writes)
        and all(write.args[1] == 0 and _is_first_row(position, write.args[2]) for write in writes)
    )


def _views(cache: Node) -> list[Node]:
    """The nodes whose results are in a cache's memory, or in what is changed there."""
    found = [user for user in cache.users if memory_of(user) is memory_of(cache)]
    return [node for user in found for node in (user, *_views(user))]


def _is_first_row(position: Node, written: Any) -> bool:
    """Whether rows are written from ``position`` on; or from another row on, and the token is the last of the run."""
    if position is written:
        return True
    if written.target is not aten.add.Tensor or written.kwargs:
        return False
    first, numbers = written.args
    if getattr(numbers, "target", None) is not aten.minimum.default:
        return False
    each, last = numbers.args
    if each.target is not aten.arange.default or len(each.args) != 1:
        return False
    is_last = position.target is aten.add.Tensor and position.args == (first, last)
    return position is first or (is_last and not position.kwargs)
