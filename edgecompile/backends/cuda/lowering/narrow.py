"""Makes a float32 program one of half precision, as ``model.half()`` would have been exported.

What a model widens on purpose stays float32: what it converts to float32 itself (the squares of a
root-mean-square norm, angles made of positions), and what is computed of that alone. Where both kinds
meet, the wider one is rounded, and a product with a constant is of half precision, but for those that choose
(:mod:`~edgecompile.backends.cuda.lowering.routers`), which are of float32. Inductor
computes chains of elementwise operators and sums in float32 in either case and rounds at their ends.

float16 ends at 65504: conversions and numbers in the graph stop there, so that a mask's lowest float32
is float16's lowest, not an infinity.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_map

from edgecompile.backends.cuda.lowering.routers import find_routers
from edgecompile.backends.lowering.constants import (
    PACKED_PREFIX,
    attribute_name,
    constant_of,
    drop_unused_constants,
    is_nameless,
    value_of,
)
from edgecompile.backends.lowering.in_place import changes_in_place

aten = torch.ops.aten

#: Products, and look-ups of rows: with a constant they are of half precision.
_PRODUCTS = {
    "linear", "addmm", "mm", "matmul", "bmm", "baddbmm", "einsum", "embedding", "embedding_bag",
    "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "lstm", "gru", "rnn_tanh", "rnn_relu", "recurrence", "_grouped_mm",
    "grouped_mm_fallback", "gpu_convolution",
}  # fmt: skip

#: They take operands of different dtypes, by the names of their operators: conversions, comparisons
#: and norms whose statistics are float32.
_ANY_DTYPE = {
    "to", "_to_copy", "type_as", "copy_", "lt", "le", "gt", "ge", "eq", "ne", "batch_norm",
    "_native_batch_norm_legit_no_training", "sym_size", "_assert_tensor_metadata",
}  # fmt: skip

#: The host reads a number as the model has it.
_READS = {"item", "_local_scalar_dense"}

_VIEWS = {
    "t", "permute", "transpose", "view", "reshape", "unsqueeze", "squeeze", "expand", "slice",
    "select", "flatten", "contiguous", "clone", "unflatten",
}  # fmt: skip


def narrow_graph(gm: GraphModule, dtype: torch.dtype) -> None:
    """Rewrites ``gm`` in place; inputs and outputs keep their dtypes.

    Args:
        gm: a float32 program's module, as exported.
        dtype: float16 or bfloat16.
    """
    _Narrowing(gm, dtype).run()


def _name(node: Node) -> str:
    """The operator's name without its overload."""
    schema = getattr(node.target, "_schema", None)
    return str(schema.name).partition("::")[2] if schema is not None else ""


def is_changed(node: Node) -> bool:
    """Whether an operator changes a tensor in place, or a view of it."""
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        if schema is None or not user.args or user.args[0] is not node:
            continue
        if schema.is_mutable or (_name(user) in _VIEWS and is_changed(user)):
            return True
    return False


