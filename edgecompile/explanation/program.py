"""The kernels that the operators of an exported graph become."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os.path import commonpath
from typing import Any

import torch
from torch.fx import GraphModule, Node

from edgecompile.backends.cpu.lowering.lower import lower_graph
from edgecompile.backends.inductor.compat.generation import GENERATING, GeneratedCpp, generate_cpp
from edgecompile.backends.inductor.failures import CodegenFailure, read_failure
from edgecompile.backends.inductor.source import ExternCall, extern_calls
from edgecompile.backends.lowering.rewriting import LoweringReport
from edgecompile.errors import CompileError, EdgecompileError
from edgecompile.explanation.report import KernelUse, Unlowered
from edgecompile.explanation.request import ExplainRequest
from edgecompile.export.checks import ExportScope
from edgecompile.export.guards import quiet_torch
from edgecompile.models.source_lines import SourceLine, line_of_trace
from edgecompile.precision import Precision

#: Lines and kinds of modules kept for one operator or kernel.
_MOST_PLACES = 6
#: Operators that torch adds to a graph and that compute nothing.
_SILENT = (
    *("_assert_tensor_metadata", "_assert_scalar", "sym_size"),
    *("sym_constrain_range", "sym_constrain_range_for_size"),
)
_KINDS = ("missing", "own", "generic")
_NO_CODE = "no code was generated: kernels that the lowering didn't put in aren't known"


@dataclass(frozen=True)
class Origin:
    """The operator, kind of module and line of the model that a node of a graph comes from."""

    operator: str
    module: str
    place: SourceLine | None


@dataclass(frozen=True)
class LoweredProgram:
    """A program's graph after lowering.

    Attributes:
        gm: the graph, lowered.
        report: the report of the lowering.
        before: origins of the exported graph's operators by node, before the lowering.
        constants: names of the exported program's constants, and of packed weights.
    """

    gm: GraphModule
    report: LoweringReport
    before: Mapping[str, Origin]
    constants: frozenset[str]

    def origin(self, node: Node) -> Origin:
        """The origin of a node of the lowered graph; a linear's module is its weight's."""
        origin = _origin(node)
        packed = [self.report.packed.get(str(item.target), []) for item in node.all_input_nodes]
        owners = [name.rpartition(".")[0] for names in packed for name in names]
        if not owners:
            return origin
        common = commonpath([name.replace(".", "/") for name in owners]).replace("/", ".")
        return Origin(origin.operator, module_kind(common), origin.place)


def lower_program(program: torch.export.ExportedProgram, precision: Precision) -> LoweredProgram:
    """Lowers a copy of the program's graph as a build would."""
    with GENERATING:
        gm = program.module()
        assert isinstance(gm, GraphModule)
        before = {
            node.name: _origin(node)
            for node in gm.graph.nodes
            if node.op == "call_function"
            and hasattr(node.target, "_schema")
            and node_name(node) not in _SILENT
        }
        report = lower_graph(gm, precision)
    signature = program.graph_signature
    packed = {name for name, _ in gm.named_buffers() if name in report.packed}
    constants = frozenset({*signature.parameters, *signature.buffers, *packed})
    return LoweredProgram(gm, report, before, constants)


def generate_code(
    subject: ExportScope, lowered: LoweredProgram, request: ExplainRequest, notes: list[str]
) -> tuple[GeneratedCpp | None, CodegenFailure | None]:
    """The generated code, or why a build would get none; neither where it can't be found out."""
    if not request.code:
        notes.append(_NO_CODE)
        return None, None
    variant = request.target.variants[-1]
    try:
        with quiet_torch(), GENERATING:
            example = subject.loaded.make_example(subject.traced, seed=7)
            return generate_cpp(lowered.gm, example, variant, shared=lowered.constants), None
    except CompileError as error:
        notes.append(_NO_CODE)
        if error.__cause__ is not None:
            return None, read_failure(error.__cause__)
        return None, CodegenFailure(error.message, error.hint or "")
    except EdgecompileError as error:
        # Of this machine, such as a compiler that isn't installed: the model may be fine.
        notes.append(f"no code was generated: {error.message}")
    return None, None


def kernel_uses(
    lowered: LoweredProgram, generated: GeneratedCpp | None, flops: Mapping[str, int]
) -> tuple[KernelUse, ...]:
    """The kernels that the program calls.

    Args:
        lowered: the program.
        generated: its code; None: there is none, and only what the lowering put in is known.
        flops: the operations of each node of the lowered graph.
    """
    nodes = {node.name: node for node in lowered.gm.graph.nodes}
    calls: Iterable[ExternCall] = (
        extern_calls(generated.wrapper)
        if generated is not None
        else [
            ExternCall(f"aoti_torch_cpu_{node_name(node)}", (node.name,))
            for node in nodes.values()
            if is_own(node)
        ]
    )
    groups: dict[str, list[ExternCall]] = {}
    for call in calls:
        groups.setdefault(call.name, []).append(call)
    uses = []
    for name, group in groups.items():
        behind = [nodes[n] for call in group for n in call.nodes[-1:] if n in nodes]
        origins = [lowered.origin(node) for node in behind]
        kind = "missing" if not group[0].native else "own" if name.startswith("ec_") else "generic"
        total = sum(flops.get(node.name, 0) for node in behind)
        counted = Counter(origin.place for origin in origins if origin.place is not None)
        places = tuple(place for place, _ in counted.most_common(_MOST_PLACES))
        uses.append(KernelUse(name, kind, len(group), total, _modules(origins), places))
    return tuple(sorted(uses, key=lambda u: (_KINDS.index(u.kind), -u.flops, -u.calls, u.kernel)))


def unlowered_nodes(lowered: LoweredProgram, flops: Mapping[str, int]) -> tuple[Unlowered, ...]:
    """The candidates that were left to Inductor, those with the most FLOPs first."""
    nodes = sorted(lowered.report.kept.items(), key=lambda item: (-flops.get(item[0], 0), item[0]))
    made = []
    for name, reason in nodes:
        origin = lowered.before.get(name, Origin(name, "", None))
        made.append(
            Unlowered(origin.operator, reason, origin.module, flops.get(name, 0), origin.place)
        )
    return tuple(made)


def module_kind(path: str) -> str:
    """``encoder.layer.3.output`` as ``encoder.layer.*.output``: like modules are of one kind."""
    path = re.sub(r"^model\.?", "", path)
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\g<1>*", path)


def node_name(node: Node) -> str:
    """The name of a node's operator without its overload."""
    return str(getattr(node.target, "__name__", node.target)).partition(".")[0]


def is_own(node: Node) -> bool:
    """Whether a node calls an operator that the lowering put in."""
    return getattr(node.target, "namespace", "") == "edgecompile"


def _origin(node: Node) -> Origin:
    stack: Mapping[Any, Any] = node.meta.get("nn_module_stack") or {}
    path = str(next(reversed(list(stack.values())))[0]) if stack else ""
    # torch's own name for operators that it added outside any module
    path = "" if path.startswith("_empty_nn_module") else path.removeprefix("L['self'].")
    namespace = getattr(node.target, "namespace", "")
    operator = f"{namespace}.{node_name(node)}" if namespace else node_name(node)
    return Origin(operator, module_kind(path), line_of_trace(node.meta.get("stack_trace")))


def _modules(origins: Iterable[Origin]) -> tuple[str, ...]:
    counted = Counter(origin.module for origin in origins)
    return tuple(name for name, _ in counted.most_common(_MOST_PLACES))
