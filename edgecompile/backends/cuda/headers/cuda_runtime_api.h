#pragma once
#include "cuda.h"
typedef CUstream cudaStream_t;
typedef CUevent cudaEvent_t;
enum cudaError_t { cudaSuccess = 0, cudaErrorNotReady = 600, cudaErrorNotSupported = 801 };
using cudaError = cudaError_t;
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};
// Over the driver API alone.
inline cudaError_t ec_cu(CUresult r) { return static_cast<cudaError_t>(r); }
inline const char* cudaGetErrorString(cudaError_t e) {
  const char* s = "?";
  cuGetErrorString(static_cast<CUresult>(e), &s);
  return s;
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaMalloc(void** p, size_t n) {
  return ec_cu(cuMemAlloc_v2(reinterpret_cast<CUdeviceptr*>(p), n));
}
inline cudaError_t cudaFree(void* p) {
  return ec_cu(cuMemFree_v2(reinterpret_cast<CUdeviceptr>(p)));
}
inline cudaError_t cudaMemcpy(void* d, const void* s, size_t n, cudaMemcpyKind) {
  return ec_cu(cuMemcpy(reinterpret_cast<CUdeviceptr>(d), reinterpret_cast<CUdeviceptr>(s), n));
}
inline cudaError_t cudaMemcpyAsync(void* d, const void* s, size_t n, cudaMemcpyKind,
                                   cudaStream_t t) {
  return ec_cu(
      cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(d), reinterpret_cast<CUdeviceptr>(s), n, t));
}
inline cudaError_t cudaGetDevice(int* d) {
  *d = 0;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaEventCreate(cudaEvent_t* e) { return ec_cu(cuEventCreate(e, 2)); }
inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s = nullptr) {
  return ec_cu(cuEventRecord(e, s));
}
inline cudaError_t cudaEventQuery(cudaEvent_t e) { return ec_cu(cuEventQuery(e)); }
inline cudaError_t cudaEventSynchronize(cudaEvent_t e) { return ec_cu(cuEventSynchronize(e)); }
inline cudaError_t cudaEventDestroy(cudaEvent_t e) { return ec_cu(cuEventDestroy_v2(e)); }
// Since torch 2.14 constants may be copied through pinned memory on a stream of its own, and copies
// are waited for. Ours are the runtime's tensors, which are never copied: there is no such stream,
// and nothing to wait for.
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
enum cudaMemoryType { cudaMemoryTypeUnregistered = 0 };
struct cudaPointerAttributes {
  cudaMemoryType type;
};
[[gnu::always_inline]] inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned) {
  return cudaErrorNotSupported;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned) {
  return cudaErrorNotSupported;
}
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes*, const void*) {
  return cudaErrorNotSupported;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
