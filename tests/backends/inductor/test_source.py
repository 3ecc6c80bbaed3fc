"""The C++ that Inductor generates, changed before it is compiled."""

from __future__ import annotations

from edgecompile.backends.inductor.source import KERNEL_INCLUDES, split_source

SOURCE = """wrapper
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C" void kernel(float* out) {
    auto tmp0 = std::cos(out[0]);
    auto tmp1 = decltype(tmp0)(1) / (decltype(tmp0)(1) + std::exp(-tmp0));
    out[0] = std::sqrt(std::log1p(tmp1)) + std::exp2(tmp1);
}
"""


def test_functions_of_single_numbers_are_those_of_vectors() -> None:
    wrapper, kernels = split_source(SOURCE)
    assert wrapper == "wrapper\n" and kernels.startswith(KERNEL_INCLUDES)
    for call in ("ec::one_cos(out[0])", "+ ec::one_exp(-tmp0)", "std::sqrt(ec::one_log1p(tmp1))"):
        assert call in kernels
    assert "std::exp2(tmp1)" in kernels  # vectors have it in another way
