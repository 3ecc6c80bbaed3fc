/* A fake of CUDA's runtime library, for tests of edgecompile/runtime/gpu/cuda.py and what uses it.
 *
 * It computes nothing and is no GPU. "Device" memory is ordinary memory that is kept track of. What
 * is queued on a stream is done only when somebody waits for the stream, so a forgotten wait shows
 * as stale data; capture records instead. It is stricter than CUDA where a loader should be: copies
 * only take memory that it gave out, at most as much as was given.
 *
 * FAKE_CUDART_FAIL="cudaMalloc:3,cudaGraphLaunch:1=700" makes the third call of one function and
 * the first of another fail, the latter with error 700. FAKE_CUDART_DEVICE="name=Orin;cc=8.7;sm=8;
 * memory=8000000000;integrated=1;driver=12060;runtime=12060" describes the GPU; count=0 is none.
 *
 * Functions that begin with fake_cudart_ aren't CUDA's. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef void (*host_call)(void*);
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, BAD_HANDLE = 400 };
enum { UNSUPPORTED = 900, INVALIDATED = 901, UNMATCHED = 903, WRONG_THREAD = 908, FAULT = 700 };
enum { DEVICE, HOST, STREAM, GRAPH, EXECUTABLE };
enum { MISUSED = 1, SPOILT }; /* why a capture is broken: by its caller, or by fake_cudart_spoil */

typedef struct op {
  void* target;
  const void* source;
  size_t size;
  int copies; /* cudaMemcpyKind, 0 for a call */
  host_call function;
  void* context;
  struct op* next;
} op;

typedef struct {
  op *first, **last;
} queue;

/* Memory, a stream or a graph: whatever has to be given back. */
typedef struct object {
  int kind;
  char *address, *alias; /* of memory; alias is how the device sees memory of the host */
  size_t size;
  queue ops;      /* waiting in a stream, or recorded in a graph */
  queue recorded; /* by a stream that captures */
  int capturing, broken, capture_mode;
  pthread_t capturer;
  pthread_mutex_t draining;
  struct object* next;
} object;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static object* objects;
static int sticky, last_error, misuses;
static pid_t owner;

static struct {
  char name[64];
  long calls;
} counters[64];

