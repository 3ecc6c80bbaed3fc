/* What AOTInductor's container exports, for programs that are written by hand: see toy_program.c.
 * Whoever includes it has defined the names of its inputs and outputs as a count, TOY_INPUTS, and
 * an array, output_names, and those of its kernels, names. TOY_ARCH is what they are for, 90
 * for 9.0; TOY_PTX adds PTX for that and later; TOY_FLAGS are those of its images. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef TOY_ARCH
#define TOY_ARCH 90
#endif
#ifndef TOY_FLAGS
#define TOY_FLAGS 0
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
    uint32_t arch, flags;
    uint64_t offset, size;
  } images[2];
  char code[2][16];
} images __attribute__((aligned(16))) = {
    "ECUBIN1",
#ifdef TOY_PTX
    2,
#else
    1,
#endif
    0,
    {{TOY_ARCH, TOY_FLAGS, 64, 16}, {TOY_ARCH | 1u << 31, TOY_FLAGS, 80, 16}},
    {"fake image", "// fake PTX"}};
_Static_assert(offsetof(__typeof__(images), code) == 64, "the offsets above");

enum { KERNELS = sizeof names / sizeof *names };

typedef struct {
  void *modules[KERNELS], *kernels[KERNELS];
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
  for (int i = 0; i < KERNELS; i++)
    if (model->modules[i] != NULL) ec_cuModuleUnload(model->modules[i]);
  free(model);
  return 0;
}

static int launch_blocks(container* model, int number, unsigned blocks, void* stream,
                         void** arguments) {
  if (model->kernels[number] == NULL) {
    if (ec_cuModuleLoadData(&model->modules[number], &images) != 0 ||
        ec_cuModuleGetFunction(&model->kernels[number], model->modules[number], names[number]) !=
            0 ||
        ec_cuFuncSetAttribute(model->kernels[number], 8, 1024) != 0)
      return 1;
  }
  return status(ec_cuLaunchKernel(model->kernels[number], blocks, 1, 1, 32, 1, 1, 1024, stream,
                                  arguments, NULL));
}

static inline int launch(container* model, int number, void* stream, void** arguments) {
  return launch_blocks(model, number, 1, stream, arguments);
}

API int AOTInductorModelContainerGetNumInputs(void* self, size_t* n) {
  (void)self;
  *n = TOY_INPUTS;
  return 0;
}
API int AOTInductorModelContainerGetNumOutputs(void* self, size_t* n) {
  (void)self;
  *n = sizeof output_names / sizeof *output_names;
  return 0;
}
API int AOTInductorModelContainerGetOutputName(void* self, size_t i, const char** name) {
  (void)self;
  *name = output_names[i];
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
