/* Six threads run, describe and refuse on one model of two int64 inputs while the first thread
 * closes it. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "edgecompile_runtime.h"

enum { THREADS = 6, RUNS_BEFORE_THE_END = 20 };

static ecr_model* model;
static atomic_int runs;

/* Until the model is closed; NULL, or what was wrong. */
static void* work(void* number) {
  int64_t data[33] = {0};
  /* Of the first bucket and of the second; the last thread's length is in none. */
  const int64_t lengths[THREADS] = {1, 7, 32, 33, 33, 0};
  const int64_t length = lengths[*(const int*)number];
  const ecr_tensor inputs[] = {
      {"input_ids", data, length * 8, ECR_INT64, 2, {1, length}},
      {"attention_mask", data, length * 8, ECR_INT64, 2, {1, length}},
  };
  for (;;) {
    ecr_outputs* outputs = NULL;
    char* text = NULL;
    const int32_t status = ecr_run(model, inputs, 2, &outputs);
    if (status == ECR_CLOSED) return NULL;
    if (status != (length ? ECR_OK : ECR_OUTSIDE)) return "a run ended otherwise";
    if (status == ECR_OK && outputs->count != 2) return "another number of outputs";
    if (status != ECR_OK && !strstr(ecr_last_error(), "bucket")) return "another thread's error";
    ecr_outputs_free(outputs);
    atomic_fetch_add(&runs, 1);
    const int32_t told = ecr_describe(model, &text);
    if (told != ECR_OK && told != ECR_CLOSED) return "a description ended otherwise";
    ecr_text_free(text);
  }
}

int main(int argc, char** argv) {
  pthread_t threads[THREADS];
  int numbers[THREADS], failed = argc != 2;
  ecr_options options = {0};
  options.lazy = 1;
  options.concurrency = 2;
  if (failed || ecr_open(argv[1], &options, &model) != ECR_OK) {
    fprintf(stderr, "error: %s\n", ecr_last_error());
    return 1;
  }
  for (int i = 0; i < THREADS; ++i) {
    numbers[i] = i;
    pthread_create(&threads[i], NULL, work, &numbers[i]);
  }
  while (atomic_load(&runs) < RUNS_BEFORE_THE_END) sched_yield();
  ecr_close(model);
  for (int i = 0; i < THREADS; ++i) {
    void* wrong = NULL;
    pthread_join(threads[i], &wrong);
    if (wrong != NULL) fprintf(stderr, "thread %d: %s\n", i, (const char*)wrong), failed = 1;
  }
  return failed;
}
