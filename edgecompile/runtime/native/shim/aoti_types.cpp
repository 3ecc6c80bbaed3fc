// Constants and process state of AOTInductor's C ABI.
#include <cstdio>
#include <cstdlib>

#include "shim/aoti_abi.h"
#include "threads/openmp.h"

namespace {

constexpr int32_t dtype_uint8 = ec::kUInt8;
constexpr int32_t dtype_int8 = ec::kInt8;
constexpr int32_t dtype_int16 = ec::kInt16;
constexpr int32_t dtype_int32 = ec::kInt32;
constexpr int32_t dtype_int64 = ec::kInt64;
constexpr int32_t dtype_uint16 = ec::kUInt16;
constexpr int32_t dtype_uint32 = ec::kUInt32;
constexpr int32_t dtype_uint64 = ec::kUInt64;
constexpr int32_t dtype_float16 = ec::kFloat16;
constexpr int32_t dtype_bfloat16 = ec::kBFloat16;
constexpr int32_t dtype_float32 = ec::kFloat32;
constexpr int32_t dtype_float64 = ec::kFloat64;
constexpr int32_t dtype_bool = ec::kBool;
constexpr int32_t dtype_complex32 = ec::kComplex32;
constexpr int32_t dtype_complex64 = ec::kComplex64;
constexpr int32_t dtype_complex128 = ec::kComplex128;
constexpr int32_t dtype_float8_e5m2 = ec::kFloat8E5M2;
constexpr int32_t dtype_float8_e4m3fn = ec::kFloat8E4M3FN;
constexpr int32_t dtype_float8_e5m2fnuz = ec::kFloat8E5M2FNUZ;
constexpr int32_t dtype_float8_e4m3fnuz = ec::kFloat8E4M3FNUZ;
constexpr int32_t dtype_float8_e8m0fnu = ec::kFloat8E8M0FNU;
constexpr int32_t dtype_float4_e2m1fn_x2 = ec::kFloat4E2M1FNX2;

thread_local bool t_grad_mode = false;

}  // namespace

#define EC_DEFINE_DTYPE(name) \
  int32_t ec_aoti_torch_dtype_##name() { return dtype_##name; }
EC_FOR_EACH_DTYPE(EC_DEFINE_DTYPE)
#undef EC_DEFINE_DTYPE

size_t ec_aoti_torch_dtype_element_size(int32_t dtype) {
  size_t size = 0;
  ec::guarded("aoti_torch_dtype_element_size",
              [&] { size = static_cast<size_t>(ec::element_size(dtype)); });
  return size;
}

// The numbers are c10's DeviceType, Layout and MemoryFormat.
int32_t ec_aoti_torch_device_type_cpu() { return 0; }
int32_t ec_aoti_torch_device_type_cuda() { return 1; }
int32_t ec_aoti_torch_device_type_meta() { return 14; }
int32_t ec_aoti_torch_layout_strided() { return 0; }
int32_t ec_aoti_torch_memory_format_contiguous_format() { return 0; }
int32_t ec_aoti_torch_memory_format_preserve_format() { return 1; }
int32_t ec_aoti_torch_memory_format_channels_last() { return 2; }
int32_t ec_aoti_torch_memory_format_channels_last_3d() { return 3; }

bool ec_aoti_torch_grad_mode_is_enabled() { return t_grad_mode; }
void ec_aoti_torch_grad_mode_set_enabled(bool enabled) { t_grad_mode = enabled; }

const char* ec_check_failed(const char* func, uint32_t line, const char* msg) {
  static thread_local char text[256];  // no string: abandon_region runs no destructors
  std::snprintf(text, sizeof text, "check failed in %s (line %u): %s", func ? func : "?", line,
                msg ? msg : "");
  ec::set_last_error(text);
  ec::abandon_region(text);
  return text;
}

// Stands in for the definition in model/support.cpp, which throws, where that is not linked. The
// generated code counts on not going on: it is about to read out of bounds.
void ec_aoti_torch_check(bool cond, const char* func, const char* file, uint32_t line,
                         const char* msg) {
  if (cond) return;
  std::fprintf(stderr, "edgecompile: %s in %s\n", ec_check_failed(func, line, msg),
               file ? file : "?");
  std::abort();
}

void ec_aoti_torch_warn(const char* func, const char* file, uint32_t line, const char* msg) {
  (void)file;
  std::fprintf(stderr, "edgecompile: warning from compiled code, %s line %u: %s\n",
               func ? func : "?", line, msg ? msg : "");
}
