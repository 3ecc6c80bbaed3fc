// Attention of AOTInductor's C ABI, and our own operator, on attention.h.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/profile.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/cache_rows.h"
#include "math/simd.h"
#include "shim/arguments.h"
#include "shim/handles.h"
#include "threads/threads.h"

namespace ec {
namespace {

// Arguments for attention(), with copies where a tensor isn't laid out as it wants.
struct Prepared {
  AttentionArgs args{};
  OwnedTensor q, k, v, mask;
};

void set_strides(const Tensor& tensor, int64_t* strides) {
  for (int i = 0; i < 3; ++i) strides[i] = tensor.strides[i];
}

void prepare(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor* mask,
             bool causal, double scale, Prepared* prepared, bool may_be_narrow = false) {
  AttentionArgs& args = prepared->args;
  if (may_be_narrow && key.dtype == value.dtype) {
    if (key.dtype == kBFloat16) args.stored = CacheType::kHalves;
    if (key.dtype == kInt8) args.stored = CacheType::kInt8;
  }
  const bool is_int8 = args.stored == CacheType::kInt8;
  const Tensor* operands[] = {&query, &key, &value};
  const char* roles[] = {"query", "key", "value"};
  for (int i = 0; i < 3; ++i) {
    if (i == 0 || args.stored == CacheType::kFloats) require_float32(*operands[i], roles[i]);
    require_dims(*operands[i], 4, roles[i]);
  }
  args.batch = query.sizes[0];
  args.heads_q = query.sizes[1];
  args.heads_kv = key.sizes[1];
  args.len_q = query.sizes[2];
  args.len_k = key.sizes[2];
  args.dim = query.sizes[3];
  args.dim_v = is_int8 ? row_width(value.sizes[3]) : value.sizes[3];
  const int64_t key_width = is_int8 ? row_width(key.sizes[3]) : key.sizes[3];
  if (key.sizes[0] != args.batch || value.sizes[0] != args.batch || key_width != args.dim ||
      args.dim_v < 0 || value.sizes[1] != args.heads_kv || value.sizes[2] != args.len_k ||
      args.heads_kv == 0 || args.heads_q % args.heads_kv != 0) {
    fail(
        "query, key and value don't fit each other: heads %ld, %ld and %ld, lengths %ld, "
        "%ld and %ld, width %ld and %ld",
        args.heads_q, args.heads_kv, value.sizes[1], args.len_q, args.len_k, value.sizes[2],
        args.dim, key_width);
  }
  const Tensor& q = with_contiguous_last(query, &prepared->q);
  const Tensor& k = with_contiguous_last(key, &prepared->k);
  const Tensor& v = with_contiguous_last(value, &prepared->v);
  args.q = q.as<float>();
  args.k = k.data;
  args.v = v.data;
  set_strides(q, args.q_strides);
  set_strides(k, args.k_strides);
  set_strides(v, args.v_strides);
  args.causal = causal;
  args.scale = static_cast<float>(scale);
  args.mask_kind = static_cast<int>(MaskKind::kNone);
  if (mask == nullptr) return;
  if (mask->dtype != kBool && mask->dtype != kFloat32) {
    fail("attn_mask is %s, it must be bool or float32", dtype_name(mask->dtype));
  }
  const int64_t sizes[] = {args.batch, args.heads_q, args.len_q, args.len_k};
  prepared->mask.reset(new_broadcast(*mask, 4, sizes, "attn_mask"));
  args.mask = prepared->mask->data;
  args.mask_kind = static_cast<int>(mask->dtype == kBool ? MaskKind::kBool : MaskKind::kFloat);
  for (int i = 0; i < 4; ++i) args.mask_strides[i] = prepared->mask->strides[i];
}

// [B, H, L, D] over memory in the order B, L, H, D.
Tensor* new_heads_last(int64_t batch, int64_t heads, int64_t length, int64_t width) {
  const int64_t sizes[] = {batch, heads, length, width};
  const int64_t strides[] = {length * heads * width, width, heads * width, 1};
  return new_empty(4, sizes, strides, kFloat32);
}

Tensor* new_attention(Prepared* prepared) {
  AttentionArgs& args = prepared->args;
  // Of a causal attention about half of the new keys are seen, and all that stand before them.
  const int64_t keys = std::min(args.len_k, args.offset + args.len_q);
  const int64_t pairs =
      args.causal ? args.len_q * (args.offset + keys) / 2 : args.len_q * args.len_k;
  const int64_t width = args.dim + args.dim_v;
  const WorkTimer timer(Work::kAttention,
                        {.flops = 2 * args.batch * args.heads_q * pairs * width,
                         .bytes = args.batch * width *
                                  (4 * args.heads_q * args.len_q +
                                   stored_size(args.stored) * args.heads_kv * args.len_k)});
  OwnedTensor result(new_heads_last(args.batch, args.heads_q, args.len_q, args.dim_v));
  args.out = result->as<float>();
  set_strides(*result, args.out_strides);
  if (result->numel() > 0) attention(args);
  return result.release();
}

// As aten's kernel gives it, and generated code expects it: in the order of the query's memory.
Tensor* new_attention_like(const Tensor& query, Prepared* prepared) {
  OwnedTensor result(new_attention(prepared));
  int64_t strides[4];
  if (result->sizes[3] == query.sizes[3]) {
    preserved_strides(query, strides);
  } else {
    dense_strides(4, result->sizes, query.strides, strides);
  }
  if (std::equal(strides, strides + 4, result->strides)) return result.release();
  OwnedTensor ordered(new_empty(4, result->sizes, strides, kFloat32));
  copy_elements(*result, ordered.get());
  return ordered.release();
}

// Of the sizes of `like`, but for the last one.
Tensor* new_rows(const Tensor& like, int64_t last, int32_t dtype) {
  std::vector<int64_t> sizes(like.sizes, like.sizes + like.dims);
  sizes.back() = last;
  return new_contiguous(like.dims, sizes.data(), dtype);
}

// One text's token: writes its row of a cache, and lets the query see it and the rows before.
// Without a cache that is the token's own row alone.
void see_cache(const char* row, const int64_t* row_strides, int64_t size, int64_t heads,
               int64_t width, int64_t address, int64_t position, const void** seen,
               int64_t* strides) {
  if (address == 0) {
    *seen = row;
    std::copy_n(row_strides, 3, strides);
    return;
  }
  char* const cache = reinterpret_cast<char*>(address);
  for (int64_t h = 0; h < heads; ++h) {
    std::memcpy(cache + (position * heads + h) * width * size, row + h * row_strides[1] * size,
                static_cast<size_t>(width * size));
  }
  *seen = cache;
  strides[0] = 0;
  strides[1] = width;
  strides[2] = heads * width;
}

float dot(const float* a, const float* b, int64_t n) {
  constexpr int64_t kStep = kFloatLanes;
  vf32 sum{};
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    sum = fma(load<vf32>(a + i), load<vf32>(b + i), sum);
  }
  float result = reduce_add(sum);
  for (; i < n; ++i) result += a[i] * b[i];
  return result;
}

// log(sum(exp(scores))) of each row; -inf where nothing is attended to. Only training reads it, so
// it is not worth complicating the attention kernel; it is here to be right.
void fill_logsumexp(const AttentionArgs& args, Tensor* lse) {
  const int64_t rows = args.batch * args.heads_q * args.len_q;
  const int64_t group = args.heads_q / args.heads_kv;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  parallel_for(rows, [&](int64_t index) {
    const int64_t row = index % args.len_q;
    const int64_t head = index / args.len_q % args.heads_q;
    const int64_t batch = index / args.len_q / args.heads_q;
    const float* q =
        args.q + batch * args.q_strides[0] + head * args.q_strides[1] + row * args.q_strides[2];
    const float* k = static_cast<const float*>(args.k) + batch * args.k_strides[0] +
                     head / group * args.k_strides[1];
    const int64_t mask_row =
        batch * args.mask_strides[0] + head * args.mask_strides[1] + row * args.mask_strides[2];
    const int64_t keys = args.causal ? std::min(row + 1, args.len_k) : args.len_k;
    float top = -kInfinity;
    double sum = 0;
    for (int64_t key = 0; key < keys; ++key) {
      const int64_t at = mask_row + key * args.mask_strides[3];
      float score = dot(q, k + key * args.k_strides[2], args.dim) * args.scale;
      if (args.mask_kind == static_cast<int>(MaskKind::kBool)) {
        if (static_cast<const uint8_t*>(args.mask)[at] == 0) continue;
      } else if (args.mask_kind == static_cast<int>(MaskKind::kFloat)) {
        score += static_cast<const float*>(args.mask)[at];
      }
      if (score == -kInfinity) continue;
      if (score > top) {
        sum = sum * std::exp(static_cast<double>(top - score)) + 1.0;
        top = score;
      } else {
        sum += std::exp(static_cast<double>(score - top));
      }
    }
    lse->as<float>()[batch * lse->strides[0] + head * lse->strides[1] + row * lse->strides[2]] =
        sum == 0 ? -kInfinity : static_cast<float>(top + std::log(sum));
  });
}

}  // namespace

