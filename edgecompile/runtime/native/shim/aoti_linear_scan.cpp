// The scan of AOTInductor's C ABI, and that of several texts: our own operators, on linear_scan.h.
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

// Arguments for linear_scan() but the tokens that count, the state and y.
struct Prepared {
  LinearScan scan{};
  int64_t length;
  OwnedTensor copies[5];
};

void prepare(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& decay,
             const Tensor* beta, Prepared* prepared) {
  LinearScan& scan = prepared->scan;
  require_dims(query, 3, "q");
  require_dims(value, 3, "v");
  const int64_t length = prepared->length = value.sizes[0];
  scan.key_heads = query.sizes[1];
  scan.keys = query.sizes[2];
  scan.heads = value.sizes[1];
  scan.values = value.sizes[2];
  if (scan.key_heads < 1 || scan.heads % scan.key_heads != 0) {
    fail("%ld heads can't share %ld key heads", scan.heads, scan.key_heads);
  }
  require_sizes(query, {length, scan.key_heads, scan.keys}, "q");
  require_sizes(key, {length, scan.key_heads, scan.keys}, "k");
  require_sizes(value, {length, scan.heads, scan.values}, "v");
  if (decay.dims == 3) {
    require_sizes(decay, {length, scan.heads, scan.keys}, "decay");
  } else {
    require_sizes(decay, {length, scan.heads}, "decay");
  }
  scan.decays = decay.dims == 3 ? scan.keys : 1;
  if (beta != nullptr) require_sizes(*beta, {length, scan.heads}, "beta");
  scan.q = row_major(query, &prepared->copies[0]).as<float>();
  scan.k = row_major(key, &prepared->copies[1]).as<float>();
  scan.v = row_major(value, &prepared->copies[2]).as<float>();
  scan.decay = row_major(decay, &prepared->copies[3]).as<float>();
  if (beta != nullptr) scan.beta = row_major(*beta, &prepared->copies[4]).as<float>();
}

WorkSize work_of(const LinearScan& scan, int64_t tokens, int64_t states) {
  const int64_t row = scan.heads * scan.values, each = scan.keys * row;
  return {.flops = (scan.beta != nullptr ? 7 : 5) * tokens * each,
          .bytes = 4 * (2 * states * each + 2 * tokens * row)};
}

}  // namespace

EC_API int32_t ec_aoti_torch_cpu_ec_linear_scan(AtenTensorHandle q, AtenTensorHandle k,
                                                AtenTensorHandle v, AtenTensorHandle decay,
                                                AtenTensorHandle* beta, AtenTensorHandle state,
                                                AtenTensorHandle last, AtenTensorHandle* ret0,
                                                AtenTensorHandle* ret1) {
  return guarded("aoti_torch_cpu_ec_linear_scan", [&] {
    const Tensor& value = *unwrap(v);
    const Tensor& end = *unwrap(last);
    if (end.dtype != kInt64 || end.numel() != 1) fail("last is no single int64");
    Prepared prepared;
    prepare(*unwrap(q), *unwrap(k), value, *unwrap(decay), unwrap_optional(beta), &prepared);
    LinearScan& scan = prepared.scan;
    const int64_t length = prepared.length;
    scan.tokens = std::clamp<int64_t>(*end.as<int64_t>(), -1, length - 1) + 1;
    require_sizes(*unwrap(state), {scan.heads, scan.keys, scan.values}, "state");
    OwnedTensor y(new_contiguous(3, value.sizes, kFloat32));
    OwnedTensor next(new_contiguous(3, unwrap(state)->sizes, kFloat32));
    copy_elements(*unwrap(state), next.get());
    scan.y = y->as<float>();
    scan.state = next->as<float>();
    const int64_t row = scan.heads * scan.values;
    std::memset(scan.y + scan.tokens * row, 0,
                static_cast<size_t>((length - scan.tokens) * row) * 4);
    const WorkTimer timer(Work::kLinear, work_of(scan, scan.tokens, 1));
    linear_scan(scan);
    *ret0 = wrap(y.release());
    *ret1 = wrap(next.release());
  });
}