class _Narrowing:
    def __init__(self, gm: GraphModule, dtype: torch.dtype) -> None:
        self.gm, self.dtype = gm, dtype
        self.limit = torch.finfo(dtype).max if dtype == torch.float16 else None
        self.narrowed: dict[Node, Node] = {}
        outputs = next(iter(reversed(gm.graph.nodes))).all_input_nodes
        self.narrow_outputs = {node for node in outputs if self._kind(node) == dtype}
        self.routers = find_routers(gm)
        self.changes = bool(changes_in_place(gm))
        values = (value_of(node) for node in gm.graph.nodes)
        modes = (getattr(value, "fake_mode", None) for value in values)
        self.mode: Any = next(mode for mode in modes if mode is not None)

    def run(self) -> None:
        with torch.no_grad():
            for node in list(self.gm.graph.nodes):
                self._visit(node)
        self._place_constants()

    def _visit(self, node: Node) -> None:
        if node.op == "placeholder":
            value = value_of(node)
            # A cache that is written in place is the caller's, and stays what that one has.
            if value is not None and value.dtype == torch.float32 and not is_changed(node):
                users = list(node.users)
                with self.gm.graph.inserting_before(node.next):
                    narrow = self._convert(node)
                for user in users:
                    user.replace_input_with(node, narrow)
        elif node.op == "get_attr":
            constant = constant_of(self.gm, node)
            if constant is not None:
                node.meta["val"] = self.mode.from_tensor(constant)
        elif node.op == "output":
            self._restore_outputs(node)
        elif node.op == "call_function":
            self._visit_call(node)

    def _visit_call(self, node: Node) -> None:
        name = _name(node)
        if name == "_assert_tensor_metadata":
            self.gm.graph.erase_node(node)  # it says what dtype the float32 program had
            return
        if getattr(node.target, "namespace", "") == "higher_order":
            self._widen(node)
            return
        if "val" not in node.meta and name in _VIEWS:
            # A rewrite has added it.
            args = torch.fx.map_arg(node.args, lambda source: source.meta["val"])
            with self.mode:
                node.meta["val"] = node.target(*args)  # type: ignore[operator]
        if node in self.routers or name in _READS:
            self._widen(node)
            return
        floats = [source for source in node.all_input_nodes if self._kind(source) is not None]
        narrow = any(self._kind(source) == self.dtype for source in floats)
        product = name in _PRODUCTS and any(map(self._is_constant, floats))
        if not narrow and not product:
            return
        if name and name not in _ANY_DTYPE:
            self._narrow_operands(node, name)
        self._limit_numbers(node)
        self._update(node)

    def _kind(self, node: Node) -> torch.dtype | None:
        """Its dtype, if that is float32 or the narrow one; of a list of tensors, the first's."""
        value = node.meta.get("val")
        if isinstance(value, (list, tuple)):
            value = next((v for v in value if isinstance(v, Tensor)), None)
        is_float = isinstance(value, Tensor) and value.dtype in (torch.float32, self.dtype)
        return value.dtype if is_float else None  # type: ignore[union-attr]

    def _is_constant(self, node: Node) -> bool:
        """Whether it is a constant or a view of one."""
        while node.op == "call_function" and _name(node) in _VIEWS:
            node = node.args[0]  # type: ignore[assignment]
        return constant_of(self.gm, node) is not None

    def _narrow_operands(self, node: Node, name: str) -> None:
        schema = node.target._schema  # type: ignore[union-attr]
        own = None
        if schema.is_mutable and isinstance(node.args[0], Node):
            own = self._kind(node.args[0])
        # Operands that kernels of ours read in either dtype.
        free: list[Any] = []
        if name == "scaled_dot_product_attention":
            free = [node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")]
        elif name == "ec_cached_attention":
            free = list(node.args[1:3])
        replaced: dict[Node, Node] = {}
        for source in node.all_input_nodes:
            value = source.meta.get("val")
            if source in free or not isinstance(value, Tensor) or not value.is_floating_point():
                continue
            if schema.is_mutable and source is node.args[0]:
                continue
            dtype = own or self.dtype
            if value.dtype == dtype or value.dtype not in (torch.float32, self.dtype):
                continue
            if dtype == self.dtype:
                replaced[source] = self._narrow(source, node)
            else:
                with self.gm.graph.inserting_before(node):
                    replaced[source] = self._convert(source, dtype)
        if replaced:
            node.args = torch.fx.map_arg(node.args, lambda n: replaced.get(n, n))
            node.kwargs = torch.fx.map_arg(node.kwargs, lambda n: replaced.get(n, n))

    def _narrow(self, source: Node, before: Node) -> Node:
        """The narrow form of a float32 node, made once where the wide one is made."""
        if source in self.narrowed:
            return self.narrowed[source]
        constant = constant_of(self.gm, source)
        viewed = source.op == "call_function" and _name(source) in _VIEWS
        if constant is not None:
            with self.gm.graph.inserting_before(source.next):
                result = self.gm.graph.get_attr(str(source.target))
            result.meta["val"] = self.mode.from_tensor(self._saturated(constant))
        elif viewed and self._is_constant(source):
            inner = self._narrow(source.args[0], source)  # type: ignore[arg-type]
            with self.gm.graph.inserting_before(source.next):
                result = self.gm.graph.call_function(
                    source.target,  # type: ignore[arg-type]
                    (inner, *source.args[1:]),
                    dict(source.kwargs),
                )
            result.meta = dict(source.meta)
            self._update(result)
        elif source.op == "call_function" and not self.changes:
            with self.gm.graph.inserting_before(source.next):
                result = self._convert(source)
        else:
            with self.gm.graph.inserting_before(before):
                return self._convert(source)
        self.narrowed[source] = result
        return result

    def _convert(self, source: Node, dtype: torch.dtype | None = None) -> Node:
        """Adds a conversion, by default to the narrow dtype, where the graph's insertions go."""
        target, graph = dtype or self.dtype, self.gm.graph
        value = source.meta["val"]
        inner = source
        if target == self.dtype and self.limit is not None:
            inner = graph.call_function(aten.clamp.default, (source, -self.limit, self.limit))
            inner.meta = {**source.meta, "val": value}
        result = graph.call_function(aten.to.dtype, (inner, target))
        result.meta = {**source.meta, "val": self._as(value, target)}
        return result

    def _saturated(self, constant: Tensor) -> Tensor:
        if self.limit is not None:
            constant = constant.clamp(-self.limit, self.limit)
        return constant.to(self.dtype)

    def _limit_numbers(self, node: Node) -> None:
        limit = self.limit
        if limit is None:
            return

        def limited(value: Any) -> Any:
            if isinstance(value, float) and limit < abs(value) < float("inf"):
                return limit if value > 0 else -limit
            return value

        node.args = torch.fx.node.map_aggregate(node.args, limited)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, limited)

    def _update(self, node: Node) -> None:
        """Gives the node's float32 results the dtype that they have with the operands of now."""
        dtype: torch.dtype | None = self.dtype
        name, schema = _name(node), getattr(node.target, "_schema", None)
        if name in ("to", "_to_copy") or torch.float32 in (*node.args, *node.kwargs.values()):
            dtype = None
        elif name == "type_as":
            dtype = self._kind(node.args[1])  # type: ignore[arg-type]
        elif name == "batch_norm" or (schema is not None and schema.is_mutable):
            dtype = self._kind(node.args[0])  # type: ignore[arg-type]
        if dtype is not None:
            node.meta["val"] = self._as(node.meta.get("val"), dtype)

    def _as(self, value: Any, dtype: torch.dtype) -> Any:
        """A recorded value, or several, with this dtype in place of the other floating one."""

        def converted(item: Any) -> Any:
            if not isinstance(item, Tensor) or item.dtype not in (torch.float32, self.dtype):
                return item
            with self.mode:
                return torch.empty_strided(item.shape, item.stride(), dtype=dtype)

        return tree_map(converted, value)

    def _widen(self, node: Node) -> None:
        """Gives an operator float32 operands, of which its recorded results are."""
        replaced = {}
        for source in node.all_input_nodes:
            if self._kind(source) == self.dtype:
                with self.gm.graph.inserting_before(node):
                    replaced[source] = self._convert(source, torch.float32)
        node.args = torch.fx.map_arg(node.args, lambda n: replaced.get(n, n))
        node.kwargs = torch.fx.map_arg(node.kwargs, lambda n: replaced.get(n, n))

    def _restore_outputs(self, output: Node) -> None:
        """Outputs that were float32 are so again."""

        def restored(node: Node) -> Node:
            if self._kind(node) != self.dtype or node in self.narrow_outputs:
                return node
            with self.gm.graph.inserting_before(output):
                return self._convert(node, torch.float32)

        output.args = torch.fx.map_arg(output.args, restored)

    def _place_constants(self) -> None:
        """Rounds the constants; one that is read in both forms gets a second one."""
        narrow: dict[str, list[Node]] = {}
        for node in self.narrowed.values():
            if node.op == "get_attr":
                narrow.setdefault(str(node.target), []).append(node)
        copies = set(self.narrowed.values())
        self.gm.graph.eliminate_dead_code()
        left = set(self.gm.graph.nodes)
        wide = {str(n.target) for n in left if n.op == "get_attr" and n not in copies}
        rounded: dict[int, Tensor] = {}  # tied constants stay tied
        originals: list[Tensor] = []
        for name, nodes in narrow.items():
            if not any(node in left for node in nodes):
                continue
            owner, _, leaf = name.rpartition(".")
            module = self.gm.get_submodule(owner) if owner else self.gm
            old = getattr(module, leaf)
            originals.append(old)
            if id(old) not in rounded:
                fresh = self._saturated(old.detach())
                is_parameter = isinstance(old, torch.nn.Parameter)
                rounded[id(old)] = torch.nn.Parameter(fresh, False) if is_parameter else fresh
            if name not in wide:
                setattr(module, leaf, rounded[id(old)])
                continue
            # Packed ones are the same in every program of the model.
            prefix = "echalf_" if is_nameless(name) else f"{PACKED_PREFIX}half_"
            second = attribute_name(prefix, name, name)
            self.gm.register_buffer(second, rounded[id(old)].data)
            for node in nodes:
                node.target = second
        drop_unused_constants(self.gm)
        self.gm.recompile()
