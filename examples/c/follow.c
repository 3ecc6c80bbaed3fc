#include "follow.h"

#include <string.h>

/* Whether a program that calls `old` can call `new`; outputs and inputs have the same order. */
static int replaces(const ecr_signature* new, const ecr_signature* old) {
  if (strcmp(new->name, old->name) != 0) return 0;
  if (new->n_inputs != old->n_inputs || new->n_outputs != old->n_outputs) return 0;
  for (int32_t i = 0; i < old->n_inputs + old->n_outputs; ++i) {
    const int is_input = i < old->n_inputs;
    const int32_t k = is_input ? i : i - old->n_inputs;
    const ecr_spec* a = is_input ? &new->inputs[k] : &new->outputs[k];
    const ecr_spec* b = is_input ? &old->inputs[k] : &old->outputs[k];
    if (strcmp(a->name, b->name) != 0 || a->dtype != b->dtype || a->ndim != b->ndim) return 0;
    for (int32_t d = 0; is_input && d < a->ndim; ++d) {
      if (a->least[d] > b->least[d] || a->most[d] < b->most[d]) return 0;
    }
  }
  return 1;
}

int32_t follow_open(followed* all, const char* path, const ecr_options* options) {
  all->path = path;
  all->options = options;
  return ecr_open(path, options, &all->model);
}

int32_t follow_run(followed* all, const ecr_tensor* inputs, int64_t n_inputs,
                   ecr_outputs** outputs) {
  for (;;) {
    ecr_model* const model = __atomic_load_n(&all->model, __ATOMIC_ACQUIRE);
    const int32_t status = ecr_run(model, inputs, n_inputs, outputs);
    /* It was closed in between: handles aren't used again, and a newer version serves. */
    if (status == ECR_CLOSED && model != __atomic_load_n(&all->model, __ATOMIC_ACQUIRE)) continue;
    return status;
  }
}

int32_t follow_refresh(followed* all) {
  ecr_model* model = NULL;
  ecr_signature ours, theirs;
  int32_t status = ecr_open(all->path, all->options, &model);
  if (status == ECR_OK) status = ecr_get_signature(model, &theirs);
  if (status == ECR_OK) status = ecr_get_signature(all->model, &ours);
  if (status == ECR_OK && !replaces(&theirs, &ours)) status = FOLLOW_OTHER;
  if (status == ECR_OK) model = __atomic_exchange_n(&all->model, model, __ATOMIC_ACQ_REL);
  ecr_close(model); /* the old one, or a new one that doesn't serve */
  return status;
}

void follow_close(followed* all) { ecr_close(all->model); }
