"""The private parts of torch that edgecompile relies on; fails loudly when torch changes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
import sympy  # type: ignore[import-untyped]
import torch
import torch._inductor.cpu_vec_isa as cpu_vec_isa
from torch import Tensor, nn
from torch._decomp import get_decompositions
from torch._inductor import fx_utils
from torch._inductor.codegen import cpp
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from edgecompile.backends.cpu.lowering.lower import lower_graph
from edgecompile.backends.inductor.compat.generation import GeneratedCpp, generate_cpp
from edgecompile.backends.inductor.compat.indices import strides_read
from edgecompile.backends.inductor.compat.instruction_sets import vector_isa
from edgecompile.backends.inductor.compat.sizes import conditions_compared, sizes_interpolated
from edgecompile.backends.inductor.source import (
    computes_in_vectors,
    split_interface,
    split_source,
    sum_serially,
)
from edgecompile.backends.inductor.strides import moving_terms, read_stride
from edgecompile.errors import CompileError
from edgecompile.targets.profile import VariantSpec, load_variant


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.f = nn.Linear(16, 32)
        self.register_buffer("shift", torch.arange(32.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(torch.exp(self.f(x)) + self.shift, -1)


class Sums(nn.Module):
    """What threads add up, and what one of them makes of the sum in its place."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = torch.exp(x)
        return y.sum(), x.norm(), (x * y).sum(0)


class OneRow(nn.Module):
    """A short sum of which there is only one."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:1].square().mean(-1)


class TimesOne(nn.Module):
    """A linear layer and what the C++ compiler drops."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Linear(16, 32)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.f(x) * 1.0 / 1.0
        return result


SHARED = ("ecpack_f_weight", "f.bias", "shift")


needs_aarch64 = pytest.mark.usefixtures("aarch64_compiler")


def generated(
    march: str,
    simdlen: int,
    shared: tuple[str, ...] = SHARED,
    *,
    arch: str = "x86-64",
    kind: type[nn.Module] = Small,
) -> GeneratedCpp:
    dim = torch.export.Dim("length", min=1, max=64)
    example = {"x": torch.randn(9, 16)}
    program = torch.export.export(
        kind().eval(), (), example, dynamic_shapes={"x": {0: dim}}, strict=False
    )
    graph = program.module()
    lower_graph(graph)
    return generate_cpp(
        graph,
        example,
        VariantSpec(march, arch, march, simdlen, "DEFAULT", (), 0),
        shared=shared,
    )


@pytest.mark.parametrize(
    ("march", "simdlen", "isa", "register"),
    [("x86-64-v3", 256, "AVX2", "8"), ("x86-64-v4", 512, "AVX512", "16")],
)
def test_generated_code_is_for_the_variant_asked_for(
    march: str, simdlen: int, isa: str, register: str
) -> None:
    result = generated(march, simdlen)
    assert result.isa == isa
    # Kernels step by the vector's width, which proves that they aren't scalar.
    assert f"static_cast<int64_t>({register}" in result.kernels
    assert "at::vec::Vectorized<float>" in result.kernels


def test_folders_with_spaces_make_the_same_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch doesn't quote the paths in its compiler commands."""
    plain = generated("x86-64-v3", 256)
    temporary = tmp_path / "it's a folder"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    result = generated("x86-64-v3", 256)
    assert (result.wrapper, result.kernels) == (plain.wrapper, plain.kernels)
    assert list(temporary.iterdir()) == []
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(CompileError, match="spaces or quotes") as caught:
        generated("x86-64-v3", 256)
    assert "TMPDIR" in str(caught.value.hint)


def test_code_is_the_same_however_many_threads_torch_has() -> None:
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 16):
            torch.set_num_threads(threads)
            found.append(generated("x86-64-v3", 256, (), kind=Sums))
    finally:
        torch.set_num_threads(before)
    assert all(code.kernels == found[0].kernels for code in found)
    # The root of the sum, in the sum's place: once, whatever the number of the team's threads.
    assert "#pragma omp single" in found[0].kernels


