/* A fake of NVIDIA's cuBLASLt for tests of native/cuda/cublaslt.cpp; it is linked against the fake
 * of CUDA's driver, in whose streams products of float32 are computed, on the host. Those of other
 * types are counted and do nothing. It refuses what the real one would, and what the runtime
 * shouldn't ask for. FAKE_CUBLASLT has any of: "none", no algorithm is found; "refuse", products
 * fail; "capture", they fail while a graph is captured; "wrong", they come out wrong; "slow", they
 * take long. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 7, FAILED = 13, UNSUPPORTED = 15, FAULT = 700 };
enum { FLOAT32 = 0, FLOAT16 = 2, BFLOAT16 = 14, COMPUTE_FLOAT32 = 68, BIAS = 4 };

int fake_cudart_host_call(void* stream, void (*function)(void*), void* context);
int fake_cudart_reaches(const void* address, size_t size);
void fake_cudart_fault(int number);
int fake_cudart_spoil(void* stream);

typedef struct {
  int transposed, epilogue;
  const float* bias;
} product;
typedef struct {
  int type;
  uint64_t rows, columns;
  int64_t step;
} layout;
typedef struct {
  uint64_t workspace;
  uint32_t reductions, alignments[4];
} preference;
typedef struct {
  uint64_t data[8];
} algorithm;
typedef struct {
  algorithm chosen;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
} result;
typedef struct {
  const float *a, *b, *bias;
  float* out;
  layout at, bt;
} call;

static long products, searches;

static int asked(const char* word) {
  const char* given = getenv("FAKE_CUBLASLT");
  return given != NULL && strstr(given, word) != NULL;
}

static int make(void** out, size_t size) {
  *out = calloc(1, size);
  return *out == NULL ? FAILED : OK;
}

static int drop(void* made) {
  free(made);
  return OK;
}

size_t cublasLtGetVersion(void) { return 130002; }
int cublasLtCreate(void** handle) { return make(handle, 1); }
int cublasLtMatmulDescCreate(void** out, int compute, int scale) {
  if (compute != COMPUTE_FLOAT32 || scale != FLOAT32) return INVALID;
  return make(out, sizeof(product));
}
int cublasLtMatmulDescDestroy(void* made) { return drop(made); }
int cublasLtMatmulDescSetAttribute(void* made, int attribute, const void* value, size_t size) {
  product* item = made;
  if (attribute == 3 && size == 4) return memcpy(&item->transposed, value, size), OK;
  if (attribute == 7 && size == 4) return memcpy(&item->epilogue, value, size), OK;
  if (attribute == 8 && size == 8) return memcpy(&item->bias, value, size), OK;
  return INVALID;
}
int cublasLtMatrixLayoutCreate(void** out, int type, uint64_t rows, uint64_t columns,
                               int64_t step) {
  if (type != FLOAT32 && type != FLOAT16 && type != BFLOAT16) return UNSUPPORTED;
  if (rows == 0 || columns == 0 || step < (int64_t)rows) return INVALID;
  if (make(out, sizeof(layout)) != OK) return FAILED;
  *(layout*)*out = (layout){type, rows, columns, step};
  return OK;
}
int cublasLtMatrixLayoutDestroy(void* made) { return drop(made); }
int cublasLtMatmulPreferenceCreate(void** out) { return make(out, sizeof(preference)); }
int cublasLtMatmulPreferenceDestroy(void* made) { return drop(made); }
int cublasLtMatmulPreferenceSetAttribute(void* made, int attribute, const void* value,
                                         size_t size) {
  preference* item = made;
  if (attribute == 1 && size == 8) return memcpy(&item->workspace, value, size), OK;
  if (attribute == 3 && size == 4) return memcpy(&item->reductions, value, size), OK;
  if (attribute < 5 || attribute > 8 || size != 4) return INVALID;
  return memcpy(&item->alignments[attribute - 5], value, size), OK;
}

/* Column-major: out[m, n] = a[k, m]' b[k, n]. */
static int fit(const product* item, const layout* a, const layout* b, const layout* c,
               const layout* d) {
  return item->transposed == 1 && (item->epilogue == BIAS) == (item->bias != NULL) &&
         a->rows == b->rows && a->columns == c->rows && b->columns == c->columns &&
         memcmp(c, d, sizeof *c) == 0 && a->type == b->type && a->type == c->type;
}

int cublasLtMatmulAlgoGetHeuristic(void* handle, const product* item, const layout* a,
                                   const layout* b, const layout* c, const layout* d,
                                   const preference* wanted, int most, result* results,
                                   int* count) {
  if (handle == NULL || most < 1 || !fit(item, a, b, c, d) || wanted->reductions != 2)
    return INVALID;
  for (int i = 0; i < 4; i++)
    if (wanted->alignments[i] != 16) return INVALID;
  __atomic_add_fetch(&searches, 1, __ATOMIC_RELAXED);
  *count = !asked("none");
  *results = (result){.chosen = {{d->rows, d->columns, a->rows}}, .workspace = wanted->workspace};
  return *count > 0 ? OK : UNSUPPORTED;
}

static void run(void* context) {
  call* made = context; /* kept: a graph may run it at any time */
  const size_t depth = made->at.rows, m = made->at.columns, n = made->bt.columns;
  if (!fake_cudart_reaches(made->a, 4 * depth * m) ||
      !fake_cudart_reaches(made->b, 4 * depth * n) || !fake_cudart_reaches(made->out, 4 * m * n) ||
      (made->bias != NULL && !fake_cudart_reaches(made->bias, 4 * m))) {
    fake_cudart_fault(FAULT);
    return;
  }
  for (int turn = asked("slow") ? 400 : 1; turn > 0; turn--)
    for (size_t j = 0; j < n; j++)
      for (size_t i = 0; i < m; i++) {
        float sum = made->bias == NULL ? 0 : made->bias[i];
        for (size_t k = 0; k < depth; k++)
          sum += made->a[k + i * (size_t)made->at.step] * made->b[k + j * (size_t)made->bt.step];
        made->out[i + j * m] = sum + (float)asked("wrong");
      }
}

int cublasLtMatmul(void* handle, const product* item, const float* alpha, const void* a,
                   const layout* at, const void* b, const layout* bt, const float* beta,
                   const void* c, const layout* ct, void* d, const layout* dt,
                   const algorithm* chosen, void* workspace, size_t workspace_bytes, void* stream) {
  if (asked("refuse") || (asked("capture") && fake_cudart_spoil(stream))) return FAILED;
  if (handle == NULL || !fit(item, at, bt, ct, dt) || *alpha != 1 || *beta != 0 || c != d)
    return INVALID;
  if (chosen->data[0] != dt->rows || chosen->data[1] != dt->columns ||
      chosen->data[2] != at->rows || !fake_cudart_reaches(workspace, workspace_bytes))
    return INVALID;
  __atomic_add_fetch(&products, 1, __ATOMIC_RELAXED);
  if (at->type != FLOAT32) return OK;
  call* made = malloc(sizeof *made);
  if (made == NULL) return FAILED;
  *made = (call){a, b, item->bias, d, *at, *bt};
  return fake_cudart_host_call(stream, run, made) == 0 ? OK : FAILED;
}

/* Algorithms that were asked for since the last call. */
long fake_cublaslt_searches(void) { return __atomic_exchange_n(&searches, 0, __ATOMIC_RELAXED); }

/* Products that were queued since the last call. */
long fake_cublaslt_products(void) { return __atomic_exchange_n(&products, 0, __ATOMIC_RELAXED); }