static const struct {
  int number;
  const char *name, *text;
} errors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {35, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {903, "cudaErrorStreamCaptureUnmatched", "capture was not initiated in this stream"},
    {908, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {999, "cudaErrorUnknown", "unknown error"},
};

static int fail(int number) {
  last_error = number;
  if (number >= 700 && number < 800) sticky = number;
  if (number != NO_MEMORY && number != NOT_INITIALIZED && number != NO_DEVICE) misuses++;
  return number;
}

/* The error that FAKE_CUDART_FAIL wants of this call, or 0. */
static int wanted_failure(const char* name, long call) {
  const char* text = getenv("FAKE_CUDART_FAIL");
  size_t length = strlen(name);
  for (; text != NULL && *text != 0; text = strchr(text, ',') ? strchr(text, ',') + 1 : NULL) {
    if (strncmp(text, name, length) != 0 || text[length] != ':') continue;
    char* end;
    if (strtol(text + length + 1, &end, 10) != call) continue;
    if (*end == '=') return (int)strtol(end + 1, NULL, 10);
    if (strcmp(name, "cudaMalloc") == 0 || strcmp(name, "cudaHostAlloc") == 0) return NO_MEMORY;
    return strcmp(name, "cudaStreamSynchronize") == 0 ? 719 : INVALID;
  }
  return OK;
}

/* Counts the call; what it has to fail with before anything else, or 0. The lock is held. */
static int enter(const char* name) {
  if (owner == 0) owner = getpid();
  if (owner != getpid()) return fail(NOT_INITIALIZED);
  size_t i = 0;
  while (i < 63 && counters[i].name[0] != 0 && strcmp(counters[i].name, name) != 0) i++;
  snprintf(counters[i].name, sizeof counters[i].name, "%s", name);
  counters[i].calls++;
  if (sticky) return sticky;
  int number = wanted_failure(name, counters[i].calls);
  if (number == OK) return OK;
  last_error = number;
  if (number >= 700 && number < 800) sticky = number;
  return number;
}

#define ENTER()                               \
  pthread_mutex_lock(&lock);                  \
  do {                                        \
    int entered = enter(__func__);            \
    if (entered != OK) return leave(entered); \
  } while (0)

static int leave(int number) {
  pthread_mutex_unlock(&lock);
  return number;
}

/* What FAKE_CUDART_DEVICE says under a name, as a copy at `target`; the default otherwise. */
static const char* describe(const char* key, const char* otherwise, char* target, size_t size) {
  const char* text = getenv("FAKE_CUDART_DEVICE");
  size_t length = strlen(key);
  for (; text != NULL && *text != 0; text = strchr(text, ';') ? strchr(text, ';') + 1 : NULL) {
    if (strncmp(text, key, length) != 0 || text[length] != '=') continue;
    snprintf(target, size, "%.*s", (int)strcspn(text + length + 1, ";"), text + length + 1);
    return target;
  }
  snprintf(target, size, "%s", otherwise);
  return target;
}

static long long describe_number(const char* key, const char* otherwise) {
  char text[64];
  return strtoll(describe(key, otherwise, text, sizeof text), NULL, 10);
}

static object* add(int kind) {
  object* item = calloc(1, sizeof *item);
  item->kind = kind;
  item->ops.last = &item->ops.first;
  item->recorded.last = &item->recorded.first;
  pthread_mutex_init(&item->draining, NULL);
  item->next = objects;
  objects = item;
  return item;
}

static object* find(const void* handle, int kind) {
  for (object* item = objects; item != NULL; item = item->next) {
    int memory = kind == DEVICE || kind == HOST;
    if (item->kind == kind && (memory ? (void*)item->address : (void*)item) == handle) return item;
  }
  return NULL;
}

static void clear(queue* ops) {
  while (ops->first != NULL) {
    op* next = ops->first->next;
    free(ops->first);
    ops->first = next;
  }
  ops->last = &ops->first;
}

static void push(queue* ops, op item) {
  op* copy = malloc(sizeof *copy);
  *copy = item;
  copy->next = NULL;
  *ops->last = copy;
  ops->last = &copy->next;
}

static void drop(object* item) {
  object** place = &objects;
  while (*place != item) place = &(*place)->next;
  *place = item->next;
  clear(&item->ops);
  clear(&item->recorded);
  if (item->kind == DEVICE) free(item->address);
  if (item->kind == HOST) {
    munmap(item->address, item->size);
    munmap(item->alias, item->size);
  }
  free(item);
}

static int inside(const char* start, size_t length, const void* address, size_t size) {
  uintptr_t first = (uintptr_t)start, wanted = (uintptr_t)address;
  return start != NULL && wanted >= first && size <= length && wanted - first <= length - size;
}

/* Whether the device, or the host, may use this memory. Of mapped memory each has its own address,
 * although with CUDA they are mostly equal: so a mixture of them is found. */
static int reaches(int device, const void* address, size_t size) {
  for (object* item = objects; item != NULL; item = item->next) {
    if (item->kind == DEVICE && device && inside(item->address, item->size, address, size))
      return 1;
    if (item->kind == HOST &&
        inside(device ? item->alias : item->address, item->size, address, size))
      return 1;
  }
  return 0;
}

static int copies_well(const op* item) {
  return reaches(item->copies != 2, item->target, item->size) &&
         reaches(item->copies != 1, item->source, item->size);
}

/* Does what is queued; the lock is held, but not while a call is made. */
static void drain(object* stream) {
  for (;;) {
    op* item = stream->ops.first;
    if (item == NULL || sticky) return;
    stream->ops.first = item->next;
    if (item->next == NULL) stream->ops.last = &stream->ops.first;
    if (item->copies == 0) {
      pthread_mutex_unlock(&lock);
      item->function(item->context);
      pthread_mutex_lock(&lock);
    } else if (copies_well(item)) {
      memmove(item->target, item->source, item->size);
    } else {
      fail(FAULT); /* freed since it was queued */
    }
    free(item);
  }
}

/* Waits until a stream is empty, whoever else does. The lock is held before and after. */
static void finish(object* stream) {
  pthread_mutex_t* draining = &stream->draining;
  pthread_mutex_unlock(&lock);
  pthread_mutex_lock(draining);
  pthread_mutex_lock(&lock);
  drain(stream);
  pthread_mutex_unlock(draining);
}

static void finish_all(void) {
  object* item = objects;
  while (item != NULL && !sticky) {
    if (item->kind == STREAM && item->ops.first != NULL) {
      finish(item);
      item = objects; /* the list may have changed meanwhile */
    } else {
      item = item->next;
    }
  }
}

/* Whether a capture forbids calls that might wait, such as allocating; if so it is spoilt. */
static int forbidden(void) {
  int found = 0;
  for (object* item = objects; item != NULL; item = item->next) {
    if (!item->capturing || item->capture_mode == 2) continue;
    if (item->capture_mode == 1 && !pthread_equal(item->capturer, pthread_self())) continue;
    item->broken = MISUSED;
    found = 1;
  }
  return found;
}

static int enqueue(void* handle, op item) {
  object* stream = find(handle, STREAM);
  if (stream == NULL) return fail(BAD_HANDLE);
  if (stream->capturing && stream->broken == SPOILT) return INVALIDATED;
  push(stream->capturing ? &stream->recorded : &stream->ops, item);
  return OK;
}

int cudaGetLastError(void) {
  pthread_mutex_lock(&lock);
  int number = sticky ? sticky : last_error;
  last_error = OK;
  return leave(number);
}

const char* cudaGetErrorName(int number) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].number == number) return errors[i].name;
  return "unrecognized error code";
}