def test_a_short_sum_is_one_threads() -> None:
    """As in a program for several rows, and however many threads there are."""
    assert "omp_get_max_threads" in generated("x86-64-v3", 256, (), kind=Sums).kernels
    assert "omp_get_max_threads" not in generated("x86-64-v3", 256, (), kind=OneRow).kernels


@needs_aarch64
def test_code_for_another_architecture() -> None:
    result = generated("armv8-a", 128, arch="aarch64")
    assert result.isa == "ASIMD"
    assert "static_cast<int64_t>(4" in result.kernels
    assert "at::vec::Vectorized<float>" in result.kernels
    assert computes_in_vectors(result.kernels)


def test_a_product_with_one_is_no_arithmetic_to_look_for() -> None:
    result = generated("x86-64-v3", 256, ("ecpack_f_weight", "f.bias"), kind=TimesOne)
    assert not computes_in_vectors(result.kernels)  # since torch 2.14 nothing is left of it
    kernel = """extern "C"  void cpp_fused_0()
        auto tmp0 = at::vec::Vectorized<float>::loadu(in_out_ptr0 + x0, 8);
        auto tmp1 = static_cast<float>(1.0);
        auto tmp2 = at::vec::Vectorized<float>(tmp1);
        auto tmp3 = tmp0 * tmp2;
    """
    assert not computes_in_vectors(kernel)
    assert computes_in_vectors(kernel.replace("<float>(1.0)", "<float>(1.5)"))


def test_sse_gets_scalar_code_and_says_so() -> None:
    before = cpu_vec_isa.valid_vec_isa_list
    result = generated("x86-64-v2", 128)
    assert cpu_vec_isa.valid_vec_isa_list is before
    assert result.isa == ""
    assert "ec::one_exp" in result.kernels
    assert not computes_in_vectors(result.kernels)


def test_linears_are_direct_calls_and_constants_are_complete() -> None:
    result = generated("x86-64-v3", 256)
    assert "aoti_torch_cpu_ec_linear(" in result.wrapper
    assert "proxy_executor_call_function(" not in result.wrapper
    assert set(result.constants) == {"ecpack_f_weight", "f.bias", "shift"}
    assert torch.equal(result.constants["shift"], torch.arange(32.0))
    for name in result.constants:
        assert f'"{name}"' in result.wrapper, "the container can't be asked for this name"


def test_constants_of_one_program_are_named_by_their_content() -> None:
    result = generated("x86-64-v3", 256, shared=("ecpack_f_weight", "f.bias"))
    (fresh,) = set(result.constants) - {"ecpack_f_weight", "f.bias"}
    assert fresh.startswith("shift.")
    assert f'.original_fqn = "{fresh}"' in result.wrapper
    assert '.original_fqn = "shift"' not in result.wrapper


def test_no_path_of_the_build_machine_is_in_the_code(tmp_path: Path) -> None:
    result = generated("x86-64-v3", 256)
    assert str(tmp_path) not in result.wrapper + result.kernels
    assert "omp_get_max_threads" not in result.wrapper


def test_no_compiler_is_asked_whether_it_knows_the_instruction_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch's way takes seconds, and leaves a folder beside the other temporary files."""

    def ask(self: cpu_vec_isa.VecISA, code: str) -> bool:
        raise AssertionError("a compiler was asked")

    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", ask)
    # What was asked before is kept by class.
    monkeypatch.setattr(cpu_vec_isa.VecAVX2, "__hash__", lambda self: 7)
    assert generated("x86-64-v3", 256).isa == "AVX2"


def test_the_instruction_set_is_restored() -> None:
    before = cpu_vec_isa.valid_vec_isa_list
    generated("x86-64-v4", 512)
    assert cpu_vec_isa.valid_vec_isa_list is before


def test_unknown_widths_are_refused() -> None:
    with pytest.raises(CompileError, match="no 1024-bit vector code"):
        vector_isa("x86-64", 1024)