EC_API int32_t ec_aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu(
    AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, double dropout_p,
    int32_t is_causal, AtenTensorHandle* attn_mask, double* scale, AtenTensorHandle* ret0,
    AtenTensorHandle* ret1) {
  return guarded("aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu", [&] {
    if (dropout_p != 0.0) fail("dropout of %g is not supported", dropout_p);
    const Tensor& q = *unwrap(query);
    require_dims(q, 4, "query");
    const double factor =
        scale != nullptr ? *scale : 1.0 / std::sqrt(static_cast<double>(q.sizes[3]));
    Prepared prepared;
    prepare(q, *unwrap(key), *unwrap(value), unwrap_optional(attn_mask), is_causal != 0, factor,
            &prepared);
    OwnedTensor result(new_attention_like(q, &prepared));
    const AttentionArgs& args = prepared.args;
    const int64_t sizes[] = {args.batch, args.heads_q, args.len_q};
    const int64_t strides[] = {args.len_q * args.heads_q, 1, args.heads_q};
    OwnedTensor lse(new_empty(3, sizes, strides, kFloat32));
    fill_logsumexp(args, lse.get());
    *ret0 = wrap(result.release());
    *ret1 = wrap(lse.release());
  });
}

EC_API int32_t ec_aoti_torch_cpu_ec_attention(AtenTensorHandle q, AtenTensorHandle k,
                                              AtenTensorHandle v, AtenTensorHandle* mask,
                                              int32_t causal, double scale, int32_t narrow,
                                              AtenTensorHandle* ret) {
  return guarded("aoti_torch_cpu_ec_attention", [&] {
    Prepared prepared;
    prepare(*unwrap(q), *unwrap(k), *unwrap(v), unwrap_optional(mask), causal != 0, scale,
            &prepared);
    prepared.args.narrow = narrow != 0;
    *ret = wrap(new_attention(&prepared));
  });
}

