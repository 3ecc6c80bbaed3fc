/* The host-facing C ABI of edgecompile's native runtime library.
 *
 * Every function that can fail returns 0 for success and leaves a message for ec_last_error
 * otherwise. Nothing throws across this interface. All functions may be called from any thread. */
#ifndef EDGECOMPILE_ABI_H
#define EDGECOMPILE_ABI_H

#include <stdint.h>

#include "base/export.h"

#define EC_ABI_VERSION 1
#define EC_MAX_DIMS 8

/* One compiled model library with its constants; opaque. */
typedef struct ec_program ec_program;
/* The results of one run; opaque. */
typedef struct ec_outputs ec_outputs;

/* A borrowed description of a strided array. dtype is c10's ScalarType: uint8 0, int8 1, int16 2,
 * int32 3, int64 4, float16 5, float32 6, float64 7, bool 11, bfloat16 15. */
typedef struct {
  const char* name;
  void* data;
  int64_t nbytes; /* that may be read or written, from data */
  int32_t dtype;
  int32_t ndim; /* 0 to EC_MAX_DIMS */
  int64_t sizes[EC_MAX_DIMS];
  int64_t strides[EC_MAX_DIMS]; /* in elements, not negative */
} ec_tensor;

/* EC_ABI_VERSION of the library: compare before calling anything else. */
EC_API int32_t ec_abi_version(void);

/* What went wrong last on the calling thread. Never null; valid until the thread's next call. */
EC_API const char* ec_last_error(void);

/* Threads that kernels may use, the calling one included; 0 means all CPUs of the affinity mask. */
EC_API int32_t ec_set_num_threads(int32_t n);
EC_API int32_t ec_get_num_threads(void);

/* Threads of the runs that the calling thread starts from now on, the calling one included: they
 * compute as if so many were set for all, on a part of the cores of their own beside other runs.
 * 0: the runs are as all others. */
EC_API int32_t ec_set_run_threads(int32_t n);

/* Loads a model library (a path with a slash in it) and binds its constants, which are looked up
 * by their original names; constants that the model doesn't have are ignored, all missing or
 * misfitting ones are named in the error. The constants' memory is borrowed until
 * ec_program_close; the descriptions are not. Up to `concurrency` (>= 1) runs go on at a time,
 * further ones wait. *out is written on success only. */
EC_API int32_t ec_program_open(const char* library_path, const ec_tensor* constants,
                               int64_t n_constants, int32_t concurrency, ec_program** out);
EC_API int64_t ec_program_input_count(const ec_program* program);
EC_API int64_t ec_program_output_count(const ec_program* program);

/* Runs the model on inputs in its own order; their memory is borrowed for the call only. Inputs
 * that aren't row-major are copied first. *out is written on success only and is to be freed with
 * ec_outputs_free; it may outlive the program. */
EC_API int32_t ec_program_run(ec_program* program, const ec_tensor* inputs, int64_t n_inputs,
                              ec_outputs** out);

/* As ec_program_run, with the results written to `outputs`, in the model's order. Each describes
 * memory of the caller, of the result's dtype and number of dimensions; where a size is less than
 * the result's, the rest is left out. It must not overlap the inputs or another output. After a
 * failure it may hold anything. */
EC_API int32_t ec_program_run_into(ec_program* program, const ec_tensor* inputs, int64_t n_inputs,
                                   const ec_tensor* outputs, int64_t n_outputs);

/* As ec_program_run_into, of a language model whose caller reads the logits of some tokens only:
 * those whose byte in `wanted` isn't 0. They have the same bits as in ec_program_run_into; the
 * others may be computed or not, and mean nothing. A program that can't leave any out computes
 * all, and never reads `wanted`; another one fails where n_wanted isn't the number of logits. */
EC_API int32_t ec_program_run_masked(ec_program* program, const ec_tensor* inputs, int64_t n_inputs,
                                     const ec_tensor* outputs, int64_t n_outputs,
                                     const uint8_t* wanted, int64_t n_wanted);

EC_API int64_t ec_outputs_count(const ec_outputs* outputs);
/* Describes output i; data and name are borrowed from outputs. */
EC_API int32_t ec_outputs_get(const ec_outputs* outputs, int64_t i, ec_tensor* view);
EC_API void ec_outputs_free(ec_outputs* outputs); /* null is allowed */

/* Waits for nothing: no run may be going on. Null is allowed. */
EC_API void ec_program_close(ec_program* program);

/* Gives cached buffers back to the system. */
EC_API void ec_trim(void);

/* What the kernels of one kind did between ec_profile_begin and ec_profile_end. */
typedef struct {
  const char* kernel; /* "run" is whole runs, the others are parts of them; a static text */
  int32_t dtype;      /* of a product's weights, as in ec_tensor */
  int32_t unused;
  int64_t n, k; /* width and depth of a product, else 0 */
  int64_t calls;
  int64_t ns;       /* on the threads that called, waiting for others included */
  int64_t flops;    /* 0 where the runtime doesn't know */
  int64_t bytes;    /* operands and results, each counted once; 0 where it doesn't know */
  int64_t regions;  /* parallel regions: as often all threads meet */
  int64_t alone_ns; /* of ns, outside parallel regions */
  int64_t busy_ns;  /* of all threads together, waits left out */
} ec_profile_row;

/* Counts afresh what every thread of the process runs, until ec_profile_end; one at a time. */
EC_API void ec_profile_begin(void);
/* Writes up to `capacity` rows and returns how many there are. */
EC_API int64_t ec_profile_end(ec_profile_row* rows, int64_t capacity);

/* Measures what this machine can do at most with ec_get_num_threads() threads, for about 0.3 s:
 * single-precision operations per second on registers (a multiply-add is two), and bytes per second
 * read from memory. */
EC_API int32_t ec_measure_ceilings(double* flops, double* bytes);

/* For leak tests: tensor handles that exist, and bytes of buffers in use and kept for reuse. */
EC_API int64_t ec_live_tensors(void);
EC_API int64_t ec_live_bytes(void);
EC_API int64_t ec_cached_bytes(void);

#endif
