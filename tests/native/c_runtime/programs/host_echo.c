/* A runtime library whose programs give back what they were given: so that what a loader hands to
 * native code, and what it makes of the answer, can be compared between loaders. Compiled with
 * ECHO_TAG it is such a program instead.
 *
 * Output i < number of inputs is input i, in a program of odd tag with the strides of the opposite
 * order. The last output, int64[24], tells the tag and, for each input, a hash of its bytes, its
 * type, number of dimensions and sizes. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "base/edgecompile_abi.h"

#ifdef ECHO_TAG

EC_API const int64_t echo_tag = ECHO_TAG;

#else

enum { kInputs = 2, kSeen = 24 };

struct ec_program {
  int64_t tag;
};

struct ec_outputs {
  ec_tensor views[kInputs + 1];
  int64_t seen[kSeen];
};

int32_t ec_probe(char* buffer, int32_t capacity);

int32_t ec_abi_version(void) { return EC_ABI_VERSION; }
const char* ec_last_error(void) { return "out of memory, or no program"; }
int32_t ec_set_num_threads(int32_t n) { return n < 0; }
int32_t ec_get_num_threads(void) { return 1; }

/* The library is its own probe. */
EC_API int32_t ec_probe(char* buffer, int32_t capacity) {
  return capacity < 5 ? -5 : (int32_t)strlen(strcpy(buffer, "echo"));
}

int32_t ec_program_open(const char* library_path, const ec_tensor* constants, int64_t n_constants,
                        int32_t concurrency, ec_program** out) {
  (void)constants, (void)n_constants, (void)concurrency;
  void* library = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
  const int64_t* tag = library == NULL ? NULL : dlsym(library, "echo_tag");
  ec_program* program = tag == NULL ? NULL : malloc(sizeof *program);
  if (program == NULL) return 1;
  program->tag = *tag;
  *out = program;
  return 0;
}

int64_t ec_program_input_count(const ec_program* program) {
  (void)program;
  return kInputs;
}
int64_t ec_program_output_count(const ec_program* program) {
  (void)program;
  return kInputs + 1;
}
void ec_program_close(ec_program* program) { free(program); }

static int64_t hash(const uint8_t* bytes, int64_t count) {
  uint64_t sum = 14695981039346656037u; /* FNV-1a */
  for (int64_t i = 0; i < count; ++i) sum = (sum ^ bytes[i]) * 1099511628211u;
  return (int64_t)(sum >> 1);
}

/* Copies one input to memory of its own. */
static int echo(const ec_tensor* input, int reversed, ec_tensor* view) {
  int64_t count = 1;
  *view = *input;
  view->data = malloc((size_t)input->nbytes + 1);
  if (view->data == NULL) return 1;
  for (int d = 0; d < input->ndim; ++d) {
    const int at = reversed ? d : input->ndim - 1 - d;
    view->strides[at] = count;
    count *= input->sizes[at];
  }
  const int64_t size = count == 0 ? 0 : input->nbytes / count;
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, to = 0;
    for (int d = input->ndim - 1; d >= 0; --d) {
      to += rest % input->sizes[d] * view->strides[d];
      rest /= input->sizes[d];
    }
    memcpy((char*)view->data + to * size, (const char*)input->data + i * size, (size_t)size);
  }
  return 0;
}

int32_t ec_program_run(ec_program* program, const ec_tensor* inputs, int64_t n_inputs,
                       ec_outputs** out) {
  if (n_inputs != kInputs) abort();
  ec_outputs* outputs = calloc(1, sizeof *outputs);
  if (outputs == NULL) return 1;
  int64_t* seen = outputs->seen;
  *seen++ = program->tag;
  for (int i = 0; i < kInputs; ++i) {
    const ec_tensor* input = &inputs[i];
    if (echo(input, program->tag % 2 != 0, &outputs->views[i]) != 0) {
      ec_outputs_free(outputs);
      return 1;
    }
    seen[0] = hash(input->data, input->nbytes);
    seen[1] = input->dtype;
    seen[2] = input->ndim;
    memcpy(seen + 3, input->sizes, (size_t)input->ndim * sizeof *seen);
    seen += 11;
  }
  ec_tensor* last = &outputs->views[kInputs];
  last->data = outputs->seen;
  last->nbytes = sizeof outputs->seen;
  last->dtype = 4;
  last->ndim = 1;
  last->sizes[0] = kSeen;
  last->strides[0] = 1;
  *out = outputs;
  return 0;
}

int64_t ec_outputs_count(const ec_outputs* outputs) {
  (void)outputs;
  return kInputs + 1;
}

int32_t ec_outputs_get(const ec_outputs* outputs, int64_t i, ec_tensor* view) {
  if (i < 0 || i > kInputs) return 1;
  *view = outputs->views[i];
  return 0;
}

void ec_outputs_free(ec_outputs* outputs) {
  for (int i = 0; outputs != NULL && i < kInputs; ++i) free(outputs->views[i].data);
  free(outputs);
}

void ec_trim(void) {}
int64_t ec_live_tensors(void) { return 0; }
int64_t ec_live_bytes(void) { return 0; }
int64_t ec_cached_bytes(void) { return 0; }

#endif
