// The recurrence of state space models and of linear attention, token by token, single precision.
#pragma once

#include <cstdint>

namespace ec {

// For each head and token: the state decays, the outer product of a key and a value is added to it
// (with the delta rule, of what the value has beyond the state's own answer), and a query reads it.
struct LinearScan {
  int64_t tokens;  // those that count
  int64_t heads, key_heads, keys, values;
  const float* q;      // [tokens, key_heads, keys], row-major
  const float* k;      // the same
  const float* v;      // [tokens, heads, values], row-major
  const float* decay;  // [tokens, heads, decays], row-major
  int64_t decays;      // of a token and head: one, or one for each key
  const float* beta;   // [tokens, heads], of the delta rule; null: without it
  float* state;        // [heads, keys, values], row-major: the first one, and then the last
  float* y;            // [tokens, heads, values], row-major
};

void linear_scan(const LinearScan& scan);

}  // namespace ec
