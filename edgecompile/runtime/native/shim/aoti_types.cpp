// Constants and process state of AOTInductor's C ABI.
#include <cstdio>
#include <cstdlib>

#include "shim/handles.h"
#include "threads/openmp.h"

namespace ec {

#define EC_DEFINE_DTYPE(name, ours, code, bytes) \
  EC_API int32_t ec_aoti_torch_dtype_##name() { return ours; }
EC_FOR_EACH_DTYPE(EC_DEFINE_DTYPE)
#undef EC_DEFINE_DTYPE

// 0 for an unknown code.
EC_API size_t ec_aoti_torch_dtype_element_size(int32_t dtype) {
  size_t size = 0;
  guarded("aoti_torch_dtype_element_size",
          [&] { size = static_cast<size_t>(element_size(dtype)); });
  return size;
}

// The numbers are c10's DeviceType, Layout and MemoryFormat.
EC_API int32_t ec_aoti_torch_device_type_cpu() { return 0; }
EC_API int32_t ec_aoti_torch_device_type_cuda() { return 1; }
EC_API int32_t ec_aoti_torch_device_type_meta() { return 14; }
EC_API int32_t ec_aoti_torch_layout_strided() { return 0; }
EC_API int32_t ec_aoti_torch_memory_format_contiguous_format() { return 0; }
EC_API int32_t ec_aoti_torch_memory_format_preserve_format() { return 1; }
EC_API int32_t ec_aoti_torch_memory_format_channels_last() { return 2; }
EC_API int32_t ec_aoti_torch_memory_format_channels_last_3d() { return 3; }

// Gradients don't exist here: the mode is remembered, no more.
static thread_local bool t_grad_mode = false;
EC_API bool ec_aoti_torch_grad_mode_is_enabled() { return t_grad_mode; }
EC_API void ec_aoti_torch_grad_mode_set_enabled(bool enabled) { t_grad_mode = enabled; }

// Not torch's: called by generated/support.cpp, which is part of every model library and throws the
// returned message. Inside an OpenMP region it does not return (openmp.h).
EC_API const char* ec_check_failed(const char* func, uint32_t line, const char* msg) {
  static thread_local char text[256];  // no string: abandon_region runs no destructors
  std::snprintf(text, sizeof text, "check failed in %s (line %u): %s", func ? func : "?", line,
                msg ? msg : "");
  set_last_error(text);
  abandon_region(text);
  return text;
}

// Stands in for the definition in model/support.cpp, which throws, where that is not linked. The
// generated code counts on not going on: it is about to read out of bounds.
EC_API void ec_aoti_torch_check(bool cond, const char* func, const char* file, uint32_t line,
                                const char* msg) {
  if (cond) return;
  std::fprintf(stderr, "edgecompile: %s in %s\n", ec_check_failed(func, line, msg),
               file ? file : "?");
  std::abort();
}

EC_API void ec_aoti_torch_warn(const char* func, const char* file, uint32_t line, const char* msg) {
  (void)file;
  std::fprintf(stderr, "edgecompile: warning from compiled code, %s line %u: %s\n",
               func ? func : "?", line, msg ? msg : "");
}

}  // namespace ec
