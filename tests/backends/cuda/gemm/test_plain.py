"""Which products cuBLASLt may compute: those that are nothing but a product and a bias."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgecompile.backends.cuda.gemm.plain import PlainProduct, offer_product, read_product
from edgecompile.errors import CompileError

SOURCE = (Path(__file__).with_name("product.txt")).read_text()
TYPES = {"in_ptr0": "*fp16", "arg_A": "*fp16", "arg_B": "*fp16", "out_ptr0": "*fp16", "ks0": "i32"}
PRODUCT = PlainProduct("ks0*ks1", 768, 3072, 5, "in_ptr0", "out_ptr0")
BIAS = """    tmp0 = tl.load(in_ptr0 + (tl.broadcast_to(idx_n, [BLOCK_M, BLOCK_N])), mask, eviction_policy='evict_last').to(tl.float32)
    tmp1 = acc + tmp0
"""


def changed(*changes: tuple[str, str]) -> str:
    source = SOURCE
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    return source


def test_a_product_with_a_bias_and_one_without_are_read() -> None:
    assert read_product(SOURCE, TYPES) == PRODUCT
    plain = changed((BIAS, ""), (", tmp1, mask)", ", acc, mask)"))
    assert read_product(plain, TYPES) == PlainProduct("ks0*ks1", 768, 3072, 5, "", "out_ptr0")
    fixed = changed(("M = ks0*ks1", "M = 64"))
    assert read_product(fixed, TYPES) == PlainProduct("64", 768, 3072, 5, "in_ptr0", "out_ptr0")
    masked = changed(
        ("a = tl.load(A + (xindex))", "a = tl.load(A + (xindex), a_mask, other=0.0)"),
    )
    assert read_product(masked, TYPES) == PRODUCT


@pytest.mark.parametrize(("name", "number"), [("*bf16", 15), ("*fp32", 6)])
def test_other_types_are_read(name: str, number: int) -> None:
    found = read_product(SOURCE, dict.fromkeys(TYPES, name))
    assert found is not None and found.dtype == number


@pytest.mark.parametrize(
    "changes",
    [
        # More is done to the result.
        [("tmp1 = acc + tmp0\n", "tmp1 = acc + tmp0\n    tmp2 = tmp1 * 2\n"), ("tmp1, mask)", "tmp2, mask)")],
        [("mask)\n", "mask)\n    tl.store(out_ptr1 + xindex, tmp1, mask)\n")],
        [(", tmp1, mask)", ", acc, mask)")],
        # It is stored elsewhere: transposed, or with gaps.
        [("xindex = idx_n + 768*idx_m\n    tmp0", "xindex = idx_m + 768*idx_n\n    tmp0")],
        [("xindex = idx_n + 768*idx_m\n    tmp0", "xindex = idx_n + 800*idx_m\n    tmp0")],
        # What is added is no bias.
        [("broadcast_to(idx_n, [BLOCK_M", "broadcast_to(xindex, [BLOCK_M")],
        # An operand has gaps, begins elsewhere, or is computed.
        [("stride_am = 3072", "stride_am = 6144")],
        [("xindex = idx_n + 3072*idx_m", "xindex = idx_n + 3072*idx_m + 768")],
        [("a = tl.load(A + (xindex))", "a = tl.load(A + (xindex))\n        a = a * 2")],
        [("(A + (xindex))", "(in_ptr1 + (xindex))")],
        [("stride_bk = 1", "stride_bk = 768"), ("stride_bn = 3072", "stride_bn = 1")],
        # Sizes that aren't known, or that C++ computes otherwise.
        [("N = 768", "N = ks1")],
        [("M = ks0*ks1", "M = ks0//2")],
        [("ALLOW_TF32 : tl.constexpr = False", "ALLOW_TF32 : tl.constexpr = True")],
    ],
)  # fmt: skip
def test_everything_else_is_left_to_triton(changes: list[tuple[str, str]]) -> None:
    assert read_product(changed(*changes), TYPES) is None


@pytest.mark.parametrize(
    "types", [{**TYPES, "in_ptr0": "*fp32"}, {**TYPES, "arg_B": "*i8"}, dict.fromkeys(TYPES, "*fp8e4nv"), {}]
)  # fmt: skip
def test_tensors_of_unlike_types_are_left_to_triton(types: dict[str, str]) -> None:
    assert read_product(SOURCE, types) is None


WRAPPER = """
template <typename arg_A_type_>
static __attribute__((noinline)) void call_product(
    const arg_A_type_& arg_A,
    const std::optional<std::string>& cubin_dir_ = std::nullopt
){
    launch();
}
"""


def test_the_launch_asks_first() -> None:
    text = offer_product(WRAPPER, "product", 3, PRODUCT)
    asked = (
        "    if (ec_cuda_multiply(3, 5, ks0*ks1, 768, 3072, arg_A.data_ptr(), arg_B.data_ptr(), "
        "in_ptr0.data_ptr(), out_ptr0.data_ptr())) return;\n"
    )
    assert text == WRAPPER.replace("){\n", "){\n" + asked)
    without = PlainProduct("64", 8, 16, 6, "", "out_ptr0")
    assert "arg_B.data_ptr(), nullptr, out" in offer_product(WRAPPER, "product", 0, without)


def test_a_wrapper_of_another_form_is_refused() -> None:
    with pytest.raises(CompileError, match="launches a product in an unknown way"):
        offer_product("void call_other() {}", "product", 0, PRODUCT)
