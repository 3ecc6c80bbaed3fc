"""What a program's operators become: kernels of ours, generic ones, or ones that are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from edgecompile.backends.generated import ExternCall, extern_calls
from edgecompile.backends.inductor_compat import GENERATING, GeneratedCpp, generate_cpp
from edgecompile.backends.lowering.lower import LoweringReport, lower_graph
from edgecompile.explanation.eager import module_kind
from edgecompile.explanation.report import Kept, KernelUse, OperatorUse
from edgecompile.models.source_lines import Place, place_of_trace
from edgecompile.precision import Precision
from edgecompile.targets.profile import VariantSpec

__all__ = [
    "CHECKS",
    "LoweredProgram",
    "generate",
    "kernel_uses",
    "kept_nodes",
    "lower_program",
    "operator_uses",
]

#: Lines and kinds of modules kept for one operator or kernel.
_MOST_PLACES = 6

#: Operators that torch adds to a graph and that compute nothing.
CHECKS = (
    *("_assert_tensor_metadata", "_assert_scalar"),
    *("sym_constrain_range", "sym_constrain_range_for_size"),
)
_SILENT = (*CHECKS, "sym_size")


@dataclass(frozen=True)
class Origin:
    """Where a node of a graph comes from in the model."""

    operator: str
    module: str
    place: Place | None


@dataclass(frozen=True)
class LoweredProgram:
    """A program's graph after lowering, with what is known of its nodes.

    Attributes:
        gm: the graph, lowered.
        report: of the lowering.
        before: origins of the exported graph's operators by node, before the lowering.
        own: names of the constants that the exported program has, and of packed weights.
    """

    gm: GraphModule
    report: LoweringReport
    before: Mapping[str, Origin]
    own: frozenset[str] = field(default=frozenset())

    def origin(self, node: Node) -> Origin:
        """Where a node of the lowered graph comes from; a linear's module is its weight's."""
        found = _origin(node)
        packed = [self.report.packed.get(str(item.target), []) for item in node.all_input_nodes]
        owners = [name.rpartition(".")[0] for names in packed for name in names]
        if not owners:
            return found
        module = owners[0] if len(set(owners)) == 1 else _common(owners)
        return Origin(found.operator, module_kind(module), found.place)


def lower_program(program: torch.export.ExportedProgram, precision: Precision) -> LoweredProgram:
    """Lowers a copy of the program's graph as a build would."""
    with GENERATING:
        gm = program.module()
        assert isinstance(gm, GraphModule)
        before = {node.name: _origin(node) for node in _operators(gm)}
        report = lower_graph(gm, precision)
    signature = program.graph_signature
    packed = {name for name, _ in gm.named_buffers() if name in report.packed}
    own = frozenset({*signature.parameters, *signature.buffers, *packed})
    return LoweredProgram(gm, report, before, own)


def generate(
    lowered: LoweredProgram,
    example: Mapping[str, torch.Tensor],
    variant: VariantSpec,
    scratch: Path,
    cxx: str,
) -> GeneratedCpp:
    """Inductor's C++ for the lowered graph.

    Raises:
        CompileError: it generates none.
    """
    with GENERATING:
        return generate_cpp(
            lowered.gm,
            example,
            arch=variant.arch,
            march=variant.march,
            simdlen=variant.simdlen,
            cache_dir=scratch,
            shared=lowered.own,
            cxx=cxx,
        )


def operator_uses(lowered: LoweredProgram) -> tuple[OperatorUse, ...]:
    """The exported graph's operators, the most frequent first."""
    groups: dict[str, list[Origin]] = {}
    for origin in lowered.before.values():
        groups.setdefault(origin.operator, []).append(origin)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(
        OperatorUse(name, len(origins), _modules(origins), _places(origins))
        for name, origins in ordered
    )


def kernel_uses(
    lowered: LoweredProgram, generated: GeneratedCpp | None, flops: Mapping[str, int]
) -> tuple[KernelUse, ...]:
    """The kernels that the program calls.

    Without generated code only those that the lowering put in are known.

    Args:
        lowered: the program.
        generated: its code; None: there is none.
        flops: of each node of the lowered graph.
    """
    nodes = {node.name: node for node in lowered.gm.graph.nodes}
    if generated is None:
        calls: Iterable[ExternCall] = [
            ExternCall(f"aoti_torch_cpu_{_name(node)}", (node.name,))
            for node in nodes.values()
            if getattr(node.target, "namespace", "") == "edgecompile"
        ]
    else:
        calls = extern_calls(generated.wrapper)
    groups: dict[str, list[ExternCall]] = {}
    for call in calls:
        groups.setdefault(call.name, []).append(call)
    uses = []
    for name, group in groups.items():
        behind = [nodes[n] for call in group for n in call.nodes[-1:] if n in nodes]
        origins = [lowered.origin(node) for node in behind]
        kind = "missing" if not group[0].native else "own" if name.startswith("ec_") else "generic"
        total = sum(flops.get(node.name, 0) for node in behind)
        uses.append(KernelUse(name, kind, len(group), total, _modules(origins), _places(origins)))
    order = {"missing": 0, "own": 1, "generic": 2}
    return tuple(
        sorted(uses, key=lambda use: (order[use.kind], -use.flops, -use.calls, use.kernel))
    )


def kept_nodes(lowered: LoweredProgram, flops: Mapping[str, int]) -> tuple[Kept, ...]:
    """The candidates that were left to Inductor, those with the most work first."""
    made = []
    for name, reason in lowered.report.kept.items():
        origin = lowered.before.get(name, Origin(name, "", None))
        work = flops.get(name, 0)
        made.append(Kept(name, origin.operator, reason, origin.module, work, origin.place))
    return tuple(sorted(made, key=lambda kept: (-kept.flops, kept.node)))


def _operators(gm: GraphModule) -> list[Node]:
    return [
        node
        for node in gm.graph.nodes
        if node.op == "call_function"
        and hasattr(node.target, "_schema")
        and _name(node) not in _SILENT
    ]


def _origin(node: Node) -> Origin:
    stack: Mapping[Any, Any] = node.meta.get("nn_module_stack") or {}
    path = str(next(reversed(list(stack.values())))[0]) if stack else ""
    # torch's own name for operators that it added outside any module
    path = "" if path.startswith("_empty_nn_module") else path.removeprefix("L['self'].")
    trace = node.meta.get("stack_trace")
    return Origin(_operator(node), module_kind(path), place_of_trace(trace))


def _operator(node: Node) -> str:
    namespace = getattr(node.target, "namespace", "")
    return f"{namespace}.{_name(node)}" if namespace else _name(node)


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target)).partition(".")[0]


def _common(paths: list[str]) -> str:
    """The module that all these are within."""
    shared = []
    for parts in zip(*(path.split(".") for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def _modules(origins: Iterable[Origin]) -> tuple[str, ...]:
    counted = Counter(origin.module for origin in origins)
    return tuple(name for name, _ in counted.most_common(_MOST_PLACES))


def _places(origins: Iterable[Origin]) -> tuple[str, ...]:
    counted = Counter(str(o.place) for o in origins if o.place is not None)
    return tuple(place for place, _ in counted.most_common(_MOST_PLACES))
