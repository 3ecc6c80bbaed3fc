/* A program whose sizes depend on values, as the build makes them, written by hand: the ids that
 * the mask keeps, and those that it leaves out, both as floats. Its kernels are those that
 * fake_cuda.c computes. TOY_FAULT makes it misbehave: 1 expects fewer kept ones than there may be,
 * 2 asks for more memory where none is kept, 3 reads the count as another type, 4 reads two numbers
 * as one. */
#ifndef TOY_FAULT
#define TOY_FAULT 0
#endif
enum { TOY_INPUTS = 2 };
static const char* const output_names[] = {"kept", "left"};
static const char* const names[] = {"toy_count", "toy_kept", "toy_left"};

#include "toy_container.h"

extern void ec_cuda_expect_number(int64_t, int64_t);
extern int32_t ec_aoti_torch_item_int64(handle, int64_t*);
extern int32_t ec_aoti_torch_item_float32(handle, float*);

static int new_line(int64_t size, int32_t dtype, int64_t dims, handle* out) {
  const int64_t stride = 1;
  return ec_aoti_torch_empty_strided(dims, &size, &stride, dtype, kCuda, 0, out);
}

API int AOTInductorModelContainerRunSingleThreaded(void* self, handle* inputs, size_t n_inputs,
                                                   handle* outputs, size_t n_outputs, void* stream,
                                                   void* executor) {
  (void)n_inputs, (void)n_outputs, (void)executor;
  container* model = self;
  handle tensors[6] = {inputs[0], inputs[1], NULL, NULL, NULL, NULL};
  inputs[0] = inputs[1] = NULL; /* taken over */
  int failed = 1;
  int64_t *sizes, total, kept;
  void* data[6];
  if (ec_aoti_torch_get_sizes(tensors[0], &sizes)) goto end;
  total = sizes[0] * sizes[1];
  if (new_line(TOY_FAULT == 4 ? 2 : 1, kInt64, TOY_FAULT == 4, &tensors[2]) ||
      ec_aoti_torch_get_data_ptr(tensors[1], &data[1]) ||
      ec_aoti_torch_get_data_ptr(tensors[2], &data[2]))
    goto end;
  void* counts[] = {&data[1], &data[2], &total};
  if (launch(model, 0, stream, counts)) goto end;
  ec_cuda_expect_number(0, TOY_FAULT == 1 ? total / 2 : total);
#if TOY_FAULT == 3
  float wrong;
  if (ec_aoti_torch_item_float32(tensors[2], &wrong)) goto end;
#endif
  if (ec_aoti_torch_item_int64(tensors[2], &kept)) goto end;
#if TOY_FAULT == 2
  handle more;
  if (kept == 0 && (new_line(8, kInt64, 1, &more) || ec_aoti_torch_delete_tensor_object(more)))
    goto end;
#endif
  /* What the count's memory becomes is needed for a moment. */
  if (ec_aoti_torch_delete_tensor_object(tensors[2])) goto end;
  tensors[2] = NULL;
  if (new_line(2 * kept, kInt64, 1, &tensors[3]) || new_line(kept, kFloat32, 1, &tensors[4]) ||
      new_line(total - kept, kFloat32, 1, &tensors[5]))
    goto end;
  for (int i = 0; i < 6; i++)
    if (tensors[i] != NULL && ec_aoti_torch_get_data_ptr(tensors[i], &data[i])) goto end;
  void* chosen[] = {&data[0], &data[1], &data[4], &total, &kept, &data[3]};
  void* others[] = {&data[0], &data[1], &data[5], &total, &kept};
  if (launch_blocks(model, 1, (unsigned)kept, stream, chosen) ||
      launch_blocks(model, 2, (unsigned)(total - kept), stream, others))
    goto end;
  outputs[0] = tensors[4];
  outputs[1] = tensors[5];
  tensors[4] = tensors[5] = NULL;
  failed = 0;
end:
  for (int i = 0; i < 6; i++)
    if (tensors[i] != NULL) ec_aoti_torch_delete_tensor_object(tensors[i]);
  return failed;
}
