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
#include "cudart_objects.h"

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
