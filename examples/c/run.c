/* Opens a bundle, describes it and runs it:
 *
 *   run BUNDLE                         zeros of the smallest sizes
 *   run BUNDLE BUNDLE/golden/0-*.npz   golden vectors, compared with what eager PyTorch gave
 *   run -o FILE BUNDLE ...             also writes the outputs' bytes to FILE, behind each other
 *
 * Ends with the library's status, or with 27 if a golden vector wasn't reproduced. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "edgecompile_runtime.h"
#include "npz.h"

enum { kUsage = 2, kSelftest = 27, kFile = 74 };

static int fail(int status) {
  fprintf(stderr, "error: %s\n", ecr_last_error());
  return status;
}

static int write_outputs(const ecr_outputs* outputs, FILE* dump) {
  for (int64_t i = 0; dump != NULL && i < outputs->count; ++i) {
    const ecr_tensor* tensor = &outputs->tensors[i];
    if (fwrite(tensor->data, 1, (size_t)tensor->nbytes, dump) != (size_t)tensor->nbytes) {
      fprintf(stderr, "error: the outputs can't be written\n");
      return kFile;
    }
  }
  return ECR_OK;
}

static int64_t element_size(int32_t dtype) {
  switch (dtype) {
    case ECR_INT64:
    case ECR_FLOAT64:
      return 8;
    case ECR_INT32:
    case ECR_FLOAT32:
      return 4;
    case ECR_INT16:
    case ECR_FLOAT16:
      return 2;
    default:
      return 1;
  }
}

/* Element i as a number. The data of an .npz member may lie at any address. */
static double value_at(const ecr_tensor* tensor, int64_t i) {
  union {
    float f32;
    double f64;
    int64_t i64;
    int32_t i32;
    int16_t i16;
    int8_t i8;
    uint8_t u8;
  } value;
  const int64_t size = element_size(tensor->dtype);
  memcpy(&value, (const char*)tensor->data + i * size, (size_t)size);
  switch (tensor->dtype) {
    case ECR_FLOAT32:
      return value.f32;
    case ECR_FLOAT64:
      return value.f64;
    case ECR_INT64:
      return (double)value.i64;
    case ECR_INT32:
      return value.i32;
    case ECR_INT16:
    case ECR_FLOAT16: /* as bits: equal, or not */
      return value.i16;
    case ECR_INT8:
      return value.i8;
    default:
      return value.u8;
  }
}

static int64_t count_elements(const ecr_tensor* tensor) {
  int64_t count = 1;
  for (int d = 0; d < tensor->ndim; ++d) count *= tensor->sizes[d];
  return count;
}

/* Whether an output agrees with what is expected, by the bundle's tolerance. */
static int agrees(const char* label, const ecr_signature* signature, const ecr_tensor* got,
                  const ecr_tensor* want) {
  int same = got->dtype == want->dtype && got->ndim == want->ndim;
  for (int d = 0; same && d < got->ndim; ++d) same = got->sizes[d] == want->sizes[d];
  if (!same) {
    printf("%s: %s has another type or shape: FAILED\n", label, got->name);
    return 0;
  }
  double difference = 0, scale = 0, both = 0, ours = 0, theirs = 0;
  for (int64_t i = 0; i < count_elements(got); ++i) {
    const double a = value_at(got, i), b = value_at(want, i);
    if (isfinite(a) && isfinite(b)) both += a * b, ours += a * a, theirs += b * b;
    if (a == b || (isnan(a) && isnan(b))) continue;
    difference = fmax(difference, isfinite(a) && isfinite(b) ? fabs(a - b) : INFINITY);
    scale = fmax(scale, isfinite(b) ? fabs(b) : 0);
  }
  const int is_float = got->dtype == ECR_FLOAT32 || got->dtype == ECR_FLOAT64;
  const double limit = is_float ? signature->atol + signature->rtol * scale : 0;
  /* Bundles for GPUs have a least cosine of both. */
  const double cosine = is_float && theirs > 0 ? both / sqrt(ours * theirs) : 1;
  const int good = difference <= limit && cosine >= signature->min_cosine;
  printf("%s: %s differs by at most %.3g, limit %.3g: %s\n", label, got->name, difference, limit,
         good ? "ok" : "FAILED");
  return good;
}