const char* cudaGetErrorString(int number) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].number == number) return errors[i].text;
  return "unrecognized error code";
}

int cudaDriverGetVersion(int* version) {
  ENTER();
  *version = (int)describe_number("driver", "12060");
  return leave(OK);
}

int cudaRuntimeGetVersion(int* version) {
  ENTER();
  *version = (int)describe_number("runtime", "12060");
  return leave(OK);
}

int cudaGetDeviceCount(int* count) {
  ENTER();
  *count = (int)describe_number("count", "1");
  return leave(*count > 0 ? OK : fail(NO_DEVICE));
}

int cudaGetDevice(int* device) {
  ENTER();
  *device = 0;
  return leave(OK);
}

int cudaGetDeviceProperties(void* properties, int device) {
  ENTER();
  if (device != 0) return leave(fail(INVALID));
  memset(properties, 0, 1032);
  describe("name", "Fake GPU", properties, 256);
  return leave(OK);
}

int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  ENTER();
  if (device != 0) return leave(fail(INVALID));
  char text[64];
  describe("cc", "8.7", text, sizeof text);
  switch (attribute) {
    case 16:
      *value = (int)describe_number("sm", "8");
      break;
    case 18:
      *value = (int)describe_number("integrated", "0");
      break;
    case 19:
      *value = 1;
      break;
    case 75:
      *value = atoi(text);
      break;
    case 76:
      *value = strchr(text, '.') ? atoi(strchr(text, '.') + 1) : 0;
      break;
    default:
      return leave(fail(INVALID));
  }
  return leave(OK);
}

static size_t used(void) {
  size_t sum = 0;
  for (object* item = objects; item != NULL; item = item->next)
    if (item->kind == DEVICE || item->kind == HOST) sum += item->size;
  return sum;
}

int cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  ENTER();
  *total = (size_t)describe_number("memory", "8000000000");
  *free_bytes = *total - used();
  return leave(OK);
}

int cudaMalloc(void** address, size_t size) {
  ENTER();
  if (forbidden()) return leave(fail(UNSUPPORTED));
  *address = NULL;
  if (size == 0) return leave(OK);
  if (used() + size > (size_t)describe_number("memory", "8000000000"))
    return leave(fail(NO_MEMORY));
  object* item = add(DEVICE);
  item->size = size;
  item->address = aligned_alloc(256, (size + 255) / 256 * 256);
  memset(item->address, 0xCB, size); /* so that nobody relies on zeros */
  *address = item->address;
  return leave(OK);
}

