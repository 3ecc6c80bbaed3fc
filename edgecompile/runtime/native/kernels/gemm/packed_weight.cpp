// A packed weight of any number type, checked against the sizes of its product.
#include "kernels/gemm/packed_weight.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/gemm/narrow/gemm_narrow.h"
#include "threads/threads.h"

namespace ec {

namespace {

int64_t panels_of(int64_t n) { return (n + kPanel - 1) / kPanel; }

// Multiply-adds of a task with one row, some ten microseconds.
constexpr int64_t kTaskWork = 100'000;
// A gap in front of a panel costs as much as so many panels: nothing was prefetched there (int8 and
// int4 measured, fp32 less).
constexpr int64_t kGap = 2;

struct Panels {
  int64_t begin, end;
};

// The panels with a wanted column, in parts of at most `longest`.
std::vector<Panels> wanted_panels(const ColumnMask& mask, int64_t longest) {
  std::vector<Panels> parts;
  for (int64_t panel = 0; panel * kPanel < mask.columns; ++panel) {
    const uint8_t* const from = mask.wanted + panel * kPanel;
    const uint8_t* const to = mask.wanted + std::min(mask.columns, (panel + 1) * kPanel);
    uint8_t any = 0;
    for (const uint8_t* at = from; at < to; ++at) any |= *at;
    if (any == 0) continue;
    if (!parts.empty() && parts.back().end == panel && panel - parts.back().begin < longest) {
      ++parts.back().end;
    } else {
      parts.push_back({panel, panel + 1});
    }
  }
  return parts;
}

// Elements of bytes of each of `count` weights, if they are those of some form; else `first`.
int64_t bytes_of_form(const Tensor& packed, int64_t n, int64_t k, int64_t count,
                      bool (*is_panel)(int64_t, int64_t), int64_t first) {
  const int64_t panels = panels_of(n) * count;
  if (panels == 0 || packed.numel() % panels != 0) return first;
  const int64_t panel = packed.numel() / panels;
  return is_panel(k, panel) ? panel * panels_of(n) : first;
}

// The weight that begins `offset` elements on, with so many elements in a panel.
void multiply(const Tensor& packed, int64_t offset, int64_t panel, int64_t m, int64_t n, int64_t k,
              const float* a, int64_t lda, float* c, int64_t ldc, const Epilogue& epilogue,
              bool pairs = false) {
  if (packed.dtype == kBFloat16) {
    gemm_bf16(m, n, k, a, lda, packed.as<uint16_t>() + offset, c, ldc, epilogue);
  } else if (packed.dtype == kInt8) {
    gemm_int8(m, n, k, a, lda, packed.as<int8_t>() + offset, panel, c, ldc, epilogue, pairs);
  } else if (packed.dtype == kUInt8) {
    gemm_int4(m, n, k, a, lda, packed.as<uint8_t>() + offset, panel, c, ldc, epilogue);
  } else {
    gemm_packed(m, n, k, a, lda, packed.as<float>() + offset, c, ldc, epilogue);
  }
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
                 const float* a, int64_t lda, float* c, int64_t ldc, const Epilogue& epilogue,
                 bool pairs) {
  const int64_t panel = each / std::max<int64_t>(panels_of(n), 1);
  multiply(packed, each * index, panel, m, n, k, a, lda, c, ldc, epilogue, pairs);
}

void gemm_masked(const Tensor& packed, const ColumnMask& mask, int64_t m, int64_t n, int64_t k,
                 const float* a, int64_t lda, float* c, int64_t ldc, const Epilogue& epilogue) {
  if (mask.columns != n) fail("the mask has %ld columns, the product %ld", mask.columns, n);
  const int64_t panels = panels_of(n), panel = packed.numel() / std::max<int64_t>(panels, 1);
  const int64_t longest = std::max<int64_t>(kTaskWork / (kPanel * std::max<int64_t>(k, 1)), 1);
  const std::vector<Panels> wanted = wanted_panels(mask, longest);
  int64_t cost = 0, end = -1;
  for (const Panels& part : wanted) {
    cost += part.end - part.begin + (part.begin == end ? 0 : kGap);
    end = part.end;
  }
  if (8 * cost >= 7 * panels) {
    return multiply(packed, 0, panel, m, n, k, a, lda, c, ldc, epilogue);
  }
  for (int64_t r = 0; r < m; ++r) {
    std::fill_n(c + r * ldc, n, -std::numeric_limits<float>::infinity());
  }
  parallel_for(static_cast<int64_t>(wanted.size()), [&](int64_t i) {
    const auto [begin, end] = wanted[static_cast<size_t>(i)];
    const int64_t n0 = begin * kPanel, columns = std::min(n, end * kPanel) - n0;
    Epilogue part = epilogue;
    if (part.bias != nullptr) part.bias += n0;
    if (part.residual != nullptr) part.residual += n0;
    multiply(packed, panel * begin, panel, m, columns, k, a, lda, c + n0, ldc, part);
  });
}

}  // namespace ec