/* Runs one golden vector; its file's name begins with the number of its bucket. */
static int run_golden(ecr_model* model, const ecr_signature* signature, const char* path,
                      FILE* dump) {
  npz_file file;
  if (npz_read(path, &file) != 0) return kFile;
  const char* label = strrchr(path, '/') == NULL ? path : strrchr(path, '/') + 1;
  ecr_tensor* inputs = calloc(file.count + 1, sizeof *inputs);
  ecr_outputs* outputs = NULL;
  int64_t n_inputs = 0;
  int status = inputs == NULL ? kFile : ECR_OK;
  for (size_t i = 0; inputs != NULL && i < file.count; ++i) {
    if (strncmp(file.tensors[i].name, "in.", 3) != 0) continue;
    inputs[n_inputs] = file.tensors[i];
    inputs[n_inputs++].name += 3;
  }
  if (status == ECR_OK) {
    status = ecr_run_bucket(model, atoi(label), inputs, n_inputs, &outputs);
    if (status != ECR_OK) fail(status);
  }
  if (status == ECR_OK) status = write_outputs(outputs, dump);
  for (size_t i = 0; status == ECR_OK && i < file.count; ++i) {
    const ecr_tensor* want = &file.tensors[i];
    for (int64_t k = 0; strncmp(want->name, "out.", 4) == 0 && k < outputs->count; ++k) {
      const ecr_tensor* got = &outputs->tensors[k];
      if (strcmp(want->name + 4, got->name) == 0 && !agrees(label, signature, got, want)) {
        status = kSelftest;
      }
    }
  }
  ecr_outputs_free(outputs);
  free(inputs);
  npz_free(&file);
  return status;
}

static int run_zeros(ecr_model* model, const ecr_signature* signature, FILE* dump) {
  ecr_tensor* inputs = calloc((size_t)signature->n_inputs, sizeof *inputs);
  ecr_outputs* outputs = NULL;
  int status = inputs == NULL ? kFile : ECR_OK;
  for (int32_t i = 0; status == ECR_OK && i < signature->n_inputs; ++i) {
    const ecr_spec* spec = &signature->inputs[i];
    inputs[i].name = spec->name;
    inputs[i].dtype = spec->dtype;
    inputs[i].ndim = spec->ndim;
    memcpy(inputs[i].sizes, spec->least, sizeof inputs[i].sizes);
    inputs[i].nbytes = count_elements(&inputs[i]) * element_size(spec->dtype);
    inputs[i].data = calloc(1, (size_t)inputs[i].nbytes);
    if (inputs[i].data == NULL) status = kFile;
  }
  if (status == ECR_OK) {
    status = ecr_run(model, inputs, signature->n_inputs, &outputs);
    if (status != ECR_OK) fail(status);
  }
  for (int64_t i = 0; status == ECR_OK && i < outputs->count; ++i) {
    const ecr_tensor* tensor = &outputs->tensors[i];
    printf("%s[", tensor->name);
    for (int d = 0; d < tensor->ndim; ++d) {
      printf("%s%lld", d == 0 ? "" : ", ", (long long)tensor->sizes[d]);
    }
    printf("] begins with %.6g\n", tensor->nbytes > 0 ? value_at(tensor, 0) : 0.0);
  }
  if (status == ECR_OK) status = write_outputs(outputs, dump);
  ecr_outputs_free(outputs);
  for (int32_t i = 0; inputs != NULL && i < signature->n_inputs; ++i) free((void*)inputs[i].data);
  free(inputs);
  return status;
}

int main(int argc, char** argv) {
  int first = 1;
  FILE* dump = NULL;
  if (argc > 3 && strcmp(argv[1], "-o") == 0) {
    dump = fopen(argv[2], "wb");
    if (dump == NULL) {
      perror(argv[2]);
      return kFile;
    }
    first = 3;
  }
  if (first >= argc) {
    fprintf(stderr, "usage: %s [-o FILE] BUNDLE [GOLDEN.npz ...]\n", argv[0]);
    return kUsage;
  }
  ecr_model* model = NULL;
  int status = ecr_open(argv[first], NULL, &model);
  if (status != ECR_OK) {
    if (dump != NULL) fclose(dump);
    return fail(status);
  }
  char* text = NULL;
  ecr_signature signature = {0};
  status = ecr_describe(model, &text);
  if (status == ECR_OK) status = ecr_get_signature(model, &signature);
  if (status == ECR_OK) {
    printf("%s\n", text);
    if (first + 1 == argc) status = run_zeros(model, &signature, dump);
    for (int i = first + 1; i < argc; ++i) {
      const int one = run_golden(model, &signature, argv[i], dump);
      if (status == ECR_OK) status = one;
    }
  } else {
    fail(status);
  }
  ecr_text_free(text);
  ecr_close(model);
  if (dump != NULL && fclose(dump) != 0) status = kFile;
  return status;
}
