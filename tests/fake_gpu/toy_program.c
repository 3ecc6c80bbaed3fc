/* A program as the build makes them, small enough to be written by hand: what AOTInductor's
 * container exports, over the runtime library for GPUs. Its model is embed() of numpy_engine.py;
 * its kernels are those that fake_cuda.c computes.
 *
 * TOY_ARCH is what its kernels are for, 90 for 9.0; TOY_PTX adds PTX for that and later. TOY_FAULT
 * makes it misbehave: 1 gives a strided output, 2 the same tensor twice, 3 a view that has to be
 * copied, 4 asks for other memory than in its rehearsal, 5 has one output less, 6 names no kernel
 * that exists. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef TOY_ARCH
#define TOY_ARCH 90
#endif
#ifndef TOY_FAULT
#define TOY_FAULT 0
#endif
#define API __attribute__((visibility("default")))

typedef void* handle;
extern int32_t ec_aoti_torch_empty_strided(int64_t, const int64_t*, const int64_t*, int32_t,
                                           int32_t, int32_t, handle*);
extern int32_t ec_aoti_torch__reinterpret_tensor(handle, int64_t, const int64_t*, const int64_t*,
                                                 int64_t, handle*);
extern int32_t ec_aoti_torch_get_data_ptr(handle, void**);
extern int32_t ec_aoti_torch_get_sizes(handle, int64_t**);
extern int32_t ec_aoti_torch_delete_tensor_object(handle);
extern int32_t ec_aoti_torch_new_tensor_handle(handle, handle*);
extern int ec_cuModuleLoadData(void**, const void*);
extern int ec_cuModuleUnload(void*);
extern int ec_cuModuleGetFunction(void**, void*, const char*);
extern int ec_cuFuncSetAttribute(void*, int, int);
extern int ec_cuEventCreate(void**, unsigned);
extern int ec_cuEventRecord(void*, void*);
extern int ec_cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             unsigned, void*, void**, void**);

enum { kInt64 = 4, kFloat32 = 6, kCuda = 1 };

/* A container of images, as native/cuda/kernels.cpp reads it. */
static const struct {
  char magic[8];
  uint32_t count, zero;
  struct {
    uint32_t arch, zero;
    uint64_t offset, size;
  } images[2];
  char code[2][16];
} images __attribute__((aligned(16))) = {"ECUBIN1",
#ifdef TOY_PTX
                                         2,
#else
                                         1,
#endif
                                         0,
                                         {{TOY_ARCH, 0, 64, 16}, {TOY_ARCH | 1u << 31, 0, 80, 16}},
                                         {"fake image", "// fake PTX"}};
_Static_assert(offsetof(__typeof__(images), code) == 64, "the offsets above");

static const char* const names[] = {"toy_products", "toy_floats", "toy_states",
                                    TOY_FAULT == 6 ? "missing" : "toy_rows"};
typedef struct {
  void *modules[4], *kernels[4];
  void* weights;
  long runs;
} container;

static int status(int number) { return number != 0; }

API int AOTInductorModelContainerCreateWithDevice(void** out, size_t n, const char* device,
                                                  const char* folder) {
  (void)n, (void)folder;
  if (strcmp(device, "cuda:0") != 0) return 1;
  *out = calloc(1, sizeof(container));
  return *out == NULL;
}

API int AOTInductorModelContainerDelete(void* self) {
  container* model = self;
  for (int i = 0; i < 4; i++)
    if (model->modules[i] != NULL) ec_cuModuleUnload(model->modules[i]);
  free(model);
  return 0;
}

static int launch(container* model, int number, void* stream, void** arguments) {
  if (model->kernels[number] == NULL) {
    if (ec_cuModuleLoadData(&model->modules[number], &images) != 0 ||
        ec_cuModuleGetFunction(&model->kernels[number], model->modules[number], names[number]) !=
            0 ||
        ec_cuFuncSetAttribute(model->kernels[number], 8, 1024) != 0)
      return 1;
  }
  return status(
      ec_cuLaunchKernel(model->kernels[number], 1, 1, 1, 32, 1, 1, 1024, stream, arguments, NULL));
}

static int new_tensor(int64_t dims, const int64_t* sizes, handle* out) {
  int64_t strides[3] = {1, 1, 1};
  for (int64_t i = dims - 1; i > 0; i--) strides[i - 1] = strides[i] * sizes[i];
#if TOY_FAULT == 1
  if (dims == 3) strides[0] *= 2, strides[1] *= 2;
#endif
  return ec_aoti_torch_empty_strided(dims, sizes, strides, kFloat32, kCuda, 0, out);
}

