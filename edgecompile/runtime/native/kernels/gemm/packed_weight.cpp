// A packed weight of any number type, checked against the sizes of its product.
#include "kernels/gemm/packed_weight.h"

#include <algorithm>

#include "kernels/gemm/narrow/gemm_narrow.h"

namespace ec {

namespace {

int64_t panels_of(int64_t n) { return (n + kPanel - 1) / kPanel; }

// Elements of bytes of each of `count` weights, if they are those of some form; else `first`.
int64_t bytes_of_form(const Tensor& packed, int64_t n, int64_t k, int64_t count,
                      bool (*is_panel)(int64_t, int64_t), int64_t first) {
  const int64_t panels = panels_of(n) * count;
  if (panels == 0 || packed.numel() % panels != 0) return first;
  const int64_t panel = packed.numel() / panels;
  return is_panel(k, panel) ? panel * panels_of(n) : first;
}

}  // namespace

int64_t packed_count(const Tensor& packed, int64_t n, int64_t k, int64_t count) {
  switch (packed.dtype) {
    case kFloat32:
      return packed_elements(n, k);
    case kBFloat16:
      return packed_elements_bf16(n, k);
    case kInt8:
      return bytes_of_form(packed, n, k, count, is_int8_panel, packed_elements_int8(n, k));
    case kUInt8:
      return bytes_of_form(packed, n, k, count, is_int4_panel, packed_elements_int4(n, k));
    default:
      fail("w_packed is %s, this kernel reads float32, bfloat16, int8 and int4 in uint8 only",
           dtype_name(packed.dtype));
  }
}

void gemm_weight(const Tensor& packed, int64_t each, int64_t index, int64_t m, int64_t n, int64_t k,
                 const float* a, int64_t lda, float* c, int64_t ldc, const Epilogue& epilogue) {
  const int64_t offset = each * index, panel = each / std::max<int64_t>(panels_of(n), 1);
  if (packed.dtype == kBFloat16) {
    gemm_bf16(m, n, k, a, lda, packed.as<uint16_t>() + offset, c, ldc, epilogue);
  } else if (packed.dtype == kInt8) {
    gemm_int8(m, n, k, a, lda, packed.as<int8_t>() + offset, panel, c, ldc, epilogue);
  } else if (packed.dtype == kUInt8) {
    gemm_int4(m, n, k, a, lda, packed.as<uint8_t>() + offset, panel, c, ldc, epilogue);
  } else {
    gemm_packed(m, n, k, a, lda, packed.as<float>() + offset, c, ldc, epilogue);
  }
}

}  // namespace ec