// Each text's token by the very call that runs it alone, so that its result has the same bits.
EC_API int32_t ec_aoti_torch_cpu_ec_texts_scan(AtenTensorHandle q, AtenTensorHandle k,
                                               AtenTensorHandle v, AtenTensorHandle decay,
                                               AtenTensorHandle* beta, AtenTensorHandle states,
                                               AtenTensorHandle position, int32_t values_first,
                                               AtenTensorHandle* ret) {
  return guarded("aoti_torch_cpu_ec_texts_scan", [&] {
    const Tensor& value = *unwrap(v);
    Prepared prepared;
    prepare(*unwrap(q), *unwrap(k), value, *unwrap(decay), unwrap_optional(beta), &prepared);
    LinearScan& scan = prepared.scan;
    const int64_t texts = prepared.length;
    const int64_t* const addresses = int64s_of_texts(*unwrap(states), texts, "addresses of states");
    const int64_t* const places = int64s_of_texts(*unwrap(position), texts, "positions");
    const int64_t row = scan.heads * scan.values;
    const int64_t sizes[] = {scan.heads, scan.keys, scan.values};
    const int64_t turned[] = {scan.keys * scan.values, 1, scan.keys};
    OwnedTensor y(new_contiguous(3, value.sizes, kFloat32));
    OwnedTensor state(new_contiguous(3, sizes, kFloat32));
    scan.tokens = 1;
    scan.y = y->as<float>();
    const WorkTimer timer(Work::kLinear, work_of(scan, texts, texts));
    for (int64_t t = 0; t < texts; ++t) {
      float* const kept = reinterpret_cast<float*>(addresses[t]);
      OwnedTensor memory;
      if (kept != nullptr && values_first != 0) {
        memory.reset(new_borrowed(kept, 3, sizes, turned, 0, kFloat32));
      }
      scan.state = kept != nullptr && values_first == 0 ? kept : state->as<float>();
      if (kept == nullptr || places[t] <= 0) {
        std::memset(scan.state, 0, static_cast<size_t>(scan.keys * row) * 4);
      } else if (memory.get() != nullptr) {
        copy_elements(*memory, state.get());
      }
      linear_scan(scan);
      if (memory.get() != nullptr) copy_elements(*state, memory.get());
      scan.q += scan.key_heads * scan.keys;
      scan.k += scan.key_heads * scan.keys;
      scan.v += row;
      scan.y += row;
      scan.decay += scan.heads * scan.decays;
      if (scan.beta != nullptr) scan.beta += scan.heads;
    }
    *ret = wrap(y.release());
  });
}

EC_API int32_t ec_aoti_torch_cpu_ec_texts_window(AtenTensorHandle x, AtenTensorHandle states,
                                                 AtenTensorHandle position, int64_t size,
                                                 AtenTensorHandle* ret) {
  return guarded("aoti_torch_cpu_ec_texts_window", [&] {
    const Tensor& input = *unwrap(x);
    require_dims(input, 3, "x");
    const int64_t texts = input.sizes[0], channels = input.sizes[1];
    require_sizes(input, {texts, channels, 1}, "x");
    if (size < 1) fail("a window of %ld inputs", size);
    const int64_t* const addresses = int64s_of_texts(*unwrap(states), texts, "addresses of states");
    const int64_t* const places = int64s_of_texts(*unwrap(position), texts, "positions");
    const int64_t sizes[] = {texts, channels, size + 1};
    OwnedTensor result(new_contiguous(3, sizes, kFloat32));
    const size_t bytes = static_cast<size_t>(size) * 4;
    for (int64_t t = 0; t < texts; ++t) {
      float* const kept = reinterpret_cast<float*>(addresses[t]);
      const float* const next = input.as<float>() + t * input.strides[0];
      for (int64_t c = 0; c < channels; ++c) {
        float* const window = result->as<float>() + (t * channels + c) * (size + 1);
        if (kept != nullptr && places[t] > 0) {
          std::memcpy(window, kept + c * size, bytes);
        } else {
          std::memset(window, 0, bytes);
        }
        window[size] = next[c * input.strides[1]];
        if (kept != nullptr) std::memcpy(kept + c * size, window + 1, bytes);
      }
    }
    *ret = wrap(result.release());
  });
}

}  // namespace ec
