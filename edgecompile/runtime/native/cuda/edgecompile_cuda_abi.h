/* The C ABI of edgecompile's runtime library for CUDA, as Python's loader uses it.
 *
 * Every function that can fail returns 0 for success and leaves a message for ec_last_error and,
 * where the driver reported it, CUDA's number for ec_cuda_last_error. Nothing throws across this
 * interface. A program is used by one thread at a time; different ones by several. Addresses are
 * the GPU's. The caller makes the GPU's primary context current on its thread before
 * ec_cuda_program_load, _enqueue and _close. */
#ifndef EDGECOMPILE_CUDA_ABI_H
#define EDGECOMPILE_CUDA_ABI_H

#include <stdint.h>

#include "base/edgecompile_abi.h"

#define EC_CUDA_ABI_VERSION 1

/* One compiled library for one bucket; opaque. */
typedef struct ec_cuda_program ec_cuda_program;

/* EC_CUDA_ABI_VERSION of the library: compare before calling anything else. */
EC_API int32_t ec_cuda_abi_version(void);

/* CUDA's number (CUresult) of what failed last on the calling thread, 0 if it wasn't CUDA. */
EC_API int32_t ec_cuda_last_error(void);

/* Loads the driver, such as "libcuda.so.1", once per process. */
EC_API int32_t ec_cuda_load_driver(const char* path);

/* Loads a program's library (a path with a slash in it) and binds its constants as ec_program_open
 * does, at addresses of the GPU. The GPU isn't used. *out is written on success only. */
EC_API int32_t ec_cuda_program_open(const char* library_path, const ec_tensor* constants,
                                    int64_t n_constants, ec_cuda_program** out);
EC_API int64_t ec_cuda_program_input_count(const ec_cuda_program* program);
EC_API int64_t ec_cuda_program_output_count(const ec_cuda_program* program);

/* Rehearses a run of inputs of these types and sizes (data is ignored) without the GPU: describes
 * the outputs (data null, row-major) and tells the bytes of scratch memory and the number of
 * launches. The next runs are of these sizes. A rehearsal of smaller sizes than those of the first
 * one takes no more scratch memory, unless the program then asks for memory in another order.
 *
 * Where a program reads numbers from the GPU that sizes depend on, outputs have the largest sizes
 * that they may get, and scratch memory is for these. */
EC_API int32_t ec_cuda_program_plan(ec_cuda_program* program, const ec_tensor* inputs,
                                    int64_t n_inputs, ec_tensor* outputs, int64_t n_outputs,
                                    int64_t* scratch_bytes, int64_t* launches);

/* Readies every kernel that was met in rehearsals, for a GPU of a compute capability (87 is 8.7).
 */
EC_API int32_t ec_cuda_program_load(ec_cuda_program* program, int32_t capability);

/* Queues a run on a stream; it allocates nothing on the GPU. It doesn't wait, unless the program
 * reads numbers: then no graph can be captured of it. Inputs and outputs are addresses, multiples
 * of 256, in the model's order. */
EC_API int32_t ec_cuda_program_enqueue(ec_cuda_program* program, const uint64_t* inputs,
                                       int64_t n_inputs, const uint64_t* outputs, int64_t n_outputs,
                                       uint64_t scratch, int64_t scratch_bytes, void* stream);

/* Says that the caller captures no graphs of the program, and asks for its results after each run:
 * without that a program that reads numbers can't be rehearsed. Libraries of older bundles, whose
 * programs read none, lack this function and the next one. */
EC_API int32_t ec_cuda_program_allow_numbers(ec_cuda_program* program);

/* Describes the outputs of the last enqueued run as ec_cuda_program_plan does, but with the sizes
 * that they have got. */
EC_API int32_t ec_cuda_program_results(const ec_cuda_program* program, ec_tensor* outputs,
                                       int64_t n_outputs);

/* Says the version of cuBLASLt, 130002 for 13.0.2. Once per process the library is loaded that the
 * environment variable EDGECOMPILE_CUBLASLT names, else libcublasLt.so.13 or .12. The calling
 * thread has a current context. Libraries of older bundles lack this function and the next ones. */
EC_API int32_t ec_cuda_cublaslt_version(int64_t* version);

/* How many products the program has that cuBLASLt may compute, as its rehearsals met them, and the
 * rows that each had in the last one. */
EC_API int64_t ec_cuda_program_products(const ec_cuda_program* program, int64_t* rows,
                                        int64_t n_rows);

/* Lets cuBLASLt compute the product of number i where it has from[i] rows or more, and never where
 * that is negative. It is loaded when a run first wants it. Where that fails, where it is of
 * another version or refuses a product, Triton's kernels compute as without it. What rehearsals
 * tell of scratch memory includes cuBLASLt's: this comes before them. */
EC_API int32_t ec_cuda_program_use_cublaslt(ec_cuda_program* program, int64_t version,
                                            const int64_t* from, int64_t n_from);

/* Why Triton's kernels compute what cuBLASLt was to, "" if nothing failed so far. Any thread may
 * ask. */
EC_API const char* ec_cuda_program_cublaslt_failure(const ec_cuda_program* program);

/* No run may be under way. Null is allowed. */
EC_API void ec_cuda_program_close(ec_cuda_program* program);

#endif