def test_model_code_behind_kernels_is_refused() -> None:
    marker = "#include <torch/csrc/inductor/cpp_prefix.h>\n"
    wrapper, kernels = split_source("a\n" + marker + "b\n// Compile cmd\n/x")
    assert wrapper == "a\n"
    assert kernels.startswith(marker) and kernels.endswith("\nb\n")
    assert split_source("only a wrapper") == ("only a wrapper\n", "")
    with pytest.raises(CompileError, match="model code after its kernels"):
        split_source("a\n" + marker + "class AOTInductorModel")


def test_the_interface_is_split_off_and_the_same_for_every_model() -> None:
    one, other = (
        split_interface(generated(*wanted).wrapper)
        for wanted in (("x86-64-v3", 256), ("x86-64-v4", 512, ()))
    )
    assert one[0] == other[0] and one[1] != other[1]
    for name in ("ModelContainerCreate(", "GetLastError(\n"):
        assert name in one[0] and name not in one[1]
    assert "AOTInductorModel::run_impl(" in one[1] and "::run_impl(" not in one[0]
    with pytest.raises(CompileError, match="doesn't begin with the C interface"):
        split_interface(one[1])


_ADDED = "auto tmp0 = at::vec::Vectorized{0}::loadu(p);\nauto tmp3 = at::vec::Vectorized{0}(tmp2);\nauto tmp4 = tmp0 + tmp3;\n"


@pytest.mark.parametrize(
    ("body", "computes"),
    [
        ("", False),
        ("auto tmp0 = at::vec::Vectorized<float>::loadu(in_ptr0 + x0);\ntmp0.store(out);", False),
        # A look-up: whole numbers are added, vectors only copied.
        ("auto tmp1 = tmp9 + tmp8;\nauto tmp7 = at::vec::Vectorized<float>::loadu(p + x0);", False),
        ("auto tmp0 = at::vec::Vectorized<float>::loadu(p);\nauto tmp2 = tmp1 * tmp0;", True),
        ("tmp_acc0_vec = tmp_acc0_vec + tmp0;", True),
        # A sum of whole numbers, such as those of a mask.
        (
            "at::vec::VectorizedN<int64_t,2> tmp_acc0_vec = z;\ntmp_acc0_vec = tmp_acc0_vec + tmp0;",
            False,
        ),
        # One loop adds whole numbers, another one copies floats under the same names.
        (
            f"{_ADDED.format('N<int64_t,2>')}auto tmp0 = at::vec::Vectorized<float>::loadu(p);\n",
            False,
        ),
        (
            f"auto tmp0 = at::vec::Vectorized<float>::loadu(p);\n{_ADDED.format('N<int64_t,2>')}",
            False,
        ),
        (f"{_ADDED.format('N<int64_t,2>')}{_ADDED.format('<float>')}", True),
    ],
)
def test_which_kernels_calculate_with_vectors(body: str, computes: bool) -> None:
    assert computes_in_vectors(f'extern "C"  void cpp_fused_0()\n{{\n{body}\n}}\n') is computes


