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
 * without that a program that reads numbers can't be rehearsed. */
EC_API int32_t ec_cuda_program_allow_numbers(ec_cuda_program* program);

/* Describes the outputs of the last enqueued run as ec_cuda_program_plan does, but with the sizes
 * that they have got. */
EC_API int32_t ec_cuda_program_results(const ec_cuda_program* program, ec_tensor* outputs,
                                       int64_t n_outputs);

/* Says the version of cuBLASLt, 130002 for 13.0.2. Once per process the library is loaded that the
 * environment variable EDGECOMPILE_CUBLASLT names, else libcublasLt.so.13 or .12. The calling
 * thread has a current context. */
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

/* The rest runs a whole variant of a bundle: buckets, modes, graphs, texts, records of tune. The C
 * runtime has the same code (c_runtime/gpu), and Python calls it here.
 *
 * Every function may be called from any thread. One that can fail returns 0 or the exit code of the
 * error that Python raises for it, which ec_gpu_last_error describes. */
typedef struct ec_gpu_variant ec_gpu_variant;
typedef struct ec_gpu_text ec_gpu_text;
typedef struct ec_gpu_results ec_gpu_results;

/* What failed last on the calling thread; texts stay until its next failure. The message may end
 * with a line "hint: ...". name and number are CUDA's, "" and 0 if it wasn't CUDA. sticky: whether
 * every further call of this process fails the same way. */
EC_API const char* ec_gpu_last_error(const char** hint, const char** name, int32_t* number,
                                     int32_t* sticky);

/* Opens a variant: copies its weights, rehearses its programs. The descriptor of the bundle's
 * folder stays the caller's, `path` is its name in messages. Fails where manifest.json hasn't this
 * SHA-256. `choice` is a record of tune, of which "choice" and "cublaslt" are read; null: the one
 * that was made on this GPU, if any. */
EC_API int32_t ec_gpu_open(const char* path, int32_t folder, const char* manifest_sha256,
                           const char* variant, const char* mode, int32_t check_weights,
                           const char* choice, ec_gpu_variant** out);

/* Reads the record of tune for a variant on this GPU, which needn't exist: an object of JSON with
 * its "path" and "key", "content" and "device", on which these depend, and "why" it isn't used,
 * else "choice", "cublaslt" and the whole "record". It stays until the calling thread's next call.
 */
EC_API int32_t ec_gpu_read_tuning(const char* path, int32_t folder, const char* manifest_sha256,
                                  const char* variant, const char** json);

/* Takes the memory of a text: zeros. Gives it back for the next one. */
EC_API int32_t ec_gpu_take_text(ec_gpu_variant* variant, ec_gpu_text** out);
EC_API void ec_gpu_give_back(ec_gpu_variant* variant, ec_gpu_text* text);

/* Loads the program of a bucket, over the caches of a text unless that is null. */
EC_API int32_t ec_gpu_load(ec_gpu_variant* variant, ec_gpu_text* text, int64_t bucket);

/* Runs a bucket. Inputs are row-major, in the manifest's order, without the caches that a text has;
 * caches that are given are changed in place. Of each output the leading part is written that an
 * entry of `outputs` has memory for. Where entries have no memory, -1 among their sizes stands for
 * all there is; *results then owns what they are set to, row-major, and is freed by the caller. */
EC_API int32_t ec_gpu_run(ec_gpu_variant* variant, ec_gpu_text* text, int64_t bucket,
                          const ec_tensor* inputs, int64_t n_inputs, ec_tensor* outputs,
                          int64_t n_outputs, ec_gpu_results** results);
EC_API void ec_gpu_results_free(ec_gpu_results* results);

/* An object of JSON: "info", the keys of Model.info; "loaded" and "warms_largest", numbers of
 * buckets; "broken", why every further run is refused, or "". It stays until the calling thread's
 * next call; null where it fails. */
EC_API const char* ec_gpu_describe(ec_gpu_variant* variant);

/* No call may be under way. Null is allowed. */
EC_API void ec_gpu_close(ec_gpu_variant* variant);

#endif
