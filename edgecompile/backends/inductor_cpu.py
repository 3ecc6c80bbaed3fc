"""The CPU backend: AOTInductor's C++ compiled and linked against our runtime, without libtorch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.fx import GraphModule

from edgecompile.backends.artifact import Artifact, StoredTensor, TensorStore
from edgecompile.backends.generated import computes_in_vectors
from edgecompile.backends.inductor_compat import GENERATING, GeneratedCpp, generate_cpp
from edgecompile.backends.lowering.constants import PACKED_PREFIX
from edgecompile.backends.lowering.lower import LoweringReport, lower_graph
from edgecompile.backends.missing_kernels import (
    missing_symbols_error,
    modules_of_nodes,
    refuse_missing_kernels,
)
from edgecompile.buckets.plan import Bucket
from edgecompile.errors import CompileError
from edgecompile.export.conditions import unlike_sizes
from edgecompile.export.export import ExportedModel
from edgecompile.files import file_sha256
from edgecompile.installation import installation_id
from edgecompile.precision import FP32, Precision
from edgecompile.progress import NULL_STEP, StepHandle
from edgecompile.targets.profile import VariantSpec
from edgecompile.toolchain.compilers import (
    BuiltObject,
    Toolchain,
    compile_object,
    find_toolchain,
    link_shared,
    rename_symbols,
    undefined_symbols,
)
from edgecompile.toolchain.native import (
    BASELINE_MARCH,
    NativeRuntime,
    native_headers_id,
    native_sources,
)

_DEFINES = (
    "-DTORCH_INDUCTOR_CPP_WRAPPER",
    "-DSTANDALONE_TORCH_HEADER",
    "-DC10_USING_CUSTOM_GENERATED_MACROS",
)

#: With this, torch's NEON headers call vector functions by Sleef's names instead of the C library's
#: for each element.
_KERNEL_DEFINES: dict[str, tuple[str, ...]] = {
    "x86-64": (),
    "aarch64": ("-DAT_BUILD_ARM_VEC256_WITH_SLEEF",),
}

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
_LOOP_FLAGS: dict[bool, tuple[str, ...]] = {True: ("-fno-tree-loop-vectorize",), False: ()}

#: The wrapper is cold: it only calls kernels. -O1 compiles it in half the time of -O3, and built
#: for the baseline one object serves every variant of an architecture.
_WRAPPER_FLAGS = ("-std=c++20", "-O1", "-ffunction-sections", "-Wno-psabi")

_SLIM = '#include "generated/slim_streams.h"\n'

#: What Inductor's files begin with, in the same order, for precompiled headers.
_INCLUDES = {
    "wrapper.cpp": _SLIM
    + "".join(
        f"#include <torch/csrc/inductor/{name}.h>\n"
        for name in ("aoti_include/cpu", "aoti_runtime/interface", "aoti_runtime/model_container")
    ),
    "kernels.cpp": "#include <torch/csrc/inductor/cpp_prefix.h>\n",
}

#: libm's hypot is among them as a host with glibc 2.35 or newer would bind it to that version.
FOREIGN = re.compile(r"^(aoti_torch_|Sleef_|GOMP_|omp_|hypotf?$)")


class InductorCpuBackend:
    """Compiles exported programs to shared libraries that need only our runtime library."""

    name = "aoti-cpu"

    def compile_program(
        self,
        exported: ExportedModel,
        bucket: Bucket,
        variant: VariantSpec,
        native: NativeRuntime | None,
        output: Path,
        *,
        scratch: Path,
        store: TensorStore,
        index: int = 0,
        export_key: str | None = None,
        precision: Precision = FP32,
        step: StepHandle = NULL_STEP,
    ) -> Artifact:
        """Builds the library of ``bucket`` for ``variant`` at ``output``.

        Args:
            exported: the program for the bucket's range (static for a padded bucket).
            bucket: its hint is the size that kernels are tuned for.
            variant: instruction set.
            native: the runtime library to link against.
            output: path of the library; ``output`` with suffix ``.json`` describes it.
            scratch: folder for Inductor's files; one for each variant.
            store: where the program's constants are put.
            index: the bucket's number in the plan.
            export_key: identifies ``exported``; an artifact that an earlier call left at
                ``output`` for the same key, precision, variant, runtime and versions is returned
                as it is.
            precision: of the linears' weights.
            step: told what is being done.

        Raises:
            CompileError: code generation, compiling or linking failed.
            MissingKernelError: the program calls what the runtime lacks; lists all of it.
        """
        key = artifact_key(export_key or uuid.uuid4().hex, bucket, variant, native, precision)
        known = _reusable(output, key, store)
        if known is not None:
            return known
        seconds: dict[str, float] = {}
        toolchain = find_toolchain(variant.arch)
        start = time.perf_counter()
        with GENERATING:
            module = exported.program.module()
            signature = exported.program.graph_signature
            own = {*signature.parameters, *signature.buffers}
            report = self.lower(module, precision)
            modules = modules_of_nodes(module)
            packed = {n for n, _ in module.named_buffers() if n.startswith(PACKED_PREFIX)}
            # A padded bucket's program is static, so its ranges decide and the hint doesn't matter.
            ranges = exported.ranges
            sizes = {
                name: min(max(e.hint, ranges[name][0]), ranges[name][1])
                for name, e in bucket.axes
                if name in ranges
            }
            example = exported.example(sizes)
            generated = generate_cpp(
                module,
                example,
                arch=variant.arch,
                march=variant.march,
                simdlen=variant.simdlen,
                cache_dir=scratch,
                shared=own | packed,
                cxx=toolchain.cxx,
            )
        seconds["generate"] = time.perf_counter() - start
        if native is not None:
            refuse_missing_kernels(generated.wrapper, modules, native.exports)
        step.update(text=f"bucket {index}, {variant.name}: compiling")
        start = time.perf_counter()
        objects = _compile_objects(toolchain, generated, variant, self.support(generated))
        seconds["compile"] = time.perf_counter() - start
        start = time.perf_counter()
        output.parent.mkdir(parents=True, exist_ok=True)
        self.link(toolchain, objects, generated, native, output)
        seconds["link"] = time.perf_counter() - start
        constants: dict[str, StoredTensor] = {
            name: store.add(tensor) for name, tensor in generated.constants.items()
        }
        artifact = Artifact(
            key=key,
            bucket=index,
            variant=variant.name,
            library=output,
            sha256=file_sha256(output),
            isa=generated.isa,
            vectorised=computes_in_vectors(generated.kernels),
            constants=constants,
            seconds=seconds,
            commands=tuple(sorted({" ".join(o.command) for o in objects})),
            lowering=report,
            kinds=tuple(unlike_sizes(module, generated.assumed, exported.inputs, ranges, sizes)),
        )
        artifact.save()
        return artifact

    def lower(self, module: GraphModule, precision: Precision) -> dict[str, object]:
        """Rewrites the graph to the runtime's operators; returns what was rewritten."""
        return _report_json(lower_graph(module, precision))

    def support(self, generated: GeneratedCpp) -> bytes:
        """C++ that is linked into every program."""
        return _support_source()

    def link(
        self,
        toolchain: Toolchain,
        objects: list[BuiltObject],
        generated: GeneratedCpp,
        native: NativeRuntime | None,
        output: Path,
    ) -> None:
        """Links a program at ``output``.

        Raises:
            MissingKernelError: it calls what the runtime library lacks; lists all of it.
        """
        assert native is not None
        _link(toolchain, objects, native, output)


