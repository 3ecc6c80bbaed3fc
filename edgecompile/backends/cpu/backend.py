"""The CPU backend: AOTInductor's C++ compiled and linked against our runtime, without libtorch."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch.fx import GraphModule

from edgecompile.backends.artifact import Artifact, TensorStore, hinted_sizes
from edgecompile.backends.cpu.lowering.lower import lower_graph
from edgecompile.backends.inductor.compat.generation import GENERATING, GeneratedCpp, generate_cpp
from edgecompile.backends.inductor.missing_kernels import (
    dtypes_of_nodes,
    missing_kernels_error,
    modules_of_nodes,
    refuse_missing_kernels,
)
from edgecompile.backends.inductor.source import (
    KERNEL_INCLUDES,
    computes_in_vectors,
    split_interface,
    sum_serially,
)
from edgecompile.backends.lowering.constants import PACKED_PREFIX
from edgecompile.buckets.ranges import Bucket
from edgecompile.export.conditions import unlike_sizes
from edgecompile.export.program import ExportedModel
from edgecompile.files import file_sha256
from edgecompile.installation import installation_id
from edgecompile.precision import FP32, Precision
from edgecompile.targets.profile import VariantSpec
from edgecompile.toolchain.compilers import (
    BuiltObject,
    Toolchain,
    compile_object,
    find_toolchain,
    link_shared,
    old_libc,
    rename_symbols,
    undefined_symbols,
)
from edgecompile.toolchain.includes import Includes
from edgecompile.toolchain.native import (
    BASELINE_MARCH,
    NativeRuntime,
    headers_id,
    native_sources,
)

_DEFINES = (
    "-DTORCH_INDUCTOR_CPP_WRAPPER",
    "-DSTANDALONE_TORCH_HEADER",
    "-DC10_USING_CUSTOM_GENERATED_MACROS",
)

#: With this, torch's NEON headers call vector functions by Sleef's names instead of the C library's
#: for each element.
_KERNEL_DEFINES = {"aarch64": ("-DAT_BUILD_ARM_VEC256_WITH_SLEEF",)}

#: What Inductor compiles its own code with, as far as it bears on results: no reassociation, no
#: contraction (the kernels call fma explicitly), no assumption about NaN or infinity.
_KERNEL_FLAGS = (
    "-std=c++20",
    "-O3",
    "-fopenmp",
    "-fno-trapping-math",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-Wno-psabi",
    # The texts of failed checks are then the conditions themselves: without this, and without
    # hiding <iostream>, libstdc++'s streams and locales make up most of a model library.
    "-DSTRIP_ERROR_MESSAGES",
    "-D_GLIBCXX_IOSTREAM=1",
)

#: Loops that Inductor wrote with vectors gain nothing from the compiler's own vectorizer, which only
#: blows up their tails. Scalar code (SSE) is left to it.
_VECTOR_FLAGS = ("-fno-tree-loop-vectorize",)

#: The wrapper is cold: it only calls kernels. -O1 compiles it in half the time of -O3, and built
#: for the baseline one object serves every variant of an architecture. So does the C interface, for
#: every program.
_WRAPPER_FLAGS = ("-std=c++20", "-O1", "-ffunction-sections", "-Wno-psabi")

_SLIM = '#include "generated/slim_streams.h"\n'

#: What Inductor's files begin with, in the same order, for precompiled headers.
_WRAPPER_INCLUDES = _SLIM + "".join(
    f"#include <torch/csrc/inductor/{name}.h>\n"
    for name in ("aoti_include/cpu", "aoti_runtime/interface", "aoti_runtime/model_container")
)
_INCLUDES = {
    "interface.cpp": _WRAPPER_INCLUDES,
    "wrapper.cpp": _WRAPPER_INCLUDES,
    "kernels.cpp": KERNEL_INCLUDES,
}

#: libm's hypot and fmod are among them as a host with glibc 2.35 or 2.38 would bind them to that version.
FOREIGN = re.compile(r"^(aoti_torch_|Sleef_|GOMP_|omp_|(hypot|fmod)f?$)")


#: Those of the container's functions that the runtime calls: what only others need is left out.
_EXPORTS = (
    "AOTInductorGetLastError",
    *(
        f"AOTInductorModelContainer{name}"
        for name in (
            "CreateWithDevice", "Delete", "Run", "RunSingleThreaded", "GetNum*", "GetOutputName", "GetConstant*",
            "UpdateUserManagedConstantBufferPairs",
        )
    ),
)  # fmt: skip


@dataclass(frozen=True)
class ProgramTask:
    """A program to compile.

    Attributes:
        exported: the program for the bucket's range (static for a padded bucket).
        bucket: its hint is the size that kernels are tuned for.
        variant: instruction set.
        native: the runtime library to link against; None: torch's.
        output: path of the library.
        store: the store of the program's constants.
        index: the bucket's number in the plan.
        precision: the data type of the linear layers' weights.
        export_key: identifies ``exported``.
        padded: whether it is run on padded inputs, though the bucket itself pads none.
    """

    exported: ExportedModel
    bucket: Bucket
    variant: VariantSpec
    native: NativeRuntime | None
    output: Path
    store: TensorStore
    index: int = 0
    precision: Precision = FP32
    export_key: str = ""
    padded: bool = False

    @cached_property
    def key(self) -> str:
        """Identifies everything that shapes the library but for the compiler."""
        parts = [
            self.export_key,
            self.bucket.program_json(),
            self.variant.to_json(),
            self.precision.to_json(),
            "padded" if self.pads else "",
            "torch" if self.native is None else self.native.sha256,
            installation_id(),
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def pads(self) -> bool:
        """Whether it is run on padded inputs."""
        return self.padded or self.bucket.mode == "pad"

    @property
    def compiler(self) -> tuple[str, str]:
        """The path and version of the compiler on this machine.

        Raises:
            ToolchainError: there is none.
        """
        toolchain = find_toolchain(self.variant.arch)
        return toolchain.cxx, toolchain.version

    def find(self, *, any_compiler: bool = False) -> Artifact | None:
        """The program that an earlier process left, if nothing that shapes it has changed.

        Args:
            any_compiler: take it whichever compiler made it. A host that packs may have none.
        """
        found = Artifact.find(self.output, self.key, self.store)
        return found if any_compiler or (found and found.compiler == self.compiler) else None


class InductorCpuBackend:
    """Compiles exported programs to shared libraries that need only our runtime library."""

    def compile_program(self, task: ProgramTask) -> Artifact:
        """Builds a library; its path with the suffix ``.json`` describes it.

        Raises:
            CompileError: code generation, compiling or linking failed.
            MissingKernelError: the program calls what the runtime lacks; lists all of it.
        """
        exported, variant, native, output = task.exported, task.variant, task.native, task.output
        seconds: dict[str, float] = {}
        toolchain = find_toolchain(variant.arch)
        with _timed(seconds, "generate"), GENERATING:
            module = exported.program.module()
            signature = exported.program.graph_signature
            own = {*signature.parameters, *signature.buffers}
            report = self.lower(module, task.precision, task.pads)
            modules, dtypes = modules_of_nodes(module), dtypes_of_nodes(module)
            packed = {n for n, _ in module.named_buffers() if n.startswith(PACKED_PREFIX)}
            # A padded bucket's program is static, so its ranges decide and the hint doesn't matter.
            ranges = exported.ranges
            sizes = hinted_sizes(task.bucket, ranges)
            example = exported.example(sizes)
            generated = generate_cpp(module, example, variant, shared=own | packed)
            if any(spec.in_place for spec in exported.inputs):
                # Of programs that write a text's caches sums are of single tokens, and short: the text
                # keeps its bits on any number of threads.
                generated = replace(generated, kernels=sum_serially(generated.kernels))
        if native is not None:
            refuse_missing_kernels(generated.wrapper, modules, native.exports, dtypes)
        with _timed(seconds, "compile"):
            objects = _compile_objects(toolchain, generated, variant, self.support(generated))
        with _timed(seconds, "link"):
            output.parent.mkdir(parents=True, exist_ok=True)
            self.link(toolchain, objects, native, output)
        constants = generated.constants.items()
        artifact = Artifact(
            key=task.key,
            compiler=task.compiler,
            bucket=task.index,
            variant=variant.name,
            library=output,
            sha256=file_sha256(output),
            isa=generated.isa,
            vectorised=computes_in_vectors(generated.kernels),
            constants={name: task.store.add(item) for name, item in constants},
            seconds=seconds,
            commands=tuple(sorted({" ".join(o.command) for o in objects})),
            lowering=report,
            kinds=tuple(
                unlike_sizes(
                    module, generated.assumed, exported.inputs, ranges, sizes, exported.residue
                )
            ),
        )
        artifact.save()
        return artifact

    def lower(self, module: GraphModule, precision: Precision, padded: bool) -> dict[str, object]:
        """Rewrites the graph to the runtime's operators; returns what was rewritten.

        Args:
            module: the graph.
            precision: the data type of the linear layers' weights.
            padded: whether it is run on padded inputs.
        """
        return vars(lower_graph(module, precision, padded=padded))

    def support(self, generated: GeneratedCpp) -> bytes:
        """C++ that is linked into every program."""
        return (native_sources() / "generated" / "support.cpp").read_bytes()

    def link(
        self,
        toolchain: Toolchain,
        objects: Sequence[BuiltObject],
        native: NativeRuntime | None,
        output: Path,
    ) -> None:
        """Links a program at ``output``, with every call pointed to the runtime's symbols.

        The runtime exports ``ec_X`` for each ``X`` that generated code calls. Renaming at this point
        means that torch, libgomp or Sleef in the same process can never be called instead.

        Raises:
            MissingKernelError: it calls what the runtime library lacks; lists all of it.
        """
        assert native is not None
        foreign = set(filter(FOREIGN.match, called_symbols(toolchain, objects)))
        missing = sorted(s for s in foreign if f"ec_{s}" not in native.exports)
        if missing:
            raise missing_kernels_error(dict.fromkeys(missing, ()), {})
        link_renamed(toolchain, objects, foreign, output, native.path)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start


def torch_include_dirs() -> tuple[Path, ...]:
    """torch's header directories on the build host."""
    root = Path(torch.__file__).parent / "include"
    return (root, root / "torch" / "csrc" / "api" / "include")


