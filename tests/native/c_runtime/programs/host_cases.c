/* Opens every bundle that standard input names, one path a line, with verify as argv[1] says, and
 * prints a line for each: the status, and the error or the description with its line ends replaced.
 * Bundles that open are described, run with nonsense and closed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "edgecompile_runtime.h"

static void print_line(int status, const char* text) {
  printf("%d\t", status);
  for (; *text != '\0'; ++text) putchar(*text == '\n' ? '\v' : *text);
  putchar('\n');
  fflush(stdout);
}

int main(int argc, char** argv) {
  static char path[4096];
  ecr_options options;
  memset(&options, 0, sizeof options);
  options.verify = argc > 1 ? atoi(argv[1]) : ECR_VERIFY_FULL;
  while (fgets(path, sizeof path, stdin) != NULL) {
    path[strcspn(path, "\n")] = '\0';
    ecr_model* model = NULL;
    const int status = ecr_open(path, &options, &model);
    if (status != ECR_OK) {
      if (model != NULL) abort();
      print_line(status, ecr_last_error());
      continue;
    }
    char* text = NULL;
    ecr_outputs* outputs = NULL;
    ecr_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    if (ecr_describe(model, &text) != ECR_OK) abort();
    if (ecr_run(model, &tensor, 1, &outputs) != ECR_INPUT || outputs != NULL) abort();
    print_line(status, text);
    ecr_text_free(text);
    ecr_close(model);
    ecr_close(model);
    if (ecr_describe(model, &text) != ECR_CLOSED) abort();
  }
  return 0;
}