def _report_json(report: LoweringReport) -> dict[str, object]:
    return dataclasses.asdict(report)


def artifact_key(
    export_key: str,
    bucket: Bucket,
    variant: VariantSpec,
    native: NativeRuntime | None,
    precision: Precision = FP32,
) -> str:
    """Identifies everything that shapes a model library."""
    toolchain = find_toolchain(variant.arch)
    parts = [
        export_key,
        bucket.program_json(),
        variant.to_json(),
        precision.to_json(),
        "torch" if native is None else native.sha256,
        [toolchain.cxx, toolchain.version],
        installation_id(),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _reusable(output: Path, key: str, store: TensorStore) -> Artifact | None:
    """The artifact at ``output`` if it has this key and is whole."""
    description = output.with_suffix(".json")
    if not description.is_file():
        return None
    try:
        artifact = Artifact.load(description)
    except CompileError:
        return None
    whole = all(store.path(t).is_file() for t in artifact.constants.values())
    return artifact if artifact.key == key and whole else None


def torch_include_dirs() -> tuple[Path, ...]:
    """torch's header directories on the build host."""
    root = Path(torch.__file__).parent / "include"
    return (root, root / "torch" / "csrc" / "api" / "include")


def _support_source() -> bytes:
    return (native_sources() / "generated" / "support.cpp").read_bytes()


def _compile_objects(
    toolchain: Toolchain, generated: GeneratedCpp, variant: VariantSpec, support: bytes
) -> list[BuiltObject]:
    # Our own sleef.h stands before torch's, which is for x86-64 only.
    own = native_sources() / "generated" / variant.arch
    first = (own,) if own.is_dir() else ()
    include_dirs = (*first, *torch_include_dirs(), native_sources())
    headers_id = f"torch {torch.__version__}, native {native_headers_id()}"
    capability = variant.cpu_capability
    units = [
        (
            "wrapper.cpp",
            _SLIM.encode() + generated.wrapper.encode(),
            (
                *_WRAPPER_FLAGS,
                *_DEFINES,
                f"-march={BASELINE_MARCH[variant.arch]}",
                "-DCPU_CAPABILITY=DEFAULT",
                "-DCPU_CAPABILITY_DEFAULT",
            ),
        ),
        # What belongs to every model library: the throwing check, the empty constants section.
        ("support.cpp", support, ("-std=c++20", "-O1")),
    ]
    if generated.kernels:
        flags = (
            *_KERNEL_FLAGS,
            *_LOOP_FLAGS[bool(generated.isa)],
            *(("-fwrapv",) if generated.overflows else ()),
            *_DEFINES,
            *_KERNEL_DEFINES[variant.arch],
            f"-march={variant.march}",
            f"-DCPU_CAPABILITY={capability}",
            f"-DCPU_CAPABILITY_{capability}",
            *variant.extra_flags,
        )
        units.append(("kernels.cpp", generated.kernels.encode(), flags))

    def build(unit: tuple[str, bytes, tuple[str, ...]]) -> BuiltObject:
        name, source, flags = unit
        return compile_object(
            toolchain,
            source,
            name=name,
            flags=flags,
            include_dirs=include_dirs,
            headers_id=headers_id,
            precompiled=_INCLUDES.get(name, ""),
        )

    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(build, units))


def _link(
    toolchain: Toolchain,
    objects: list[BuiltObject],
    native: NativeRuntime,
    output: Path,
) -> None:
    """Points every call to the runtime's symbols and links.

    The runtime exports ``ec_X`` for each ``X`` that generated code calls. Renaming at this point
    means that torch, libgomp or Sleef in the same process can never be called instead.
    """
    needed = {o.path: undefined_symbols(toolchain, o.path) for o in objects}
    foreign = {s for symbols in needed.values() for s in symbols if FOREIGN.match(s)}
    missing = sorted(s for s in foreign if f"ec_{s}" not in native.exports)
    if missing:
        raise missing_symbols_error(missing)
    renamed: list[Path] = []
    try:
        for number, built in enumerate(objects):
            table = {s: f"ec_{s}" for s in needed[built.path] if s in foreign}
            target = output.with_name(f"{output.name}.{number}.o")
            rename_symbols(toolchain, built.path, target, table)
            renamed.append(target)
        link_shared(
            toolchain,
            renamed,
            output,
            exports=["AOTInductor*"],
            soname=output.name,
            libraries=[native.path],
        )
    finally:
        for path in renamed:
            path.unlink(missing_ok=True)
