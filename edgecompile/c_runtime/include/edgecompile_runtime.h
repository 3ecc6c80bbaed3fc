/* edgecompile's C runtime: opens a bundle and runs it, without Python.
 *
 * Link with libedgecompile_runtime.so, or compile the sources that lie beside this header into your
 * program (docs/c-runtime.md). It needs Linux, a C library, and nothing else.
 *
 * Status. A function that can fail returns ECR_OK or the exit code that edgecompile's command line
 * would end with for the same cause; ecr_last_error then has the text. Nothing is thrown or aborted
 * across this interface, and what is written through an out-pointer is written on success only.
 *
 * Threads. Every function may be called from any thread, also for the same model at once. A call
 * that comes after ecr_close is refused with ECR_CLOSED; handles are numbers that are never used
 * again, so this holds however late it comes. Fork while no call is under way.
 *
 * Ownership. Whoever is named with a pointer frees it. "Borrowed" means: not freed by the receiver,
 * and not used by it after the moment that is named. */
#ifndef EDGECOMPILE_RUNTIME_H
#define EDGECOMPILE_RUNTIME_H

#include <stdint.h>

#if defined(__GNUC__)
#define ECR_API __attribute__((visibility("default")))
#else
#define ECR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. ecr_open compares it with the library's. */
#define ECR_ABI_VERSION 2
/* The name of this macro in headers before 0.2. */
#define EC_HOST_ABI_VERSION ECR_ABI_VERSION
#define ECR_MAX_DIMS 8

/* Status codes. */
enum {
  ECR_OK = 0,
  ECR_MODE = 17,    /* the bundle can't be run in the mode that was asked for */
  ECR_NO_GPU = 19,  /* the variant is for a GPU, and the driver or a GPU that fits is missing */
  ECR_BUNDLE = 20,  /* the bundle is missing, malformed or inconsistent */
  ECR_VERSION = 21, /* its format is one that this library doesn't know */
  ECR_DAMAGED = 22, /* a file of it is missing, truncated or differs from its hash */
  ECR_HOST = 23,    /* no variant of it can run on this CPU or system */
  ECR_INPUT = 24,   /* an input or argument is missing, unknown or of the wrong kind, size, value */
  ECR_OUTSIDE = 25, /* the inputs' sizes lie outside every bucket */
  ECR_NATIVE = 26,  /* native code failed, or could not be loaded */
  ECR_CLOSED = 28,  /* the model is closed, or the handle never was one */
  ECR_GPU = 29,     /* CUDA failed; the text has its name and number */
  ECR_LOADER = 67,  /* a variant fits this machine, but needs torch, which takes Python */
  ECR_FILES = 69,   /* this process, or the system, has as many files open as it may */
  ECR_INTERNAL = 70,   /* a bug in this library */
  ECR_PERMISSION = 71, /* this user may not read a file of the bundle */
  ECR_NOEXEC = 72,     /* the system doesn't let code run from where the bundle is */
  ECR_MEMORY = 73,     /* there isn't the memory or address space, or a limit on it is too small */
  ECR_UNSIGNED = 75,   /* this device wants signatures, and the bundle has none */
  ECR_UNTRUSTED = 76,  /* too few trusted keys signed it, or the trust folder can't be used */
  ECR_REFUSED = 77,    /* the trust folder refuses this bundle, or releases as old as it */
  ECR_EXPIRED = 78,    /* its release has expired */
  ECR_NO_CRYPTO = 79,  /* there is no libcrypto that could check signatures */
};

/* Element types; the numbers are c10::ScalarType's. */
enum {
  ECR_UINT8 = 0,
  ECR_INT8 = 1,
  ECR_INT16 = 2,
  ECR_INT32 = 3,
  ECR_INT64 = 4,
  ECR_FLOAT16 = 5,
  ECR_FLOAT32 = 6,
  ECR_FLOAT64 = 7,
  ECR_BOOL = 11,     /* one byte, 0 or 1 */
  ECR_BFLOAT16 = 15, /* of a language model's caches alone */
};

/* Which files are hashed before they are used; code always is. */
enum {
  ECR_VERIFY_AUTO = 0, /* also the weights */
  ECR_VERIFY_FAST = 1, /* nothing else: for storage that is verified otherwise */
  ECR_VERIFY_FULL = 2, /* every file of the bundle, which may hold no others */
};

/* An open bundle; opaque. */
typedef struct ecr_model ecr_model;

/* A stream of runs of a model with state; opaque. */
typedef struct ecr_stream ecr_stream;

/* A row-major array without gaps. */
typedef struct {
  const char* name; /* of the input or output, UTF-8 */
  const void* data; /* any alignment */
  int64_t nbytes;   /* of data: what dtype and sizes say */
  int32_t dtype;
  int32_t ndim; /* 0 to ECR_MAX_DIMS */
  int64_t sizes[ECR_MAX_DIMS];
} ecr_tensor;

/* The outputs of one run, in the order of the model. The library owns them, all their memory, until
 * ecr_outputs_free; they may outlive the model. */
typedef struct {
  int64_t count;
  const ecr_tensor* tensors;
} ecr_outputs;

