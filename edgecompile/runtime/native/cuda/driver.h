// The functions of CUDA's driver that a run takes, found in a library that is loaded by name.
// Numbers and arguments are those of cuda.h, of which nothing is used that changed between
// CUDA 11.4 and 13, and nothing newer is needed.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
struct CUmod_st;
struct CUfunc_st;
struct CUstream_st;
}

namespace ec::cuda {

using Result = int;  // CUresult
using Address = unsigned long long;
using DriverModule = CUmod_st*;
using DriverFunction = CUfunc_st*;
using Stream = CUstream_st*;

constexpr Result kOk = 0, kInvalidValue = 1, kNotInitialized = 3, kNoBinary = 209,
                 kNotSupported = 801;

// X(our name, CUDA's, arguments)
#define EC_FOR_EACH_DRIVER_CALL(X)                                                                 \
  X(get_error_name, cuGetErrorName, (Result, const char**))                                        \
  X(get_error_string, cuGetErrorString, (Result, const char**))                                    \
  X(get_version, cuDriverGetVersion, (int*))                                                       \
  X(module_load, cuModuleLoadDataEx, (DriverModule*, const void*, unsigned, int*, void**))         \
  X(module_unload, cuModuleUnload, (DriverModule))                                                 \
  X(get_function, cuModuleGetFunction, (DriverFunction*, DriverModule, const char*))               \
  X(set_attribute, cuFuncSetAttribute, (DriverFunction, int, int))                                 \
  X(launch, cuLaunchKernel,                                                                        \
    (DriverFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, \
     void**, void**))                                                                              \
  X(copy, cuMemcpyDtoDAsync_v2, (Address, Address, size_t, Stream))                                \
  X(fill, cuMemsetD8Async, (Address, unsigned char, size_t, Stream))                               \
  X(read, cuMemcpyDtoH_v2, (void*, Address, size_t))                                               \
  X(synchronize, cuStreamSynchronize, (Stream))

// CUlaunchAttribute and CUlaunchConfig of CUDA 12.
struct LaunchAttribute {
  int id, reserved;
  union {
    int on;
    char space[64];
  } value;
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  Stream stream;
  const LaunchAttribute* attributes;
  unsigned attribute_count;
};

struct Driver {
#define EC_DEFINE_CALL(name, symbol, arguments) Result(*name) arguments = nullptr;
  EC_FOR_EACH_DRIVER_CALL(EC_DEFINE_CALL)
#undef EC_DEFINE_CALL
  // Launches with attributes; null before CUDA 12.3, whose graphs are the first to hold such
  // launches.
  Result (*launch_with)(const LaunchConfig*, DriverFunction, void**, void**) = nullptr;
};

// Loads the driver's library once; a later call for another path is an error. Throws Error.
void load_driver(const char* path);

// Throws Error before load_driver.
const Driver& driver();

// The number of CUDA's error that failed the calling thread's last call, 0 if it wasn't one.
Result last_number() noexcept;
void set_last_number(Result number) noexcept;

// "doing failed: CUDA_ERROR_X (n): text", noted as the thread's last error; returns the number.
Result note_failure(Result number, const char* doing, const char* of = "") noexcept;
void check(Result number, const char* doing, const char* of = "");  // throws Error unless kOk

}  // namespace ec::cuda
