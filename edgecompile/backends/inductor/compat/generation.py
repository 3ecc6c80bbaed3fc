"""Drives AOTInductor up to its generated C++.

Compiling and linking are ours (:mod:`edgecompile.toolchain.compilers`).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch._inductor
import torch._inductor.config
import torch._inductor.cpu_vec_isa as cpu_vec_isa
from torch import Tensor
from torch.fx import GraphModule

from edgecompile.backends.inductor.compat.determinism import (
    ordered_sums,
    ordered_writes,
    sums_of_one_thread,
)
from edgecompile.backends.inductor.compat.indices import overflow_heeded, strides_read
from edgecompile.backends.inductor.compat.instruction_sets import (
    forced_isa,
    unprobed_isa,
    vector_isa,
)
from edgecompile.backends.inductor.compat.sizes import (
    assume_no_ones,
    conditions_compared,
    refuse_fixed,
    sizes_interpolated,
    varying_sizes,
)
from edgecompile.backends.inductor.compat.sums import exact_sums
from edgecompile.backends.inductor.failures import read_failure
from edgecompile.backends.inductor.source import (
    name_by_content,
    only_file,
    split_source,
    temporary_folder,
)
from edgecompile.backends.operators import ops
from edgecompile.errors import CompileError
from edgecompile.targets.profile import VariantSpec
from edgecompile.toolchain.compilers import find_toolchain

#: To be held from an exported program to its C++: the graph's tracing and code generation patch
#: and read global state of torch, so only one thread of a process may be at it.
GENERATING = threading.Lock()


@dataclass(frozen=True)
class GeneratedCpp:
    """AOTInductor's code for one program.

    Attributes:
        wrapper: C++ of the model class and the AOTI container's C entry points.
        kernels: C++ of the generated kernels; empty if the graph has none.
        constants: every tensor that the program reads from outside, by fully qualified name.
        isa: the vector instruction set that Inductor really used, as it recorded it; "" for
            scalar code.
        calls: the calls of operators without a C interface, as Inductor wrote them; "" if there
            are none.
        assumed: conditions on the graph's sizes (sympy) that Inductor took for given while it
            generated; its code may be wrong where one of them doesn't hold.
        overflows: whether integers of the kernels may leave their type's range, where torch's wrap.
    """

    wrapper: str
    kernels: str
    constants: Mapping[str, Tensor]
    isa: str
    calls: str = ""
    assumed: tuple[Any, ...] = ()
    overflows: bool = False


def generate_cpp(
    gm: GraphModule,
    kwargs: Mapping[str, Tensor],
    variant: VariantSpec,
    *,
    shared: Container[str] = (),
) -> GeneratedCpp:
    """Generates C++ for a lowered graph; the caller holds :data:`GENERATING`.

    Args:
        gm: an exported program's module after :func:`~edgecompile.backends.cpu.lowering.lower.lower_graph`.
        kwargs: example inputs by name.
        variant: the variant that the code will be compiled for.
        shared: names of constants that mean the same tensor in every program of the model. Any
            other (lifted or folded by the compiler, and perhaps different from program to
            program) is renamed after its content.

    Raises:
        CompileError: Inductor failed, caused by what it raised (:mod:`~edgecompile.backends.inductor.failures`), fixed a
            size that varies, or did not vectorise for the instruction set asked for.
    """
    isa = vector_isa(variant.arch, variant.simdlen)
    sizes = varying_sizes(gm)
    environment = next((size.node.shape_env for size, _ in sizes), None)
    assume_no_ones(sizes)
    # Inductor narrows the ranges around the hint wherever it compares sizes, but the code runs beyond them as well.
    served = {} if environment is None else dict(environment.var_to_range)
    guard_count = 0 if environment is None else len(environment.guards)
    cxx = find_toolchain(variant.arch).cxx
    with (
        forced_isa(isa),
        unprobed_isa(),
        ordered_sums(),
        exact_sums(served),
        sums_of_one_thread(),
        ordered_writes(),
        strides_read(),
        temporary_folder() as folder,
        # A shared cache can hand back C++ of another instruction set.
        patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder),
        sizes_interpolated(),
        conditions_compared(),
        overflow_heeded(served) as overflows,
        torch.no_grad(),
    ):
        try:
            files: Any = torch._inductor.aot_compile(
                gm, (), dict(kwargs), options=_options(gm, variant, cxx)
            )
        except Exception as error:
            raise generation_failed(error) from error
        paths = [Path(item).resolve() for item in files if isinstance(item, str)]
        code = only_file(paths, ".wrapper.cpp").read_text()
        metadata = json.loads(only_file(paths, ".wrapper_metadata.json").read_text())
        calls = [path.read_text() for path in paths if path.name.endswith(".wrapper.json")]
    new = [] if environment is None else environment.guards[guard_count:]
    refuse_fixed(sizes, new)
    tables = [item for item in files if not isinstance(item, str)]
    constants = {name: pair[0].detach() for table in tables for name, pair in table.items()}
    used = str(metadata.get("AOTI_CPU_ISA", ""))
    if used != str(isa).upper():
        raise CompileError(
            f"Inductor generated code for '{used}' instead of {type(isa).__name__}",
            hint="this is a defect of edgecompile with this version of torch; please report it",
        )
    wrapper, kernels = split_source(code)
    wrapper, constants = name_by_content(wrapper, constants, shared)
    # Whether an instance is true is a compiler run of torch's, in a folder of its own.
    vectorised = not isinstance(isa, cpu_vec_isa.InvalidVecISA)
    return GeneratedCpp(
        wrapper,
        kernels,
        constants,
        used if vectorised else "",
        "".join(calls),
        assumed=tuple(guard.expr for guard in new),
        overflows=bool(overflows),
    )


def _options(gm: GraphModule, variant: VariantSpec, cxx: str) -> dict[str, Any]:
    # Inductor writes short sums out, but not those of a single row, which then come in another order: a run of
    # several tokens wouldn't be equal to runs of single ones.
    generates = any(node.target in ops.OF_TEXTS for node in gm.graph.nodes)
    return {
        **({"unroll_reductions_threshold": 1} if generates else {}),
        "aot_inductor.package": True,
        "aot_inductor.package_cpp_only": True,
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.package_constants_on_disk_format": "pickle_weights",
        "aot_inductor.link_libtorch": False,
        "aot_inductor.enable_line_tables": False,
        "aot_inductor.enable_frame_pointer": False,
        "aot_inductor.precompile_headers": False,
        "aot_inductor.custom_ops_to_c_shims": ops.C_SHIMS,
        "cpp_cache_precompile_headers": False,
        # Half precision is rounded where torch rounds it, instead of once at a kernel's end.
        "emulate_precision_casts": True,
        # Without this Inductor's probe library fails to link and it falls back to scalar code.
        "cpp.vec_isa_ok": True,
        # Inductor assembles an empty constants section, which isn't used, but must succeed.
        "cpp.cxx": (None, cxx),
        "cpp.march": variant.march,
        "cpp.simdlen": variant.simdlen,
        # Team sizes are asked for at run time instead of being baked in.
        "cpp.dynamic_threads": True,
        # How many Inductor divides loops for: elsewhere torch's own number, so code would depend on the
        # build host, and where that is one, all threads of a team do what only one of them may.
        "cpp.threads": 2,
    }


def generation_failed(error: Exception) -> CompileError:
    """The error for an exception of Inductor."""
    failure = read_failure(error)
    at = "" if failure.place is None else f" (at {failure.place})"
    cure = f"{failure.cure}; " if failure.cure else ""
    return CompileError(
        f"torch's Inductor could not generate code: {failure.text}{at}",
        hint=f"{cure}`__cause__` shows torch's own traceback",
    )
