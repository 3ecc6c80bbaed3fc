/* A runtime library that computes nothing: so that loaders can be tried to the end on bundles that
 * no compiler of models made. A program of it is a library with toy_counts. It reads every constant
 * that it is given, from the first byte to the last, and gives zeros, or its toy_answer: the first
 * output has the sizes [batch, 4], the second [batch, length, 2], more don't exist. */
#include <dlfcn.h>
#include <stdlib.h>

#include "base/edgecompile_abi.h"

enum { kInputs, kOutputs, kCounts };

struct ec_program {
  int64_t counts[kCounts];
  float answer;
};

struct ec_outputs {
  int64_t count;
  int64_t batch;
  int64_t length;
  float* values;
};

static const char* message = "";

static int32_t fail(const char* text) {
  message = text;
  return 1;
}

int32_t ec_abi_version(void) { return EC_ABI_VERSION; }
const char* ec_last_error(void) { return message; }
int32_t ec_set_num_threads(int32_t n) { return n < 0; }
int32_t ec_get_num_threads(void) { return 1; }

int32_t ec_program_open(const char* library_path, const ec_tensor* constants, int64_t n_constants,
                        int32_t concurrency, ec_program** out) {
  if (concurrency < 1) return fail("no concurrency");
  volatile uint8_t sum = 0;
  for (int64_t i = 0; i < n_constants; ++i) {
    const ec_tensor* tensor = &constants[i];
    if (tensor->name == NULL || tensor->name[0] == '\0' || tensor->nbytes < 0 || tensor->ndim < 0 ||
        tensor->ndim > EC_MAX_DIMS || (uintptr_t)tensor->data % 64 != 0) {
      abort();
    }
    const uint8_t* bytes = tensor->data;
    for (int64_t at = 0; at < tensor->nbytes; ++at) sum = (uint8_t)(sum + bytes[at]);
  }
  void* library = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return fail("the program is no library");
  const int64_t* counts = dlsym(library, "toy_counts");
  if (counts == NULL) return fail("the program isn't one");
  ec_program* program = malloc(sizeof *program);
  if (program == NULL) return fail("out of memory");
  for (int i = 0; i < kCounts; ++i) program->counts[i] = counts[i];
  const float* answer = dlsym(library, "toy_answer");
  program->answer = answer == NULL ? 0 : *answer;
  *out = program;
  return 0;
}

int64_t ec_program_input_count(const ec_program* program) { return program->counts[kInputs]; }
int64_t ec_program_output_count(const ec_program* program) { return program->counts[kOutputs]; }
void ec_program_close(ec_program* program) { free(program); }

int32_t ec_program_run(ec_program* program, const ec_tensor* inputs, int64_t n_inputs,
                       ec_outputs** out) {
  if (n_inputs != program->counts[kInputs]) abort();
  ec_outputs* outputs = malloc(sizeof *outputs);
  if (outputs == NULL) return fail("out of memory");
  outputs->count = program->counts[kOutputs];
  outputs->batch = n_inputs > 0 && inputs[0].ndim > 0 ? inputs[0].sizes[0] : 1;
  outputs->length = n_inputs > 0 && inputs[0].ndim > 1 ? inputs[0].sizes[1] : 1;
  outputs->values = NULL;
  /* Sizes are at most 2^31 - 1. */
  if (outputs->length < INT64_C(1) << 31 && outputs->batch < INT64_C(1) << 31) {
    outputs->values = calloc((size_t)(outputs->batch * (outputs->length + 2)), 2 * sizeof(float));
  }
  if (outputs->values == NULL) {
    free(outputs);
    return fail("out of memory");
  }
  if (program->answer != 0) {
    const int64_t count = outputs->batch * (outputs->length + 2) * 2;
    for (int64_t at = 0; at < count; ++at) outputs->values[at] = program->answer;
  }
  *out = outputs;
  return 0;
}

int64_t ec_outputs_count(const ec_outputs* outputs) { return outputs->count; }

int32_t ec_outputs_get(const ec_outputs* outputs, int64_t i, ec_tensor* view) {
  const int is_first = i == 0;
  if (i < 0 || i > 1) return fail("there is no such output");
  view->name = "";
  view->data = outputs->values;
  view->dtype = 6;
  view->ndim = is_first ? 2 : 3;
  view->sizes[0] = outputs->batch;
  view->sizes[1] = is_first ? 4 : outputs->length;
  view->sizes[2] = 2;
  view->strides[0] = is_first ? 4 : 2 * outputs->length;
  view->strides[1] = is_first ? 1 : 2;
  view->strides[2] = 1;
  view->nbytes = outputs->batch * view->strides[0] * (int64_t)sizeof(float);
  return 0;
}

void ec_outputs_free(ec_outputs* outputs) {
  if (outputs != NULL) free(outputs->values);
  free(outputs);
}

void ec_trim(void) {}
int64_t ec_live_tensors(void) { return 0; }
int64_t ec_live_bytes(void) { return 0; }
int64_t ec_cached_bytes(void) { return 0; }