API int AOTInductorModelContainerRunSingleThreaded(void* self, handle* inputs, size_t n_inputs,
                                                   handle* outputs, size_t n_outputs, void* stream,
                                                   void* executor) {
  (void)n_inputs, (void)n_outputs, (void)executor;
  container* model = self;
  handle tensors[6] = {inputs[0], inputs[1], NULL, NULL, NULL, NULL};
  inputs[0] = inputs[1] = NULL; /* taken over */
  int failed = 1;
  int64_t *sizes, rows[2], states[3], spare[1] = {4096};
  void* data[6];
  if (ec_aoti_torch_get_sizes(tensors[0], &sizes)) goto end;
  uint64_t batch = (uint64_t)sizes[0], length = (uint64_t)sizes[1], count = batch * length;
  rows[0] = states[0] = sizes[0], states[1] = sizes[1], states[2] = 2, rows[1] = 4;
#if TOY_FAULT == 4
  spare[0] -= 1024 * (model->runs % 2);
#endif
  model->runs++;
  /* What nobody needs for long: its place is free for what comes. */
  handle early;
  if (new_tensor(1, spare, &early) || ec_aoti_torch_delete_tensor_object(early)) goto end;
  if (new_tensor(2, sizes, &tensors[2]) || new_tensor(2, sizes, &tensors[3]) ||
      new_tensor(3, states, &tensors[4]))
    goto end;
#if TOY_FAULT == 3
  int64_t wide[2] = {rows[0] + 1, 4}, strides[2] = {4, 1};
  handle whole;
  if (new_tensor(2, wide, &whole) ||
      ec_aoti_torch__reinterpret_tensor(whole, 2, rows, strides, 4, &tensors[5]) ||
      ec_aoti_torch_delete_tensor_object(whole))
    goto end;
#else
  if (new_tensor(2, rows, &tensors[5])) goto end;
#endif
  for (int i = 0; i < 6; i++)
    if (ec_aoti_torch_get_data_ptr(tensors[i], &data[i])) goto end;
  void* products[] = {&data[0], &data[1], &data[2], &count};
  void* floats[] = {&data[1], &data[3], &count};
  void* pairs[] = {&data[2], &data[3], &data[4], &count};
  void* sums[] = {&data[2], &data[3], &model->weights, &data[5], &batch, &length};
  if (launch(model, 0, stream, products) || launch(model, 1, stream, floats) ||
      launch(model, 2, stream, pairs) || launch(model, 3, stream, sums))
    goto end;
  /* As the container does in its first run. */
  void* event;
  if (ec_cuEventCreate(&event, 0) || ec_cuEventRecord(event, stream)) goto end;
  outputs[0] = tensors[5];
  outputs[1] = tensors[4];
  tensors[4] = tensors[5] = NULL;
#if TOY_FAULT == 2
  ec_aoti_torch_delete_tensor_object(outputs[1]);
  outputs[1] = outputs[0];
#endif
  failed = 0;
end:
  for (int i = 0; i < 6; i++)
    if (tensors[i] != NULL) ec_aoti_torch_delete_tensor_object(tensors[i]);
  return failed;
}

API int AOTInductorModelContainerGetNumInputs(void* self, size_t* n) {
  (void)self;
  *n = 2;
  return 0;
}
API int AOTInductorModelContainerGetNumOutputs(void* self, size_t* n) {
  (void)self;
  *n = TOY_FAULT == 5 ? 1 : 2;
  return 0;
}
API int AOTInductorModelContainerGetOutputName(void* self, size_t i, const char** name) {
  (void)self;
  *name = i == 0 ? "embedding" : "states";
  return 0;
}
API int AOTInductorModelContainerGetNumConstants(void* self, size_t* n) {
  (void)self;
  *n = 1;
  return 0;
}
API int AOTInductorModelContainerGetConstantName(void* self, size_t i, const char** name) {
  (void)self, (void)i;
  *name = "L__self___a";
  return 0;
}
API int AOTInductorModelContainerGetConstantOriginalFQN(void* self, size_t i, const char** name) {
  (void)self, (void)i;
  *name = "a";
  return 0;
}
API int AOTInductorModelContainerGetConstantFromFolded(void* self, size_t i, bool* folded) {
  (void)self, (void)i;
  *folded = false;
  return 0;
}
API int AOTInductorModelContainerGetConstantDtype(void* self, size_t i, int32_t* dtype) {
  (void)self, (void)i;
  *dtype = kFloat32;
  return 0;
}
API int AOTInductorModelContainerGetConstantDataSize(void* self, size_t i, size_t* bytes) {
  (void)self, (void)i;
  *bytes = 64;
  return 0;
}
typedef struct {
  const char* name;
  handle tensor;
} pair;
API int AOTInductorModelContainerUpdateUserManagedConstantBufferPairs(void* self, const pair* pairs,
                                                                      size_t n, bool inactive,
                                                                      bool whole) {
  (void)inactive, (void)whole;
  container* model = self;
  return n != 1 || ec_aoti_torch_get_data_ptr(pairs[0].tensor, &model->weights);
}
API int AOTInductorGetLastError(const char** text) {
  *text = "";
  return 0;
}
