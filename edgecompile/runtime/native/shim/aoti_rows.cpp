// Rows of packed weights, our own operator: a table of embeddings that is a linear layer's weight,
// too, and stored as that alone.
#include "base/profile.h"
#include "kernels/gemm/packed_rows.h"
#include "shim/arguments.h"
#include "shim/handles.h"
#include "threads/threads.h"

namespace ec {
namespace {

// Floats of rows that one thread unpacks: fork and join cost as much.
constexpr int64_t kSerialFloats = 16 * 1024;

void unpack(const Tensor& packed, int64_t panel, int64_t k, int64_t n, float* out) {
  switch (packed.dtype) {
    case kFloat32:
      return packed_row(packed.as<float>(), k, n, out);
    case kBFloat16:
      return packed_row_bf16(packed.as<uint16_t>(), k, n, out);
    case kInt8:
      return packed_row_int8(packed.as<int8_t>(), panel, k, n, out);
    case kUInt8:
      return packed_row_int4(packed.as<uint8_t>(), panel, k, n, out);
    default:
      fail("w_packed is %s, whose rows can't be read", dtype_name(packed.dtype));
  }
}

}  // namespace

// Rows [..., k] of a packed [n, k] weight, at int32 or int64 indices [...].
EC_API int32_t ec_aoti_torch_cpu_ec_packed_rows(AtenTensorHandle w_packed, AtenTensorHandle indices,
                                                int64_t n, int64_t k, AtenTensorHandle* ret) {
  return guarded("aoti_torch_cpu_ec_packed_rows", [&] {
    const Tensor& packed = *unwrap(w_packed);
    const Tensor& places = *unwrap(indices);
    if (n < 1 || k < 1) fail("a weight of [%ld, %ld]", n, k);
    const int64_t panel = require_packed(packed, n, k) / ((n + kPanel - 1) / kPanel);
    if (places.dtype != kInt32 && places.dtype != kInt64) {
      fail("indices are %s, they must be int32 or int64", dtype_name(places.dtype));
    }
    if (places.dims >= kMaxDims) fail("indices have %d dimensions", places.dims);
    OwnedTensor holder;
    const int64_t* const rows = int64s_of(places, &holder);
    const int64_t count = places.numel();
    for (int64_t i = 0; i < count; ++i) {
      if (rows[i] < 0 || rows[i] >= n)
        fail("index %ld is %ld, not within 0..%ld", i, rows[i], n - 1);
    }
    const WorkTimer timer(Work::kCopy, {.bytes = count * k * (4 + element_size(packed.dtype))});
    int64_t sizes[kMaxDims];
    for (int i = 0; i < places.dims; ++i) sizes[i] = places.sizes[i];
    sizes[places.dims] = k;
    OwnedTensor result(new_contiguous(places.dims + 1, sizes, kFloat32));
    float* const out = result->as<float>();
    const auto task = [&](int64_t i) { unpack(packed, panel, k, rows[i], out + i * k); };
    if (count * k < kSerialFloats) {
      for (int64_t i = 0; i < count; ++i) task(i);
    } else {
      parallel_for(count, task);
    }
    *ret = wrap(result.release());
  });
}

}  // namespace ec
