// Handles of AOTInductor's C ABI (torch/csrc/inductor/aoti_torch/c/shim.h and the generated
// c_shim_cpu.h of torch 2.13 and 2.14), whose functions are defined in this folder, each with the
// prefix ec_. A test compares the type of each with torch's.
//
// Handles returned through a pointer are new references, to be freed with
// ec_aoti_torch_delete_tensor_object; pointers to sizes, strides and data are borrowed from the
// handle. Optional tensors are pointers to a handle, null if absent. On failure a function returns
// 1, leaves its results alone and sets the thread's last error (ec_last_error).
#pragma once

#include "base/export.h"
#include "tensors/tensor.h"

struct AtenTensorOpaque;
using AtenTensorHandle = AtenTensorOpaque*;

namespace ec {

inline Tensor* unwrap(AtenTensorHandle handle) {
  if (handle == nullptr) fail("tensor handle is null");
  return reinterpret_cast<Tensor*>(handle);
}
inline Tensor* unwrap_optional(const AtenTensorHandle* handle) {
  return handle == nullptr || *handle == nullptr ? nullptr : unwrap(*handle);
}
inline AtenTensorHandle wrap(Tensor* tensor) { return reinterpret_cast<AtenTensorHandle>(tensor); }

}  // namespace ec
