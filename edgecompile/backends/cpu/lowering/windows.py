"""The caches of a language model that are read through sliding windows alone.

No token that is run later reads a row that has left such a window, so whoever holds the cache needn't keep it.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from edgecompile.backends.lowering.in_place import changes_in_place, memory_of
from edgecompile.backends.lowering.rewriting import Lowering, arguments_of
from edgecompile.export.operators.cached_attention import CACHED_ATTENTION

aten = torch.ops.aten

#: Operators that read sizes and types alone, or write rows and read none.
_HARMLESS = (
    aten.sym_size.int,
    aten._assert_tensor_metadata.default,
    aten.index_copy_.default,
)


def note_windows(low: Lowering) -> None:
    """Notes the widest window of each input that nothing reads but attentions with windows."""
    windows: dict[str, int] = {}
    others: set[str] = set()
    changes = set(changes_in_place(low.gm))
    for node in low.gm.graph.nodes:
        for source in node.all_input_nodes:
            cache = memory_of(source)
            is_view = memory_of(node) is cache and node not in changes
            if cache.op != "placeholder" or is_view or _is_harmless(node, source):
                continue
            window = _window(node, source)
            windows[cache.name] = max(window, windows.get(cache.name, 0))
            if window <= 0:
                others.add(cache.name)
    found = {name: window for name, window in windows.items() if name not in others}
    low.report.windows.update(found)


def _is_harmless(node: Node, source: Node) -> bool:
    if node.op == "call_module" and not node.users:
        return True  # what export puts in front of a graph to check the sizes of its inputs
    return node.target in _HARMLESS and node.args[0] is source and source not in node.args[1:]


def _window(node: Node, source: Node) -> int:
    """The window through which a node reads its argument; 0: it reads all of it."""
    if node.target is not CACHED_ATTENTION:
        return 0
    given = arguments_of(node)
    others = [value for name, value in given.items() if name not in ("k", "v")]
    return 0 if source in others else int(given["window"])
