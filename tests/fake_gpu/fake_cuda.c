/* A fake of CUDA's driver library, for tests of edgecompile/runtime/triton and native/cuda.
 *
 * It is the fake of CUDA's runtime library under the driver's names, with modules and launches;
 * what fake_cudart.c says of itself holds here too. FAKE_CUDART_FAIL and FAKE_CUDART_DEVICE work
 * with these names: FAKE_CUDART_FAIL="cuLaunchKernel:2=700". An image is anything that begins like
 * machine code (ELF), PTX or "fake ". The kernels of fake_kernels.h compute, on the host; launches
 * of all others are counted and do nothing. */
#include "fake_cudart.c"

enum { MODULE = EXECUTABLE + 1, FUNCTION };
enum { BAD_IMAGE = 200, NO_CONTEXT = 201, NOT_FOUND = 500, ASSERTED = 710 };

#include "fake_kernels.h"

static __thread int current; /* contexts of this thread, one or none is usual */
static long launches;
static struct {
  unsigned blocks, threads, shared;
} launched[64]; /* of the first launches since the last count */
static size_t peak_bytes;

/* As ENTER, under the driver's own name; the function behind it counts under its own as well. */
#define BEGIN()                                                \
  pthread_mutex_lock(&lock);                                   \
  do {                                                         \
    int entered = enter(__func__);                             \
    if (entered == OK && !current) entered = fail(NO_CONTEXT); \
    if (entered != OK) return leave(entered);                  \
  } while (0)
#define FORWARD(name, parameters, ...) \
  int name parameters {                \
    BEGIN();                           \
    leave(OK);                         \
    return __VA_ARGS__;                \
  }

typedef unsigned long long address;

