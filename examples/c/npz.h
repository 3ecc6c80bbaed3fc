/* Reads the arrays of an .npz file, as golden vectors are kept in: a zip archive of .npy files.
 * Stored members only (edgecompile writes no others), little-endian numbers, row-major. */
#ifndef NPZ_H
#define NPZ_H

#include <stddef.h>

#include "edgecompile_runtime.h"

typedef struct {
  size_t count;
  ecr_tensor* tensors; /* their data and names are owned */
} npz_file;

/* Returns 0, or -1 with a message on standard error. Free the file with npz_free. */
int npz_read(const char* path, npz_file* file);
void npz_free(npz_file* file);

#endif
