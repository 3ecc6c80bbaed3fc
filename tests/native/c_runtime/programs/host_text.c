/* Prints the tokens that follow some others, with the model's own caches; twice, as a new text. */
#include <stdio.h>
#include <stdlib.h>

#include "edgecompile_runtime.h"

int main(int argc, char** argv) {
  ecr_model* model = NULL;
  int32_t status = argc < 4 ? ECR_INPUT : ecr_open(argv[1], NULL, &model);
  for (int turn = 0; turn < 2 && status == ECR_OK; ++turn) {
    int64_t token = atoi(argv[3]), row = 0, last = 0;
    const ecr_tensor inputs[] = {
        {"input_ids", &token, sizeof token, ECR_INT64, 2, {1, 1}},
        {"position", &row, sizeof row, ECR_INT64, 1, {1}},
        {"last", &last, sizeof last, ECR_INT64, 1, {1}},
    };
    for (; row < atoi(argv[2]) && status == ECR_OK; ++row) {
      ecr_outputs* outputs = NULL;
      status = ecr_run(model, inputs, 3, &outputs);
      if (status != ECR_OK) break;
      const float* const logits = (const float*)outputs->tensors[0].data;
      token = 0;
      for (int64_t i = 1; i < outputs->tensors[0].sizes[1]; ++i)
        if (logits[i] > logits[token]) token = i;
      ecr_outputs_free(outputs);
      printf("%d ", (int)token);
    }
  }
  if (status != ECR_OK) fprintf(stderr, "error: %s\n", ecr_last_error());
  ecr_close(model);
  return status;
}
