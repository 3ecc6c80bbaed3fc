/* Four threads ask without a pause while a link changes between two versions of one int64 model.
 *
 *   host_follow LINK FIRST SECOND OTHER
 *
 * The versions' outputs hold 1 and 2; OTHER is a bundle that mustn't take over. Prints the answers
 * of each version, and how often the weights were mapped while both were open. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../../../../examples/c/follow.h"

enum { THREADS = 4, RUNS = 10000, SWAPS = 40 };

static followed all;
static atomic_int answers[3], ended;

static void* ask(void* unused) {
  int64_t data[7] = {0};
  const ecr_tensor inputs[] = {
      {"input_ids", data, sizeof data, ECR_INT64, 2, {1, 7}},
      {"attention_mask", data, sizeof data, ECR_INT64, 2, {1, 7}},
  };
  while (!atomic_load(&ended)) {
    ecr_outputs* outputs = NULL;
    if (follow_run(&all, inputs, 2, &outputs) != ECR_OK) return "a run failed";
    const float answer = *(const float*)outputs->tensors[0].data;
    ecr_outputs_free(outputs);
    if (answer != 1 && answer != 2) return "an answer of neither version";
    atomic_fetch_add(&answers[(int)answer], 1);
  }
  (void)unused;
  return NULL;
}

static int point(const char* link, const char* target) {
  char beside[4096];
  snprintf(beside, sizeof beside, "%s.new", link);
  return symlink(target, beside) == 0 && rename(beside, link) == 0;
}

static int count_weights(void) {
  char line[8192];
  int count = 0;
  FILE* maps = fopen("/proc/self/maps", "r");
  while (maps != NULL && fgets(line, sizeof line, maps)) count += strstr(line, "weights.") != NULL;
  if (maps != NULL) fclose(maps);
  return count;
}

static int fail(const char* text) {
  fprintf(stderr, "%s: %s\n", text, ecr_last_error());
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 5 || !point(argv[1], argv[2])) return fail("the link");
  if (follow_open(&all, argv[1], NULL) != ECR_OK) return fail("the first version");
  ecr_model* second = NULL;
  if (ecr_open(argv[3], NULL, &second) != ECR_OK) return fail("the second version");
  const int mapped = count_weights();
  ecr_close(second);

  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; ++i) pthread_create(&threads[i], NULL, ask, NULL);
  int failed = 0;
  for (int swap = 1; swap <= SWAPS && !failed; ++swap) {
    const int next = swap % 2 + 1, before = atomic_load(&answers[next]);
    if (!point(argv[1], argv[1 + next]) || follow_refresh(&all) != ECR_OK) failed = fail("a swap");
    /* Threads that end early are seen by what they return. */
    for (int i = 0; i < 1000000 && atomic_load(&answers[next]) == before; ++i) sched_yield();
  }
  if (!point(argv[1], argv[4]) || follow_refresh(&all) != FOLLOW_OTHER)
    failed = fail("another model");
  if (!point(argv[1], "none") || follow_refresh(&all) != ECR_BUNDLE) failed = fail("no bundle");
  for (int i = 0; i < 100000000 && atomic_load(&answers[1]) + atomic_load(&answers[2]) < RUNS;
       ++i) {
    sched_yield();
  }
  atomic_store(&ended, 1);
  for (int i = 0; i < THREADS; ++i) {
    void* wrong = NULL;
    pthread_join(threads[i], &wrong);
    if (wrong != NULL) failed = fail(wrong);
  }
  follow_close(&all);
  printf("%d %d %d\n", atomic_load(&answers[1]), atomic_load(&answers[2]), mapped);
  return failed;
}
