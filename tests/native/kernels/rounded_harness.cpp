// Products of int8 and int4 alone, for tests through ctypes: kernels_harness.cpp has the others.
#include "base/export.h"
#include "kernels/gemm/narrow/gemm_narrow.h"
#include "threads/threads.h"
#if defined(__AMX_TILE__)
#include "kernels/gemm/narrow/amx_registers.h"
#endif

using namespace ec;

EC_API void t_set_num_threads(int n) { set_num_threads(n); }
// How many tiles were multiplied so far; -1 if nobody counts.
EC_API int64_t t_products() {
#if EC_EMULATED_TILES
  return g_products.load();
#else
  return -1;
#endif
}
EC_API void t_gemm_int8(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                        const int8_t* b, int64_t panel, float* c, int64_t ldc, const Epilogue* e) {
  gemm_int8(m, n, k, a, lda, b, panel, c, ldc, *e);
}
EC_API void t_gemm_int8_pairs(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                              const int8_t* b, int64_t panel, float* c, int64_t ldc,
                              const Epilogue* e) {
  gemm_int8(m, n, k, a, lda, b, panel, c, ldc, *e, true);
}
EC_API void t_gemm_int4(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                        const uint8_t* b, int64_t panel, float* c, int64_t ldc, const Epilogue* e) {
  gemm_int4(m, n, k, a, lda, b, panel, c, ldc, *e);
}