// Rows [..., width] in int8 as a cache has them, [..., row_bytes(width)].
EC_API int32_t ec_aoti_torch_cpu_ec_quantize_rows(AtenTensorHandle x, AtenTensorHandle* ret) {
  return guarded("aoti_torch_cpu_ec_quantize_rows", [&] {
    const Tensor& given = *unwrap(x);
    require_float32(given, "x");
    if (given.dims == 0) fail("x has no dimension");
    const RowsView rows(given);
    const int64_t bytes = row_bytes(rows.columns());
    OwnedTensor result(new_rows(given, bytes, kInt8));
    RowByte* const to = result->as<RowByte>();
    for (int64_t i = 0; i < rows.rows(); ++i) {
      quantize_row(rows.data() + i * rows.row_stride(), rows.columns(), to + i * bytes);
    }
    *ret = wrap(result.release());
  });
}

EC_API int32_t ec_aoti_torch_cpu_ec_dequantize_rows(AtenTensorHandle rows, AtenTensorHandle* ret) {
  return guarded("aoti_torch_cpu_ec_dequantize_rows", [&] {
    const Tensor& given = *unwrap(rows);
    const int64_t bytes = given.dims == 0 ? -1 : given.sizes[given.dims - 1];
    const int64_t width = row_width(bytes);
    if (given.dtype != kInt8 || width < 0) fail("rows aren't int8 with scales");
    OwnedTensor copy;
    const RowByte* from = row_major(given, &copy).as<RowByte>();
    OwnedTensor result(new_rows(given, width, kFloat32));
    float* to = result->as<float>();
    const int64_t count = width == 0 ? 0 : result->numel() / width;
    for (int64_t i = 0; i < count; ++i) dequantize_row(from + i * bytes, width, to + i * width);
    *ret = wrap(result.release());
  });
}

