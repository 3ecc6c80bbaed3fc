// Scaled dot-product attention for short sequences: softmax(q·kᵀ·scale + mask)·v without storing
// the scores of a whole head.
#pragma once

#include <cstdint>

namespace ec {

enum class MaskKind : int32_t { kNone = 0, kBool = 1 /* true: attend */, kFloat = 2 /* added */ };

// How keys and values are stored: as floats, as bfloat16, or in int8 with scales (cache_rows.h).
// They are read as the floats that they stand for.
enum class CacheType : int32_t { kFloats = 0, kHalves = 1, kInt8 = 2 };
// Bytes of an element, which is a number, or with kInt8 a byte of a row.
constexpr int64_t stored_size(CacheType type) {
  return type == CacheType::kFloats ? 4 : type == CacheType::kHalves ? 2 : 1;
}

// q [batch, heads_q, len_q, dim], k [batch, heads_kv, len_k, dim], v [batch, heads_kv, len_k,
// dim_v], out [batch, heads_q, len_q, dim_v]; strides in elements of the first three axes, the last
// one is contiguous. heads_q must be a multiple of heads_kv: query head h reads key head
// h / (heads_q / heads_kv).
struct AttentionArgs {
  const float* q;
  const void *k, *v;  // as `stored` says; with kInt8 strides are bytes, as elements are
  float* out;
  int64_t batch, heads_q, heads_kv, len_q, len_k, dim, dim_v;
  int64_t q_strides[3], k_strides[3], v_strides[3], out_strides[3];
  const void* mask;         // uint8_t or float, [batch, heads_q, len_q, len_k]
  int mask_kind;            // MaskKind
  int64_t mask_strides[4];  // 0 broadcasts
  bool causal;              // query i sees keys 0 .. offset + i
  float scale;
  int64_t offset;    // of a causal one: the place of its first query among the keys
  int64_t window;    // over 0, of a causal one: only that many keys, up to its own, are seen
  float softcap;     // over 0: a score s becomes softcap * tanh(s / softcap)
  bool narrow;       // operands of the two products may be rounded to bfloat16
  CacheType stored;  // how k and v are; floats with narrow
};

// Keys that no query sees aren't read. As torch's eager kernel on the CPU: a row whose keys are all
// masked by `false` or -inf gives zeros; NaN and infinity in q, k, v reach the rows that read them
// even where masked.
void attention(const AttentionArgs& args);

}  // namespace ec
