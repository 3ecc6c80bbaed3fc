#include "npz.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
  const char* descr;
  int32_t dtype;
  int32_t size;
} kTypes[] = {
    {"|u1", ECR_UINT8, 1},   {"|i1", ECR_INT8, 1},    {"<i2", ECR_INT16, 2},
    {"<i4", ECR_INT32, 4},   {"<i8", ECR_INT64, 8},   {"<f2", ECR_FLOAT16, 2},
    {"<f4", ECR_FLOAT32, 4}, {"<f8", ECR_FLOAT64, 8}, {"|b1", ECR_BOOL, 1},
};

static uint32_t little(const unsigned char* at, int bytes) {
  uint32_t value = 0;
  while (bytes-- > 0) value = value << 8 | at[bytes];
  return value;
}

/* The value of a key in the header of a .npy file, which is a Python dictionary. */
static const char* find_key(const char* header, const char* key) {
  const char* at = strstr(header, key);
  at = at == NULL ? NULL : strchr(at, ':');
  return at == NULL ? NULL : at + 1 + strspn(at + 1, " ");
}

static int read_npy(const unsigned char* data, size_t size, ecr_tensor* tensor) {
  char header[1024];
  if (size < 10 || memcmp(data, "\x93NUMPY\1\0", 8) != 0) return -1;
  const size_t length = little(data + 8, 2);
  if (length >= sizeof header || length > size - 10) return -1;
  memcpy(header, data + 10, length);
  header[length] = '\0';
  const char* descr = find_key(header, "'descr'");
  const char* fortran = find_key(header, "'fortran_order'");
  const char* shape = find_key(header, "'shape'");
  if (descr == NULL || fortran == NULL || shape == NULL || *shape != '(' || *descr != '\'' ||
      strncmp(fortran, "False", 5) != 0) {
    return -1;
  }
  int64_t nbytes = 0;
  for (size_t i = 0; i < sizeof kTypes / sizeof *kTypes; ++i) {
    if (strncmp(descr + 1, kTypes[i].descr, 3) == 0) {
      tensor->dtype = kTypes[i].dtype;
      nbytes = kTypes[i].size;
    }
  }
  if (nbytes == 0) return -1;
  for (const char* at = shape + 1 + strspn(shape + 1, " "); *at >= '0' && *at <= '9';) {
    char* end = NULL;
    const long long dim = strtoll(at, &end, 10);
    if (tensor->ndim == ECR_MAX_DIMS || dim < 0 || dim > 1 << 30) return -1;
    tensor->sizes[tensor->ndim++] = dim;
    nbytes *= dim;
    if (nbytes > 1 << 30) return -1;
    at = end + strspn(end, ", ");
  }
  if (size - 10 - length != (size_t)nbytes) return -1;
  /* The file aligns nothing, but a cache must be aligned: the model changes it in place. */
  void* copy = malloc(nbytes == 0 ? 1 : (size_t)nbytes);
  if (copy == NULL) return -1;
  memcpy(copy, data + 10 + length, (size_t)nbytes);
  tensor->data = copy;
  tensor->nbytes = nbytes;
  return 0;
}

static unsigned char* read_whole(const char* path, size_t* size) {
  FILE* stream = fopen(path, "rb");
  if (stream == NULL) return NULL;
  unsigned char* bytes = NULL;
  if (fseek(stream, 0, SEEK_END) == 0) {
    const long end = ftell(stream);
    rewind(stream);
    bytes = end < 22 ? NULL : malloc((size_t)end);
    if (bytes != NULL && fread(bytes, 1, (size_t)end, stream) != (size_t)end) {
      free(bytes);
      bytes = NULL;
    }
    *size = (size_t)end;
  }
  fclose(stream);
  return bytes;
}

/* The member that the archive's directory describes at `entry`. */
static int read_member(const unsigned char* bytes, size_t size, const unsigned char* entry,
                       ecr_tensor* tensor) {
  const size_t length = little(entry + 20, 4), name_length = little(entry + 28, 2);
  const size_t local = little(entry + 42, 4);
  if (memcmp(entry, "PK\1\2", 4) != 0 || little(entry + 10, 2) != 0 || name_length < 5) return -1;
  if (local > size || size - local < 30) return -1;
  const size_t begin = local + 30 + little(bytes + local + 26, 2) + little(bytes + local + 28, 2);
  if (begin > size || length > size - begin) return -1;
  if (read_npy(bytes + begin, length, tensor) != 0) return -1;
  /* Without ".npy". */
  char* name = calloc(1, name_length - 3);
  if (name == NULL) {
    free((void*)tensor->data);
    return -1;
  }
  memcpy(name, entry + 46, name_length - 4);
  tensor->name = name;
  return 0;
}

int npz_read(const char* path, npz_file* file) {
  memset(file, 0, sizeof *file);
  size_t size = 0;
  unsigned char* const bytes = read_whole(path, &size);
  if (bytes == NULL) {
    fprintf(stderr, "%s: can't be read\n", path);
    return -1;
  }
  /* The archive ends with a record of 22 bytes: no comment follows it. */
  const unsigned char* end = bytes + size - 22;
  size_t at = little(end + 16, 4);
  const size_t count = little(end + 10, 2);
  int good = memcmp(end, "PK\5\6", 4) == 0;
  file->tensors = calloc(count + 1, sizeof *file->tensors);
  for (size_t i = 0; good && file->tensors != NULL && i < count; ++i) {
    const unsigned char* entry = bytes + at;
    good = at <= size && size - at >= 46;
    const size_t names = good ? (size_t)little(entry + 28, 2) : 0;
    good =
        good && size - at - 46 >= names && read_member(bytes, size, entry, &file->tensors[i]) == 0;
    if (good) {
      ++file->count;
      at += 46 + names + little(entry + 30, 2) + little(entry + 32, 2);
    }
  }
  free(bytes);
  if (good && file->tensors != NULL) return 0;
  fprintf(stderr, "%s: isn't an archive of plain .npy files\n", path);
  npz_free(file);
  return -1;
}

void npz_free(npz_file* file) {
  for (size_t i = 0; i < file->count; ++i) {
    free((char*)file->tensors[i].name);
    free((void*)file->tensors[i].data);
  }
  free(file->tensors);
  memset(file, 0, sizeof *file);
}
