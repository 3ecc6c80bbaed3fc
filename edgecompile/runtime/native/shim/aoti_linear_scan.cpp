// The scan of AOTInductor's C ABI, our own operator, on linear_scan.h.
#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "base/profile.h"
#include "kernels/linear_scan.h"
#include "shim/arguments.h"
#include "shim/handles.h"

namespace ec {
namespace {

void require_sizes(const Tensor& tensor, std::initializer_list<int64_t> sizes, const char* role) {
  require_float32(tensor, role);
  require_dims(tensor, static_cast<int>(sizes.size()), role);
  if (!std::equal(sizes.begin(), sizes.end(), tensor.sizes)) {
    fail("%s doesn't fit the other arguments", role);
  }
}

}  // namespace

EC_API int32_t ec_aoti_torch_cpu_ec_linear_scan(AtenTensorHandle q, AtenTensorHandle k,
                                                AtenTensorHandle v, AtenTensorHandle decay,
                                                AtenTensorHandle* beta, AtenTensorHandle state,
                                                AtenTensorHandle last, AtenTensorHandle* ret0,
                                                AtenTensorHandle* ret1) {
  return guarded("aoti_torch_cpu_ec_linear_scan", [&] {
    const Tensor& query = *unwrap(q);
    const Tensor& value = *unwrap(v);
    const Tensor& end = *unwrap(last);
    const Tensor* delta = unwrap_optional(beta);
    require_dims(query, 3, "q");
    require_dims(value, 3, "v");
    if (end.dtype != kInt64 || end.numel() != 1) fail("last is no single int64");
    LinearScan scan{};
    const int64_t length = value.sizes[0];
    scan.key_heads = query.sizes[1];
    scan.keys = query.sizes[2];
    scan.heads = value.sizes[1];
    scan.values = value.sizes[2];
    scan.tokens = std::clamp<int64_t>(*end.as<int64_t>(), -1, length - 1) + 1;
    if (scan.key_heads < 1 || scan.heads % scan.key_heads != 0) {
      fail("%ld heads can't share %ld key heads", scan.heads, scan.key_heads);
    }
    require_sizes(query, {length, scan.key_heads, scan.keys}, "q");
    require_sizes(*unwrap(k), {length, scan.key_heads, scan.keys}, "k");
    require_sizes(value, {length, scan.heads, scan.values}, "v");
    const Tensor& factor = *unwrap(decay);
    if (factor.dims == 3) {
      require_sizes(factor, {length, scan.heads, scan.keys}, "decay");
    } else {
      require_sizes(factor, {length, scan.heads}, "decay");
    }
    scan.decays = factor.dims == 3 ? scan.keys : 1;
    if (delta != nullptr) require_sizes(*delta, {length, scan.heads}, "beta");
    require_sizes(*unwrap(state), {scan.heads, scan.keys, scan.values}, "state");
    OwnedTensor copies[5];
    scan.q = row_major(query, &copies[0]).as<float>();
    scan.k = row_major(*unwrap(k), &copies[1]).as<float>();
    scan.v = row_major(value, &copies[2]).as<float>();
    scan.decay = row_major(factor, &copies[3]).as<float>();
    if (delta != nullptr) scan.beta = row_major(*delta, &copies[4]).as<float>();
    OwnedTensor y(new_contiguous(3, value.sizes, kFloat32));
    OwnedTensor next(new_contiguous(3, unwrap(state)->sizes, kFloat32));
    copy_elements(*unwrap(state), next.get());
    scan.y = y->as<float>();
    scan.state = next->as<float>();
    const int64_t row = scan.heads * scan.values;
    std::memset(scan.y + scan.tokens * row, 0,
                static_cast<size_t>((length - scan.tokens) * row) * 4);
    const int64_t each = scan.keys * row;
    const WorkTimer timer(Work::kLinear, {.flops = (delta != nullptr ? 7 : 5) * scan.tokens * each,
                                          .bytes = 4 * (2 * each + 2 * scan.tokens * row)});
    linear_scan(scan);
    *ret0 = wrap(y.release());
    *ret1 = wrap(next.release());
  });
}

}  // namespace ec
