/* Memory, streams and graphs of the fake of CUDA's runtime library: given out, queued, recorded and
 * done. One lock guards them all. */
#pragma once
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
