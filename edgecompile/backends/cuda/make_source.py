"""From an exported program to its code for a GPU: the wrapper in C++, and Triton's kernels as PTX."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from edgecompile.backends.cuda.device_free import move_to_gpu, run_inductor
from edgecompile.backends.cuda.gemm.row_tiles import TileChooser
from edgecompile.backends.cuda.gemm.tiles import RULES
from edgecompile.backends.cuda.lowering.lower import lower_for_gpu
from edgecompile.backends.cuda.source import Kernel
from edgecompile.backends.inductor.compat.generation import GENERATING, generation_failed
from edgecompile.backends.inductor.compat.sizes import (
    assume_no_ones,
    conditions_compared,
    refuse_fixed,
    sizes_interpolated,
    varying_sizes,
)
from edgecompile.backends.inductor.missing_kernels import modules_of_nodes
from edgecompile.backends.inductor.source import name_by_content, temporary_folder
from edgecompile.backends.lowering.constants import PACKED_PREFIX
from edgecompile.buckets.ranges import Bucket
from edgecompile.errors import CompileError
from edgecompile.export.conditions import unlike_sizes
from edgecompile.export.program import ExportedModel
from edgecompile.targets.gpu import GpuFacts


@dataclass(frozen=True)
class GpuSource:
    """Code for one program.

    Attributes:
        wrapper: C++ that launches the kernels.
        kernels: Triton's, as PTX.
        constants: the tensors that it reads from outside, by fully qualified name.
        modules: module of the model by node, for messages.
        lowering: the rewrites.
        kinds: sizes at which conditions don't hold that Inductor took for given.
        reads_numbers: whether it reads numbers from the GPU in the middle of a run.
        products: the number of matmuls that cuBLASLt may compute.
    """

    wrapper: str
    kernels: tuple[Kernel, ...]
    constants: Mapping[str, Tensor]
    modules: Mapping[str, str]
    lowering: Mapping[str, Any]
    kinds: tuple[Mapping[str, int], ...]
    reads_numbers: bool
    products: int


def make_gpu_source(
    exported: ExportedModel,
    bucket: Bucket,
    gpu: GpuFacts,
    precision: str,
    ptxas: Path,
    *,
    check: Callable[[GraphModule], None] = lambda module: None,
    rule: str = RULES[0],
) -> GpuSource:
    """Generates a program's code; takes :data:`~edgecompile.backends.inductor.compat.generation.GENERATING`.

    Args:
        exported: the program for the bucket's range, in float32.
        bucket: its hint is the size that tiles are chosen for where they don't depend on rows.
        gpu: the target.
        precision: ``fp32``, ``bf16`` or ``fp16``: of weights and activations; ``int8``: of weights; ``fp8``: of products.
        ptxas: the assembler that the PTX is for.
        check: a function that is given the graph, lowered and still on the CPU; raises where it
            computes wrongly.
        rule: the rule for the tiles of matmuls.

    Raises:
        CompileError: Inductor or Triton failed, or fixed a size that varies.
    """
    with GENERATING:
        module = exported.program.module()
        signature = exported.program.graph_signature
        own = {*signature.parameters, *signature.buffers}
        ranges = exported.ranges
        sizes = {
            name: min(max(extent.hint, ranges[name][0]), ranges[name][1])
            for name, extent in bucket.axes
            if name in ranges
        }
        example = exported.example(sizes)
        report = lower_for_gpu(module, gpu, precision, example)
        modules = modules_of_nodes(module)
        check(module)
        packed = {name for name, _ in module.named_buffers() if name.startswith(PACKED_PREFIX)}
        program = move_to_gpu(module, example)
        varying = varying_sizes(module)
        environment = next((size.node.shape_env for size, _ in varying), None)
        assume_no_ones(varying)
        guard_count = 0 if environment is None else len(environment.guards)
        with temporary_folder() as folder, sizes_interpolated(), conditions_compared():
            try:
                raw = run_inductor(program, gpu, TileChooser(gpu, rule), Path(folder), ptxas)
            except CompileError:
                raise
            except Exception as error:
                raise generation_failed(error) from error
        new = [] if environment is None else environment.guards[guard_count:]
        refuse_fixed(varying, new)
        assumed = tuple(guard.expr for guard in new)
        kinds = tuple(
            unlike_sizes(module, assumed, exported.inputs, ranges, sizes, exported.residue)
        )
    wrapper, constants = name_by_content(_plain(raw.wrapper), raw.constants, own | packed)
    reads = "aoti_torch_item_" in wrapper
    if reads:
        wrapper = _ASSERTION.sub("if (!ec_cuda_rehearses() && ", wrapper)
    return GpuSource(
        wrapper, raw.kernels, constants, modules, vars(report), kinds, reads, raw.products
    )


#: Comments with the kernels' sources, which name temporary files.
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
#: Of numbers, which a rehearsal makes up one by one.
_ASSERTION = re.compile(r'if \((?=!\(.*\)\) \{ throw std::runtime_error\("Expected )')


def _plain(wrapper: str) -> str:
    """The wrapper without what differs from one run to the next."""
    return _COMMENT.sub("", wrapper)