EC_API int32_t ec_aoti_torch_cpu_ec_cached_attention(AtenTensorHandle q, AtenTensorHandle k,
                                                     AtenTensorHandle v, AtenTensorHandle position,
                                                     int64_t window, double scale, double softcap,
                                                     AtenTensorHandle* ret) {
  return guarded("aoti_torch_cpu_ec_cached_attention", [&] {
    const Tensor& place = *unwrap(position);
    if (place.dtype != kInt64 || place.numel() != 1) fail("position is no single int64");
    Prepared prepared;
    prepare(*unwrap(q), *unwrap(k), *unwrap(v), nullptr, true, scale, &prepared, true);
    AttentionArgs& args = prepared.args;
    args.offset = *place.as<int64_t>();
    args.window = window;
    args.softcap = static_cast<float>(softcap);
    if (args.offset < 0 || args.offset >= args.len_k) {
      fail("position %ld, but the context has %ld rows", args.offset, args.len_k);
    }
    *ret = wrap(new_attention(&prepared));
  });
}

// Each text's token by the very call that runs it alone, so that its result has the same bits.
EC_API int32_t ec_aoti_torch_cpu_ec_texts_attention(AtenTensorHandle q, AtenTensorHandle k,
                                                    AtenTensorHandle v, AtenTensorHandle keys,
                                                    AtenTensorHandle values,
                                                    AtenTensorHandle position, int64_t context,
                                                    int64_t window, double scale, double softcap,
                                                    AtenTensorHandle* ret) {
  return guarded("aoti_torch_cpu_ec_texts_attention", [&] {
    Prepared prepared;
    prepare(*unwrap(q), *unwrap(k), *unwrap(v), nullptr, true, scale, &prepared, true);
    const AttentionArgs& all = prepared.args;
    const int64_t texts = all.len_q;
    if (all.batch != 1 || all.len_k != texts) fail("%ld tokens of %ld texts", all.len_k, texts);
    const int64_t* const key_places = int64s_of_texts(*unwrap(keys), texts, "addresses of keys");
    const int64_t* const value_places =
        int64s_of_texts(*unwrap(values), texts, "addresses of values");
    const int64_t* const places = int64s_of_texts(*unwrap(position), texts, "positions");
    OwnedTensor result(new_heads_last(1, all.heads_q, texts, all.dim_v));
    int64_t read = 0;
    for (int64_t t = 0; t < texts; ++t) {
      const bool alone = key_places[t] == 0;
      const int64_t place = alone ? 0 : places[t];
      if (place < 0 || place >= context || alone != (value_places[t] == 0)) {
        fail("position %ld, but the context has %ld rows", place, context);
      }
      read += place + 1;
    }
    const int64_t width = all.dim + all.dim_v, size = stored_size(all.stored);
    const bool is_int8 = all.stored == CacheType::kInt8;
    const int64_t key_row = is_int8 ? row_bytes(all.dim) : all.dim;
    const int64_t value_row = is_int8 ? row_bytes(all.dim_v) : all.dim_v;
    const WorkTimer timer(Work::kAttention, {.flops = 2 * all.heads_q * read * width,
                                             .bytes = width * (4 * all.heads_q * texts +
                                                               size * all.heads_kv * read)});
    const auto* const keys_given = static_cast<const char*>(all.k);
    const auto* const values_given = static_cast<const char*>(all.v);
    for (int64_t t = 0; t < texts; ++t) {
      AttentionArgs one = all;
      one.len_q = 1;
      one.offset = key_places[t] == 0 ? 0 : places[t];
      one.len_k = one.offset + 1;
      one.window = window;
      one.softcap = static_cast<float>(softcap);
      one.q = all.q + t * all.q_strides[2];
      see_cache(keys_given + t * all.k_strides[2] * size, all.k_strides, size, all.heads_kv,
                key_row, key_places[t], one.offset, &one.k, one.k_strides);
      see_cache(values_given + t * all.v_strides[2] * size, all.v_strides, size, all.heads_kv,
                value_row, value_places[t], one.offset, &one.v, one.v_strides);
      one.out = result->as<float>() + t * result->strides[2];
      set_strides(*result, one.out_strides);
      attention(one);
    }
    *ret = wrap(result.release());
  });
}

}  // namespace ec
