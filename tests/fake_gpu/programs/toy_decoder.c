/* A decoder as the build makes them, written by hand: the model of triton_bundle.py's next_token,
 * over two caches that it changes in place. Its kernels are those that fake_cuda.c computes.
 * TOY_REPEAT launches the last one so many times. */
#ifndef TOY_REPEAT
#define TOY_REPEAT 1
#endif
enum { TOY_INPUTS = 5 };
static const char* const output_names[] = {"logits"};
static const char* const names[] = {"toy_write", "toy_logits"};

#include "toy_container.h"

API int AOTInductorModelContainerRunSingleThreaded(void* self, handle* inputs, size_t n_inputs,
                                                   handle* outputs, size_t n_outputs, void* stream,
                                                   void* executor) {
  (void)n_inputs, (void)n_outputs, (void)executor;
  container* model = self;
  int failed = 1;
  handle logits = NULL;
  void *data[TOY_INPUTS], *out;
  int64_t *ids, *caches, sizes[2] = {1, 100}, strides[2] = {100, 1};
  if (ec_aoti_torch_get_sizes(inputs[0], &ids) || ec_aoti_torch_get_sizes(inputs[3], &caches) ||
      ec_aoti_torch_empty_strided(2, sizes, strides, kFloat32, kCuda, 0, &logits) ||
      ec_aoti_torch_get_data_ptr(logits, &out))
    goto end;
  for (int i = 0; i < TOY_INPUTS; i++)
    if (ec_aoti_torch_get_data_ptr(inputs[i], &data[i])) goto end;
  void* writes[] = {&data[0], &data[1], &data[3], &data[4], &ids[1], &caches[0]};
  void* reads[] = {&data[1], &data[2], &data[3], &data[4], &out, &caches[0]};
  if (launch(model, 0, stream, writes)) goto end;
  for (int i = 0; i < TOY_REPEAT; i++)
    if (launch(model, 1, stream, reads)) goto end;
  outputs[0] = logits;
  logits = NULL;
  failed = 0;
end:
  if (logits != NULL) ec_aoti_torch_delete_tensor_object(logits);
  for (int i = 0; i < TOY_INPUTS; i++) {
    ec_aoti_torch_delete_tensor_object(inputs[i]);
    inputs[i] = NULL; /* taken over */
  }
  return failed;
}
