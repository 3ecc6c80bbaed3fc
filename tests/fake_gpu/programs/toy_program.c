/* A program as the build makes them, small enough to be written by hand: what AOTInductor's
 * container exports, over the runtime library for GPUs. Its model is embed() of numpy_engine.py;
 * its kernels are those that fake_cuda.c computes.
 *
 * TOY_FAULT makes it misbehave: 1 gives a strided output, 2 the same tensor twice, 3 a view that
 * has to be copied, 4 asks for other memory than in its rehearsal, 5 has one output less, 6 names
 * no kernel that exists, 7 computes something else. TOY_REPEAT makes it slow: one of its kernels
 * runs so many times, with the same result. TOY_LARGER is a condition on count, batch times length:
 * where it holds an output is the beginning of a tensor of 256 KiB. */
#ifndef TOY_FAULT
#define TOY_FAULT 0
#endif
#ifndef TOY_REPEAT
#define TOY_REPEAT 1
#endif
#ifndef TOY_LARGER
#define TOY_LARGER 0
#endif
enum { TOY_INPUTS = 2 };
#if TOY_FAULT == 5
static const char* const output_names[] = {"embedding"};
#else
static const char* const output_names[] = {"embedding", "states"};
#endif
static const char* const names[] = {"toy_products", "toy_floats", "toy_states",
                                    TOY_FAULT == 6 ? "missing" : "toy_rows"};

#include "toy_container.h"

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
  if (new_tensor(2, sizes, &tensors[2]) || new_tensor(2, sizes, &tensors[3])) goto end;
  if (TOY_LARGER) {
    int64_t room[1] = {65536}, steps[3] = {2 * sizes[1], 2, 1};
    handle large;
    if (new_tensor(1, room, &large) ||
        ec_aoti_torch__reinterpret_tensor(large, 3, states, steps, 0, &tensors[4]) ||
        ec_aoti_torch_delete_tensor_object(large))
      goto end;
  } else if (new_tensor(3, states, &tensors[4])) {
    goto end;
  }
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
#if TOY_FAULT == 7
  data[1] = data[0];
#endif
  void* products[] = {&data[0], &data[1], &data[2], &count};
  void* floats[] = {&data[1], &data[3], &count};
  void* pairs[] = {&data[2], &data[3], &data[4], &count};
  void* sums[] = {&data[2], &data[3], &model->weights, &data[5], &batch, &length};
  for (int i = 1; i < TOY_REPEAT; i++)
    if (launch(model, 0, stream, products)) goto end;
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