int cudaFree(void* address) {
  ENTER();
  if (forbidden()) return leave(fail(UNSUPPORTED));
  if (address == NULL) return leave(OK);
  object* item = find(address, DEVICE);
  if (item == NULL) return leave(fail(INVALID));
  finish_all();
  drop(item);
  return leave(OK);
}

int cudaHostAlloc(void** address, size_t size, unsigned flags) {
  ENTER();
  if (forbidden()) return leave(fail(UNSUPPORTED));
  if (size == 0 || flags > 7) return leave(fail(INVALID));
  if (used() + size > (size_t)describe_number("memory", "8000000000"))
    return leave(fail(NO_MEMORY));
  int file = memfd_create("fake_cudart", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, (off_t)size) != 0) return leave(fail(NO_MEMORY));
  char* own = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  char* alias = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (own == MAP_FAILED || alias == MAP_FAILED) return leave(fail(NO_MEMORY));
  object* item = add(HOST);
  item->size = size;
  item->address = own;
  item->alias = alias;
  memset(own, 0xCD, size);
  *address = own;
  return leave(OK);
}

int cudaHostGetDevicePointer(void** target, void* address, unsigned flags) {
  ENTER();
  object* item = find(address, HOST);
  if (item == NULL || flags != 0) return leave(fail(INVALID));
  *target = item->alias;
  return leave(OK);
}

int cudaFreeHost(void* address) {
  ENTER();
  if (forbidden()) return leave(fail(UNSUPPORTED));
  object* item = find(address, HOST);
  if (item == NULL) return leave(fail(INVALID));
  finish_all();
  drop(item);
  return leave(OK);
}

int cudaMemcpyAsync(void* target, const void* source, size_t size, int kind, void* stream) {
  ENTER();
  op item = {.target = target, .source = source, .size = size, .copies = kind};
  if (kind < 1 || kind > 3 || !copies_well(&item)) return leave(fail(INVALID));
  return leave(enqueue(stream, item));
}

/* At once: what is queued before it isn't in tests. */
int cudaMemsetAsync(void* target, int value, size_t size, void* stream) {
  ENTER();
  if (!reaches(1, target, size) || find(stream, STREAM) == NULL) return leave(fail(INVALID));
  memset(target, value, size);
  return leave(OK);
}

int cudaStreamCreateWithFlags(void** stream, unsigned flags) {
  ENTER();
  if (flags > 1) return leave(fail(INVALID));
  *stream = add(STREAM);
  return leave(OK);
}

int cudaStreamDestroy(void* stream) {
  ENTER();
  object* item = find(stream, STREAM);
  if (item == NULL) return leave(fail(BAD_HANDLE));
  finish(item);
  drop(item);
  return leave(OK);
}

int cudaStreamSynchronize(void* stream) {
  ENTER();
  object* item = find(stream, STREAM);
  if (item == NULL) return leave(fail(BAD_HANDLE));
  if (item->capturing) {
    item->broken = MISUSED;
    return leave(fail(UNSUPPORTED));
  }
  finish(item);
  return leave(sticky);
}

int cudaStreamBeginCapture(void* stream, int mode) {
  ENTER();
  object* item = find(stream, STREAM);
  if (item == NULL) return leave(fail(BAD_HANDLE));
  if (mode < 0 || mode > 2 || item->capturing) return leave(fail(INVALID));
  item->capturing = 1;
  item->broken = 0;
  item->capture_mode = mode;
  item->capturer = pthread_self();
  return leave(OK);
}

int cudaStreamEndCapture(void* stream, void** graph) {
  pthread_mutex_lock(&lock);
  *graph = NULL;
  object* item = find(stream, STREAM);
  int entered = enter(__func__);
  if (entered != OK || item == NULL || !item->capturing) {
    if (item != NULL && item->capturing) {
      item->capturing = 0;
      clear(&item->recorded);
    }
    return leave(entered != OK ? entered : fail(item == NULL ? BAD_HANDLE : UNMATCHED));
  }
  if (item->capture_mode != 2 && !pthread_equal(item->capturer, pthread_self()))
    return leave(fail(WRONG_THREAD));
  item->capturing = 0;
  if (item->broken) {
    clear(&item->recorded);
    return leave(item->broken == SPOILT ? INVALIDATED : fail(INVALIDATED));
  }
  object* made = add(GRAPH);
  for (op* step = item->recorded.first; step != NULL; step = step->next) push(&made->ops, *step);
  clear(&item->recorded);
  *graph = made;
  return leave(OK);
}

int cudaGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  ENTER();
  object* item = find(graph, GRAPH);
  if (item == NULL || flags != 0) return leave(fail(INVALID));
  object* made = add(EXECUTABLE);
  for (op* step = item->ops.first; step != NULL; step = step->next) push(&made->ops, *step);
  *executable = made;
  return leave(OK);
}

int cudaGraphLaunch(void* executable, void* stream) {
  ENTER();
  object *item = find(executable, EXECUTABLE), *target = find(stream, STREAM);
  if (item == NULL || target == NULL) return leave(fail(BAD_HANDLE));
  if (target->capturing) { /* CUDA would record it; nobody here should want that */
    target->broken = MISUSED;
    return leave(fail(UNSUPPORTED));
  }
  for (op* step = item->ops.first; step != NULL; step = step->next) push(&target->ops, *step);
  return leave(OK);
}

static int destroy(void* handle, int kind) {
  object* item = find(handle, kind);
  if (item == NULL) return fail(BAD_HANDLE);
  drop(item);
  return OK;
}

int cudaGraphExecDestroy(void* executable) {
  ENTER();
  return leave(destroy(executable, EXECUTABLE));
}

int cudaGraphDestroy(void* graph) {
  ENTER();
  return leave(destroy(graph, GRAPH));
}

/* What a kernel launch would do: puts a call into a stream. It may use only the functions below. */
int fake_cudart_host_call(void* stream, host_call function, void* context) {
  ENTER();
  op item = {.function = function, .context = context};
  return leave(enqueue(stream, item));
}

/* Whether a kernel may use this memory: 0 or 1. */
int fake_cudart_reaches(const void* address, size_t size) {
  pthread_mutex_lock(&lock);
  return leave(reaches(1, address, size));
}

/* Whether a stream records: 0 or 1. */
int fake_cudart_capturing(void* stream) {
  pthread_mutex_lock(&lock);
  object* item = find(stream, STREAM);
  return leave(item != NULL && item->capturing);
}

/* What a library does that fails while it is recorded: whether the stream was recording, 0 or 1. */
int fake_cudart_spoil(void* stream) {
  pthread_mutex_lock(&lock);
  object* item = find(stream, STREAM);
  int recording = item != NULL && item->capturing;
  if (recording) item->broken = SPOILT;
  return leave(recording);
}

/* What a kernel that goes astray does: from now on everything fails with this number. */
void fake_cudart_fault(int number) {
  pthread_mutex_lock(&lock);
  sticky = number;
  leave(OK);
}

/* Memory, streams and graphs that nobody gave back. */
long fake_cudart_live(void) {
  pthread_mutex_lock(&lock);
  long count = 0;
  for (object* item = objects; item != NULL; item = item->next) count++;
  leave(OK);
  return count;
}

/* Bytes of memory that nobody gave back. */
size_t fake_cudart_live_bytes(void) {
  pthread_mutex_lock(&lock);
  size_t sum = used();
  leave(OK);
  return sum;
}

/* Calls of a function since the last reset. */
long fake_cudart_calls(const char* name) {
  pthread_mutex_lock(&lock);
  long calls = 0;
  for (size_t i = 0; i < 64 && calls == 0; i++)
    if (strcmp(counters[i].name, name) == 0) calls = counters[i].calls;
  leave(OK);
  return calls;
}

/* Errors that the caller made, such as a foreign pointer: not those that FAKE_CUDART_FAIL made. */
int fake_cudart_misuses(void) {
  pthread_mutex_lock(&lock);
  return leave(misuses);
}

/* Begins anew: nothing was ever called and, as after a restart of the process, nothing is broken.
 */
void fake_cudart_reset(void) {
  pthread_mutex_lock(&lock);
  while (objects != NULL) drop(objects);
  memset(counters, 0, sizeof counters);
  sticky = last_error = misuses = 0;
  owner = 0;
  leave(OK);
}
