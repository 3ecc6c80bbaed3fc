// Numbers that a program reads from the GPU in the middle of a run, such as how many elements of a
// mask are true: sizes of what comes behind depend on them.
#include <utility>

#include "base/export.h"
#include "cuda/run.h"
#include "shim/handles.h"

namespace ec {
namespace {

template <class T>
int32_t item(const char* function, AtenTensorHandle handle, int32_t dtype, T* value) {
  return guarded(function, [&] {
    const Tensor& tensor = *unwrap(handle);
    if (tensor.numel() != 1 || tensor.dtype != dtype) {
      fail("%ld elements of %s were read as a number of %s", tensor.numel(),
           dtype_name(tensor.dtype), dtype_name(dtype));
    }
    cuda::Run& run = cuda::current_run();
    const cuda::NumberRange range = std::exchange(run.expected, {});
    run.reads_numbers = true;
    if (run.rehearsed) {
      *value = static_cast<T>(run.takes_least ? range.least : range.most);
      return;
    }
    const cuda::Driver& driver = cuda::driver();
    cuda::check(driver.synchronize(run.stream), "waiting for a number");
    cuda::check(driver.read(value, reinterpret_cast<cuda::Address>(tensor.data), sizeof *value),
                "reading a number");
  });
}

}  // namespace

// Tells the ends of what the next number may be; programs say it before they read one.
EC_API void ec_cuda_expect_number(int64_t least, int64_t most) {
  cuda::current_run().expected = {least, most};
}

// Whether a run is only rehearsed: its numbers are made up, so nothing is asserted of them.
EC_API bool ec_cuda_rehearses() { return cuda::current_run().rehearsed; }

#define EC_DEFINE_ITEM(name, ours, type)                                               \
  EC_API int32_t ec_aoti_torch_item_##name(AtenTensorHandle tensor, type* ret_value) { \
    return item("aoti_torch_item_" #name, tensor, ours, ret_value);                    \
  }
EC_DEFINE_ITEM(float32, kFloat32, float)
EC_DEFINE_ITEM(float64, kFloat64, double)
EC_DEFINE_ITEM(uint8, kUInt8, uint8_t)
EC_DEFINE_ITEM(int8, kInt8, int8_t)
EC_DEFINE_ITEM(int16, kInt16, int16_t)
EC_DEFINE_ITEM(int32, kInt32, int32_t)
EC_DEFINE_ITEM(int64, kInt64, int64_t)
EC_DEFINE_ITEM(bool, kBool, bool)
#undef EC_DEFINE_ITEM

}  // namespace ec