/* How to open a bundle; all zero is the default. */
typedef struct {
  /* Threads of one run, 1 to 4096. 0 leaves the number as it is, at first all CPUs that the process
   * may use. Models with the same native runtime library share its threads, so the last number
   * given holds for all of them. */
  int32_t threads; /* of a CPU */
  /* Runs of one bucket that may be under way at once, 1 to 4096; further ones wait. 0: up to 4, no
   * more than the CPUs. A GPU runs one at a time. */
  int32_t concurrency;
  int32_t verify; /* ECR_VERIFY_... */
  /* 0: every bucket's program is loaded and run once by ecr_open. 1: at its first use. */
  int32_t lazy;
  /* The variant to use instead of the best one. Null: the environment variable
   * EDGECOMPILE_VARIANT, or the best one. Borrowed for the call. */
  const char* variant;
  /* How a GPU runs: "planned" replays a CUDA graph in buckets of one shape, as padded ones are, and
   * queues the runs of others; "default" queues every run; "reduce-overhead" pads each bucket to
   * its upper end and replays graphs only. Null: the environment variable EDGECOMPILE_MODE, or
   * "planned". A CPU has one mode. Borrowed for the call. */
  const char* mode;
  /* "cpu": take the best variant for the CPU where the GPU's can't be used; ecr_describe says why.
   * Null: the environment variable EDGECOMPILE_FALLBACK, or none: then that is an error. Borrowed
   * for the call. */
  const char* fallback;
} ecr_options;

/* What one input takes or one output gives. */
typedef struct {
  const char* name;
  int32_t dtype;
  int32_t ndim;
  /* Smallest and largest size of each dimension; 0 and -1 where an output's size is of no axis. Not
   * every combination needs to be in a bucket. */
  int64_t least[ECR_MAX_DIMS];
  int64_t most[ECR_MAX_DIMS];
} ecr_spec;

/* What a program has to know of a model; ecr_describe tells more. */
typedef struct {
  const char* name;    /* of the model */
  const char* variant; /* that was chosen */
  int32_t n_inputs;
  int32_t n_outputs;
  int32_t n_buckets;
  int32_t reserved;
  const ecr_spec* inputs;
  const ecr_spec* outputs;
  /* An output agrees with what eager PyTorch gave if |got - want| <= atol + rtol * max|want|. */
  double atol;
  double rtol;
  double min_cosine; /* and if the cosine of both isn't less than this; -1: any */
} ecr_signature;

/* ECR_ABI_VERSION of the library. */
ECR_API int32_t ecr_abi_version(void);

/* Why the calling thread's last failing call failed: what, where, the numbers, and the cure on a
 * line that begins with "hint: ". Never null. Borrowed until this thread's next failing call. */
ECR_API const char* ecr_last_error(void);

/* Opens the bundle in the folder `path`: checks the manifest and the files, asks the CPU and the
 * GPU what they can do, takes the best variant, maps the weights or copies them to the GPU, and
 * runs every program once. No library of it is loaded before its SHA-256 was compared. Options may
 * be null. Close the model with ecr_close. Call ecr_open, which passes the version that you compile
 * with. */
ECR_API int32_t ecr_open_versioned(int32_t abi_version, const char* path,
                                   const ecr_options* options, ecr_model** model);
static inline int32_t ecr_open(const char* path, const ecr_options* options, ecr_model** model) {
  return ecr_open_versioned(ECR_ABI_VERSION, path, options, model);
}

/* Writes what was opened as JSON (ASCII): name, inputs, outputs, axes, buckets, tolerance, the
 * variant that was chosen, why the others weren't ("refused_variants"), threads, the host. Free the
 * text with ecr_text_free. */
ECR_API int32_t ecr_describe(ecr_model* model, char** json_text);
ECR_API void ecr_text_free(char* json_text); /* null is allowed */

/* The same in short, for programs without a JSON parser. Its pointers are borrowed until
 * ecr_close. */
ECR_API int32_t ecr_get_signature(ecr_model* model, ecr_signature* signature);

/* Runs the model once. The inputs may come in any order; integers and booleans are widened to the
 * input's integer type where every value fits. An input that has a default, as attention masks do
 * (ecr_describe: "default"), may be left out. They are borrowed for the call and only read, except
 * a generative model's caches (ecr_describe: "generation"): it changes these in place, so their
 * data must be writable and aligned, and no other call may use them meanwhile. Where all of them
 * are left out, the model uses its own, which stay where it runs, on a GPU too: one text for each
 * open model. Its position may be any row up to the one behind those that were written; 0 begins
 * another text. Such runs of one model take turns. Free the outputs with ecr_outputs_free. */
ECR_API int32_t ecr_run(ecr_model* model, const ecr_tensor* inputs, int64_t n_inputs,
                        ecr_outputs** outputs);

/* The same with the program of one bucket, which must take these sizes, even where another one
 * would be chosen: for self-tests. */
ECR_API int32_t ecr_run_bucket(ecr_model* model, int32_t bucket, const ecr_tensor* inputs,
                               int64_t n_inputs, ecr_outputs** outputs);
ECR_API void ecr_outputs_free(ecr_outputs* outputs); /* null is allowed */

/* Begins a stream of runs: outputs that are the state (ecr_describe: "state") are inputs of the
 * next run, without a copy, on a GPU through the host's memory. A model may have any number of
 * streams; each is one thread's at a time, and a second one is refused with ECR_INPUT. Close the
 * stream with ecr_stream_close, before or after the model. */
ECR_API int32_t ecr_stream_open(ecr_model* model, ecr_stream** stream);

/* As ecr_run, with all inputs but the state, and all outputs but the state. After an error the
 * state is what it was before. */
ECR_API int32_t ecr_stream_run(ecr_stream* stream, const ecr_tensor* inputs, int64_t n_inputs,
                               ecr_outputs** outputs);

/* Sets the state back to what it was at first. */
ECR_API int32_t ecr_stream_reset(ecr_stream* stream);
ECR_API void ecr_stream_close(ecr_stream* stream); /* null and closed ones are allowed */

/* Waits for calls under way and frees the model. Null and closed models are allowed. */
ECR_API void ecr_close(ecr_model* model);

#ifdef __cplusplus
}
#endif

#endif