class Looked(nn.Module):
    """Looks rows up by two inputs of one batch, whose sizes the graph never compares."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows = torch.arange(x.shape[0])[:, None, None]
        places = torch.arange(4)[None, None, :]
        return torch.where(mask.bool()[rows, places], 0.0, -1.0) + x[:, None]


def test_a_stored_program_keeps_a_batch_of_one_or_two(tmp_path: Path) -> None:
    """Read again, its sizes begin at 1; asked whether they are, Inductor would fix them to 2."""
    batch = torch.export.Dim("batch", min=1, max=2)
    example = {"x": torch.randn(2, 4), "mask": torch.ones(2, 4, dtype=torch.int64)}
    program = torch.export.export(
        Looked(), (), example, dynamic_shapes={"x": {0: batch}, "mask": {0: batch}}, strict=False
    )
    torch.export.save(program, tmp_path / "program.pt2")
    graph = torch.export.load(tmp_path / "program.pt2").module()
    lower_graph(graph)
    made = generate_cpp(
        graph,
        example,
        load_variant("x86-64-v3"),
        shared=(),
    )
    assert made.assumed == ()


def test_conditions_on_sizes_are_compared() -> None:
    rows, columns = (torch.export.Dim(name, min=4, max=8) for name in ("rows", "columns"))

    class Sizes(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.new_ones(x.shape[0] // 2), x.new_ones(x.shape[1] // 2)

    program = torch.export.export(
        Sizes(), (torch.ones(6, 4),), dynamic_shapes=[{0: rows, 1: columns}]
    )
    symbols = next(n.meta["val"] for n in program.graph.nodes if n.op == "placeholder").shape
    a, b = (size // 2 == 2 for size in symbols)
    with conditions_compared():
        assert fx_utils._is_fake_tensor_same([a, b], [a, b], {})
        assert not fx_utils._is_fake_tensor_same([a, b], [a, a], {})
        assert not fx_utils._is_fake_tensor_same(a, symbols[0], {})


def test_strides_are_read_as_inductor_finds_them() -> None:
    outer, inner, size = sympy.symbols("d0 d1 s0", integer=True)
    places, rest = FloorDiv(size - 1, 4), 8 * FloorDiv(outer, 4) + outer * FloorDiv(size, 2)
    for moving, stride in (
        (inner, 1),
        (-2 * inner, -2),
        (inner * (places + 1) - inner * places, 1),
        (16 * inner * places + 16 * inner, 16 * places + 16),
        (inner * outer, outer),
        (inner**2, None),
        (FloorDiv(inner, 4) + inner, None),
        (inner * ModularIndexing(inner, 1, size), None),
        (FloorDiv(inner, 16) + inner * FloorDiv(inner * places, outer), None),
        (ModularIndexing(inner + 2 * outer * places, 1, 2 * places + 1), None),
    ):
        index = moving + rest
        assert moving_terms(index, inner) == moving
        assert read_stride(moving, inner) == stride
        found = cpp.stride_at_vec_range(index, inner, 8)
        with strides_read():
            assert sympy.expand(cpp.stride_at_vec_range(index, inner, 8) - found) == 0
        assert stride is None or sympy.expand(found) == stride
    assert moving_terms(rest, inner) == cpp.stride_at_vec_range(rest, inner, 8) == 0


def test_sums_of_shares_can_be_left_to_one_thread() -> None:
    """Those alone: what threads compute side by side stays with them."""
    shares = "int most = omp_get_max_threads();\n#pragma omp parallel\n{ add(); }\n"
    others = "#pragma omp parallel num_threads(2)\n{ multiply(); }\n"
    marker = "#include <torch/csrc/inductor/cpp_prefix.h>\n"
    kernels = split_source("a\n" + marker + shares + others)[1]
    serial = sum_serially(kernels)
    assert "parallel proc_bind(close)\n{ add" in kernels
    assert "parallel num_threads(1)\n{ add" in serial and "num_threads(2)\n{ multiply" in serial
    assert "proc_bind" not in serial


@pytest.mark.parametrize("mode", ["linear", "bicubic"])
def test_aligned_corners_of_one_place(mode: str) -> None:
    aten = torch.ops.aten
    table = get_decompositions([aten.upsample_linear1d, aten.upsample_bicubic2d])

    def half(x: Tensor) -> Tensor:
        sizes = [(size + 1) // 2 for size in x.shape[2:]]
        return torch.nn.functional.interpolate(x, sizes, mode=mode, align_corners=True)

    shape = (1, 2, 9, 8)[: 3 if mode == "linear" else 4]
    with sizes_interpolated():
        traced = make_fx(half, table, tracing_mode="symbolic")(torch.randn(shape))
    for size in (2, 3, 8):
        x = torch.randn(1, 2, *[size] * (len(shape) - 2))
        assert torch.allclose(traced(x), half(x), atol=1e-6)
