// Rows of packed weights as floats: the table of tokens of a model whose output head is that table.
#pragma once

#include <cstdint>

namespace ec {

// Row n of a packed [N, K] weight, out[K], by the layouts of gemm.h and gemm_narrow.h: the values
// that products take the weight for. `n` is within N, and `panel_bytes` tell the form of blocks.
void packed_row(const float* packed, int64_t k, int64_t n, float* out);
void packed_row_bf16(const uint16_t* packed, int64_t k, int64_t n, float* out);
void packed_row_int8(const int8_t* packed, int64_t panel_bytes, int64_t k, int64_t n, float* out);
void packed_row_int4(const uint8_t* packed, int64_t panel_bytes, int64_t k, int64_t n, float* out);

}  // namespace ec