int cuInit(unsigned flags) {
  ENTER();
  if (flags != 0) return leave(fail(INVALID));
  return leave(describe_number("count", "1") > 0 ? OK : fail(NO_DEVICE));
}
int cuDriverGetVersion(int* version) { return cudaDriverGetVersion(version); }
int cuDeviceGetCount(int* count) { return cudaGetDeviceCount(count); }
int cuDeviceGet(int* device, int number) {
  ENTER();
  *device = number;
  return leave(OK);
}
int cuDeviceGetName(char* name, int size, int device) {
  ENTER();
  if (device != 0) return leave(fail(INVALID));
  describe("name", "Fake GPU", name, (size_t)size);
  return leave(OK);
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  return cudaDeviceGetAttribute(value, attribute, device);
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  ENTER();
  if (device != 0) return leave(fail(INVALID));
  *context = &launches;
  return leave(OK);
}
int cuCtxSetCurrent(void* context) {
  ENTER();
  current = context == &launches;
  return leave(current ? OK : fail(INVALID));
}
/* There is one context: what was pushed is told by how often. */
int cuCtxPushCurrent_v2(void* context) {
  ENTER();
  if (context != &launches) return leave(fail(INVALID));
  current++;
  return leave(OK);
}
int cuCtxPopCurrent_v2(void** context) {
  ENTER();
  *context = &launches;
  return leave(current-- > 0 ? OK : fail(INVALID));
}
int cuGetErrorName(int number, const char** text) {
  static const char* const names[][2] = {{"1", "CUDA_ERROR_INVALID_VALUE"},
                                         {"2", "CUDA_ERROR_OUT_OF_MEMORY"},
                                         {"100", "CUDA_ERROR_NO_DEVICE"},
                                         {"200", "CUDA_ERROR_INVALID_IMAGE"},
                                         {"201", "CUDA_ERROR_INVALID_CONTEXT"},
                                         {"209", "CUDA_ERROR_NO_BINARY_FOR_GPU"},
                                         {"222", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
                                         {"700", "CUDA_ERROR_ILLEGAL_ADDRESS"},
                                         {"710", "CUDA_ERROR_ASSERT"},
                                         {"719", "CUDA_ERROR_LAUNCH_FAILED"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (atoi(names[i][0]) == number) return *text = names[i][1], OK;
  *text = "CUDA_ERROR_OF_THE_FAKE";
  return OK;
}
int cuGetErrorString(int number, const char** text) {
  *text = cudaGetErrorString(number);
  return OK;
}

FORWARD(cuMemGetInfo_v2, (size_t* free_bytes, size_t* total), cudaMemGetInfo(free_bytes, total))
FORWARD(cuMemFree_v2, (address target), cudaFree(P(target)))
FORWARD(cuMemHostAlloc, (void** p, size_t size, unsigned flags), cudaHostAlloc(p, size, flags))
FORWARD(cuMemHostGetDevicePointer_v2, (void** target, void* p, unsigned flags),
        cudaHostGetDevicePointer(target, p, flags))
FORWARD(cuMemFreeHost, (void* p), cudaFreeHost(p))
FORWARD(cuMemcpyHtoDAsync_v2, (address to, const void* from, size_t size, void* stream),
        cudaMemcpyAsync(P(to), from, size, 1, stream))
FORWARD(cuMemcpyDtoHAsync_v2, (void* to, address from, size_t size, void* stream),
        cudaMemcpyAsync(to, P(from), size, 2, stream))
FORWARD(cuMemcpyDtoDAsync_v2, (address to, address from, size_t size, void* stream),
        cudaMemcpyAsync(P(to), P(from), size, 3, stream))
FORWARD(cuMemsetD8Async, (address target, unsigned char value, size_t size, void* stream),
        cudaMemsetAsync(P(target), value, size, stream))
FORWARD(cuStreamCreate, (void** stream, unsigned flags), cudaStreamCreateWithFlags(stream, flags))
FORWARD(cuStreamDestroy_v2, (void* stream), cudaStreamDestroy(stream))
FORWARD(cuStreamSynchronize, (void* stream), cudaStreamSynchronize(stream))
FORWARD(cuStreamBeginCapture_v2, (void* stream, int mode), cudaStreamBeginCapture(stream, mode))
/* Whatever it returns, the stream records no longer. */
int cuStreamEndCapture(void* stream, void** graph) {
  pthread_mutex_lock(&lock);
  int entered = leave(enter(__func__));
  int number = cudaStreamEndCapture(stream, graph);
  if (entered == OK) return number;
  if (*graph != NULL) cudaGraphDestroy(*graph);
  *graph = NULL;
  return entered;
}
FORWARD(cuGraphInstantiateWithFlags, (void** made, void* graph, unsigned long long flags),
        cudaGraphInstantiateWithFlags(made, graph, flags))
FORWARD(cuGraphLaunch, (void* graph, void* stream), cudaGraphLaunch(graph, stream))
FORWARD(cuGraphExecDestroy, (void* graph), cudaGraphExecDestroy(graph))
FORWARD(cuGraphDestroy, (void* graph), cudaGraphDestroy(graph))

int cuMemAlloc_v2(address* target, size_t size) {
  BEGIN();
  leave(OK);
  if (size == 0) return INVALID;
  void* p = NULL;
  int number = cudaMalloc(&p, size);
  *target = (address)(uintptr_t)p;
  pthread_mutex_lock(&lock);
  if (used() > peak_bytes) peak_bytes = used();
  return leave(number);
}

/* From any memory of the host, unlike copies in a stream. */
int cuMemcpyHtoD_v2(address to, const void* from, size_t size) {
  BEGIN();
  if (forbidden()) return leave(fail(UNSUPPORTED));
  if (!reaches(1, P(to), size)) return leave(fail(INVALID));
  memcpy(P(to), from, size);
  return leave(OK);
}

/* To any memory of the host. Whatever streams have queued goes on meanwhile. */
int cuMemcpyDtoH_v2(void* to, address from, size_t size) {
  BEGIN();
  if (forbidden()) return leave(fail(UNSUPPORTED));
  if (!reaches(1, P(from), size)) return leave(fail(INVALID));
  memcpy(to, P(from), size);
  return leave(OK);
}

/* Launches of kernels that compute. */
#define MOST_ARGUMENTS 8
typedef struct call {
  void (*run)(const uint64_t*);
  uint64_t arguments[MOST_ARGUMENTS];
  struct call* before;
} call;
static call* calls;

int cuModuleLoadDataEx(void** module, const void* image, unsigned count, int* options,
                       void** values) {
  BEGIN();
  if (memcmp(image, "\177ELF", 4) != 0 && memcmp(image, "//", 2) != 0 &&
      memcmp(image, ".version", 8) != 0 && memcmp(image, "fake ", 5) != 0) {
    for (unsigned i = 0; i < count; i++) /* the error log's buffer */
      if (options[i] == 5) strcpy(values[i], "the fake knows no such image");
    return leave(fail(BAD_IMAGE));
  }
  *module = add(MODULE);
  return leave(OK);
}

int cuModuleUnload(void* module) {
  ENTER();
  object* item = find(module, MODULE);
  if (item == NULL) return leave(fail(BAD_HANDLE));
  for (object* next = objects; next != NULL;) {
    object* function = next;
    next = next->next;
    if (function->kind == FUNCTION && function->alias == (char*)item) drop(function);
  }
  drop(item);
  return leave(OK);
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  BEGIN();
  if (find(module, MODULE) == NULL) return leave(fail(BAD_HANDLE));
  if (strcmp(name, "missing") == 0) return leave(fail(NOT_FOUND));
  object* made = add(FUNCTION);
  made->alias = module;
  made->size = sizeof kernels / sizeof *kernels;
  for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
    if (strcmp(kernels[i].name, name) == 0) made->size = i;
  *function = made;
  return leave(OK);
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
  BEGIN();
  if (find(function, FUNCTION) == NULL || attribute != 8 || value < 0 || value > 233472)
    return leave(fail(INVALID));
  return leave(OK);
}

static void run_call(void* context) {
  const call* made = context;
  made->run(made->arguments);
}

int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void* stream, void** arguments, void** extra) {
  BEGIN();
  object* item = find(function, FUNCTION);
  if (item == NULL) return leave(fail(BAD_HANDLE));
  if (!gx || !gy || !gz || !bx || !by || !bz || bx > 1024 || shared > 233472 || extra != NULL)
    return leave(fail(INVALID));
  if (launches < 64) {
    launched[launches].blocks = gx;
    launched[launches].threads = bx;
    launched[launches].shared = shared;
  }
  launches++;
  if (item->size >= sizeof kernels / sizeof *kernels) return leave(OK);
  call* made = calloc(1, sizeof *made); /* kept: a graph may run it at any time */
  made->before = calls;
  calls = made;
  made->run = kernels[item->size].run;
  for (int i = 0; i < kernels[item->size].arguments; i++)
    memcpy(&made->arguments[i], arguments[i], sizeof made->arguments[i]);
  op step = {.function = run_call, .context = made};
  return leave(enqueue(stream, step));
}

/* CUlaunchConfig and CUlaunchAttribute. */
typedef struct {
  unsigned grid[3], block[3], shared;
  void* stream;
  const struct {
    int id, zero, value, rest[15];
  }* attributes;
  unsigned count;
} launch_config;

int cuLaunchKernelEx(const launch_config* asked, void* function, void** arguments, void** extra) {
  BEGIN();
  if (asked->count != 1 || asked->attributes->id != 6 || asked->attributes->value != 1)
    return leave(fail(INVALID));
  leave(OK);
  return cuLaunchKernel(function, asked->grid[0], asked->grid[1], asked->grid[2], asked->block[0],
                        asked->block[1], asked->block[2], asked->shared, asked->stream, arguments,
                        extra);
}

/* Of a launch since the last count, one of the first 64: blocks, threads of each, and bytes of
 * shared memory. */
void fake_cuda_launched(long number, unsigned* out) {
  pthread_mutex_lock(&lock);
  out[0] = launched[number].blocks;
  out[1] = launched[number].threads;
  out[2] = launched[number].shared;
  leave(OK);
}

/* Kernel launches since the last call. */
long fake_cuda_launches(void) {
  pthread_mutex_lock(&lock);
  long count = launches;
  launches = 0;
  leave(OK);
  return count;
}

/* Most bytes that were allocated at one time since the last call. */
size_t fake_cuda_peak_bytes(void) {
  pthread_mutex_lock(&lock);
  size_t most = peak_bytes;
  peak_bytes = 0;
  leave(OK);
  return most;
}
