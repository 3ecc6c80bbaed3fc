/* A model whose versions change while threads run it, as Python's `follow` does. */
#ifndef FOLLOW_H
#define FOLLOW_H

#include "edgecompile_runtime.h"

/* Status of a version that has another name, or takes or gives something else. */
enum { FOLLOW_OTHER = 1 };

typedef struct {
  const char*
      path; /* a link to the version, such as /var/lib/edgecompile/minilm/current; borrowed */
  const ecr_options* options; /* of ecr_open, or null; borrowed */
  ecr_model* model;           /* that serves */
} followed;

/* As ecr_open. */
int32_t follow_open(followed* all, const char* path, const ecr_options* options);

/* As ecr_run, with the version that serves. Any thread may call it. */
int32_t follow_run(followed* all, const ecr_tensor* inputs, int64_t n_inputs,
                   ecr_outputs** outputs);

/* Opens the version that is at the path now beside the one that serves, and lets it serve. Then the
 * old one ends its runs and closes. After an error it serves on. One thread at a time may call it.
 * Golden vectors aren't repeated: the store's `install` did that. */
int32_t follow_refresh(followed* all);

/* No other call may be under way. */
void follow_close(followed* all);

#endif