def generated_headers_id(source: bytes, before: Sequence[Path] = ()) -> str:
    """Identifies the headers that generated code includes: torch's, and ours.

    torch's headers include others by names for which there are headers of ours. Those count in any case.

    Args:
        source: the code.
        before: folders of ours that come before torch's, beside that of the C library.
    """
    ours = [headers_id(folder) for folder in (old_libc(), *before)]
    ours.append(Includes((native_sources(),)).identify(source))
    return f"torch {torch.__version__}, native {' '.join(ours)}"


def _compile_objects(
    toolchain: Toolchain, generated: GeneratedCpp, variant: VariantSpec, support: bytes
) -> list[BuiltObject]:
    # Our own sleef.h stands before torch's, which is for x86-64 only.
    own = native_sources() / "generated" / variant.arch
    first = (own,) if own.is_dir() else ()
    include_dirs = (*first, *torch_include_dirs(), native_sources())
    wrapper_flags = (
        *_WRAPPER_FLAGS,
        *_DEFINES,
        f"-march={BASELINE_MARCH[variant.arch]}",
        *_capability("DEFAULT"),
    )
    interface, model = split_interface(generated.wrapper)
    units: list[tuple[str, bytes, tuple[str, ...]]] = [
        ("wrapper.cpp", (_SLIM + model).encode(), wrapper_flags),
        ("interface.cpp", (_SLIM + interface).encode(), wrapper_flags),
        # What belongs to every model library: the throwing check, the empty constants section.
        ("support.cpp", support, ("-std=c++20", "-O1")),
    ]
    if generated.kernels:
        flags = (
            *_KERNEL_FLAGS,
            *(_VECTOR_FLAGS if generated.isa else ()),
            *(("-fwrapv",) if generated.overflows else ()),
            *_DEFINES,
            *_KERNEL_DEFINES.get(variant.arch, ()),
            f"-march={variant.march}",
            *_capability(variant.cpu_capability),
            *variant.extra_flags,
        )
        units.append(("kernels.cpp", generated.kernels.encode(), flags))

    def build(unit: tuple[str, bytes, tuple[str, ...]]) -> BuiltObject:
        name, source, flags = unit
        includes = _INCLUDES.get(name, "")
        return compile_object(
            toolchain,
            source,
            name=name,
            flags=flags,
            include_dirs=include_dirs,
            headers_id=generated_headers_id(source, first),
            precompiled=includes,
            precompiled_id=generated_headers_id(includes.encode(), first),
        )

    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(build, units))


def _capability(name: str) -> tuple[str, str]:
    return f"-DCPU_CAPABILITY={name}", f"-DCPU_CAPABILITY_{name}"


def called_symbols(toolchain: Toolchain, objects: Sequence[BuiltObject]) -> set[str]:
    """The symbols that some objects want from outside."""
    return {s for built in objects for s in undefined_symbols(toolchain, built.path)}


def link_renamed(
    toolchain: Toolchain,
    objects: Sequence[BuiltObject],
    renamed: Collection[str],
    output: Path,
    library: Path,
    exports: Sequence[str] = _EXPORTS,
) -> None:
    """Links objects at ``output`` that call ``ec_X`` of ``library`` for each ``X`` in ``renamed``."""
    with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as folder:
        copies = [Path(folder) / f"{number}.o" for number in range(len(objects))]
        table = {symbol: f"ec_{symbol}" for symbol in renamed}
        for built, copy in zip(objects, copies, strict=True):
            rename_symbols(toolchain, built.path, copy, table)
        link_shared(
            toolchain, copies, output, exports=exports, soname=output.name, libraries=[library]
        )
