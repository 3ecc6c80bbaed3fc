/* A program with products that cuBLASLt may compute, as the build makes them, written by hand:
 * pairs of the masked ids and the mask, times a constant's transpose, plus a bias; twice. Its
 * kernels are those that fake_cuda.c computes. TOY_REPEAT makes the first product slow in its
 * kernel. */
#ifndef TOY_REPEAT
#define TOY_REPEAT 1
#endif
enum { TOY_INPUTS = 2 };
static const char* const output_names[] = {"one", "other"};
static const char* const names[] = {"toy_products", "toy_floats", "toy_states", "toy_multiply"};

#include "toy_container.h"

extern bool ec_cuda_multiply(int64_t, int32_t, int64_t, int64_t, int64_t, const void*, const void*,
                             const void*, void*);

enum { COLUMNS = 4, DEPTH = 2 };

static int new_tensor(const int64_t* sizes, int64_t width, handle* out) {
  const int64_t whole[3] = {sizes[0], sizes[1], width}, strides[3] = {sizes[1] * width, width, 1};
  return ec_aoti_torch_empty_strided(3, whole, strides, kFloat32, kCuda, 0, out);
}

API int AOTInductorModelContainerRunSingleThreaded(void* self, handle* inputs, size_t n_inputs,
                                                   handle* outputs, size_t n_outputs, void* stream,
                                                   void* executor) {
  (void)n_inputs, (void)n_outputs, (void)executor;
  container* model = self;
  handle tensors[7] = {inputs[0], inputs[1]};
  inputs[0] = inputs[1] = NULL; /* taken over */
  int failed = 1;
  int64_t* sizes;
  void* data[7];
  if (ec_aoti_torch_get_sizes(tensors[0], &sizes)) goto end;
  uint64_t count = (uint64_t)(sizes[0] * sizes[1]);
  for (int i = 2; i < 7; i++)
    if (new_tensor(sizes, i < 4 ? 1 : i == 4 ? DEPTH : COLUMNS, &tensors[i])) goto end;
  for (int i = 0; i < 7; i++)
    if (ec_aoti_torch_get_data_ptr(tensors[i], &data[i])) goto end;
  void* products[] = {&data[0], &data[1], &data[2], &count};
  void* floats[] = {&data[1], &data[3], &count};
  void* pairs[] = {&data[2], &data[3], &data[4], &count};
  if (launch(model, 0, stream, products) || launch(model, 1, stream, floats) ||
      launch(model, 2, stream, pairs))
    goto end;
  char* bias = (char*)model->weights + 4 * COLUMNS * DEPTH;
  for (int64_t number = 0; number < 2; number++) {
    void** out = &data[5 + number];
    void* multiply[] = {&data[4], &model->weights, &bias, out, &count};
    if (ec_cuda_multiply(number, kFloat32, (int64_t)count, COLUMNS, DEPTH, data[4], model->weights,
                         bias, *out))
      continue;
    for (int i = 0; i < (number == 0 ? TOY_REPEAT : 1); i++)
      if (launch(model, 3, stream, multiply)) goto end;
  }
  outputs[0] = tensors[5];
  outputs[1] = tensors[6];
  tensors[5] = tensors[6] = NULL;
  failed = 0;
end:
  for (int i = 0; i < 7; i++)
    if (tensors[i] != NULL) ec_aoti_torch_delete_tensor_object(tensors[i]);
  return failed;
}
