/* The kernels that compute, for fake_cuda.c alone. Each has arguments of eight bytes. */
#pragma once
#define P(x) ((void*)(uintptr_t)(x))

static int touch(uint64_t at, uint64_t bytes) {
  if (fake_cudart_reaches(P(at), bytes)) return 1;
  fake_cudart_fault(FAULT);
  return 0;
}

/* ids, mask, products, count: products = ids * mask; it asserts that ids are below 100 */
static void toy_products(const uint64_t* a) {
  if (!touch(a[0], a[3] * 8) || !touch(a[1], a[3] * 8) || !touch(a[2], a[3] * 4)) return;
  const int64_t *ids = P(a[0]), *mask = P(a[1]);
  for (uint64_t i = 0; i < a[3]; i++) {
    if (ids[i] >= 100) fake_cudart_fault(ASSERTED);
    ((float*)P(a[2]))[i] = (float)(ids[i] * mask[i]);
  }
}

/* mask, floats, count */
static void toy_floats(const uint64_t* a) {
  if (!touch(a[0], a[2] * 8) || !touch(a[1], a[2] * 4)) return;
  for (uint64_t i = 0; i < a[2]; i++) ((float*)P(a[1]))[i] = (float)((int64_t*)P(a[0]))[i];
}

/* products, floats, states, count: pairs of both */
static void toy_states(const uint64_t* a) {
  if (!touch(a[0], a[3] * 4) || !touch(a[1], a[3] * 4) || !touch(a[2], a[3] * 8)) return;
  for (uint64_t i = 0; i < a[3]; i++) {
    ((float*)P(a[2]))[2 * i] = ((float*)P(a[0]))[i];
    ((float*)P(a[2]))[2 * i + 1] = ((float*)P(a[1]))[i];
  }
}

/* products, floats, weights, rows, batch, length: sums, the maximum and the second weight */
static void toy_rows(const uint64_t* a) {
  const uint64_t count = a[4] * a[5];
  if (!touch(a[0], count * 4) || !touch(a[1], count * 4) || !touch(a[2], 64) ||
      !touch(a[3], a[4] * 16))
    return;
  const float *products = P(a[0]), *floats = P(a[1]), *weights = P(a[2]);
  for (uint64_t row = 0; row < a[4]; row++, products += a[5], floats += a[5]) {
    float* out = (float*)P(a[3]) + 4 * row;
    out[0] = out[1] = 0;
    out[2] = products[0];
    out[3] = weights[1];
    for (uint64_t i = 0; i < a[5]; i++) {
      out[0] += products[i];
      out[1] += floats[i];
      if (products[i] > out[2]) out[2] = products[i];
    }
  }
}

/* ids, position, keys [rows, 6], values [rows, 8], count, rows */
static void toy_write(const uint64_t* a) {
  if (!touch(a[0], a[4] * 8) || !touch(a[1], 8)) return;
  const int64_t *ids = P(a[0]), first = *(int64_t*)P(a[1]);
  if (!touch(a[2], a[5] * 24) || !touch(a[3], a[5] * 32)) return;
  for (uint64_t i = 0; i < a[4] && first + i < a[5]; i++) {
    for (int j = 0; j < 6; j++) ((float*)P(a[2]))[6 * (first + i) + j] = (float)ids[i];
    for (int j = 0; j < 8; j++) ((float*)P(a[3]))[8 * (first + i) + j] = 2 * (float)ids[i];
  }
}

/* position, last, keys, values, logits [100], rows: the next token's is 0, others have their
 * distance */
static void toy_logits(const uint64_t* a) {
  if (!touch(a[0], 8) || !touch(a[1], 8) || !touch(a[2], a[5] * 24) || !touch(a[3], a[5] * 32) ||
      !touch(a[4], 400))
    return;
  const int64_t end = *(int64_t*)P(a[0]) + *(int64_t*)P(a[1]);
  double sum = 0;
  for (int64_t i = 0; i <= end && i < (int64_t)a[5]; i++)
    sum += (double)(i + 1) * ((float*)P(a[2]))[6 * i + 5] + ((float*)P(a[3]))[8 * i + 7];
  for (int v = 0; v < 100; v++) ((float*)P(a[4]))[v] = -(float)abs(v - (int)((int64_t)sum % 100));
}

/* mask, total, count: how many are true */
static void toy_count(const uint64_t* a) {
  if (!touch(a[0], a[2] * 8) || !touch(a[1], 8)) return;
  int64_t total = 0;
  for (uint64_t i = 0; i < a[2]; i++) total += ((int64_t*)P(a[0]))[i] != 0;
  *(int64_t*)P(a[1]) = total;
}

/* ids, mask, out, count, kept, room: those that are kept; the room has as many pairs */
static void toy_kept(const uint64_t* a) {
  if (!touch(a[0], a[3] * 8) || !touch(a[1], a[3] * 8) || !touch(a[2], a[4] * 4) ||
      !touch(a[5], a[4] * 16))
    return;
  memset(P(a[5]), 255, a[4] * 16);
  float* out = P(a[2]);
  for (uint64_t i = 0; i < a[3]; i++)
    if (((int64_t*)P(a[1]))[i]) *out++ = (float)((int64_t*)P(a[0]))[i];
}

/* ids, mask, out, count, kept: the others */
static void toy_left(const uint64_t* a) {
  if (!touch(a[0], a[3] * 8) || !touch(a[1], a[3] * 8) || !touch(a[2], (a[3] - a[4]) * 4)) return;
  float* out = P(a[2]);
  for (uint64_t i = 0; i < a[3]; i++)
    if (!((int64_t*)P(a[1]))[i]) *out++ = (float)((int64_t*)P(a[0]))[i];
}

/* pairs, weights [4, 2], bias [4], out, count */
static void toy_multiply(const uint64_t* a) {
  if (!touch(a[0], a[4] * 8) || !touch(a[1], 32) || !touch(a[2], 16) || !touch(a[3], a[4] * 16))
    return;
  const float *pairs = P(a[0]), *weights = P(a[1]), *bias = P(a[2]);
  for (uint64_t i = 0; i < a[4]; i++)
    for (int j = 0; j < 4; j++)
      ((float*)P(a[3]))[4 * i + j] =
          bias[j] + pairs[2 * i] * weights[2 * j] + pairs[2 * i + 1] * weights[2 * j + 1];
}

static const struct {
  const char* name;
  int arguments;
  void (*run)(const uint64_t*);
} kernels[] = {{"toy_products", 4, toy_products}, {"toy_floats", 3, toy_floats},
               {"toy_states", 4, toy_states},     {"toy_rows", 6, toy_rows},
               {"toy_write", 6, toy_write},       {"toy_logits", 6, toy_logits},
               {"toy_count", 3, toy_count},       {"toy_kept", 6, toy_kept},
               {"toy_left", 5, toy_left},         {"toy_multiply", 5, toy_multiply}};
