// One step after the other of a recurrent layer (LSTM, GRU, RNN; torch's kinds, torch's order of
// gates), single precision.
#pragma once

#include <cstdint>

#include "tensors/tensor.h"

namespace ec {

enum class Recurrence : int32_t { kLstm = 0, kGru = 1, kRnnTanh = 2, kRnnRelu = 3 };

constexpr int64_t gate_count(Recurrence kind) {
  return kind == Recurrence::kLstm ? 4 : kind == Recurrence::kGru ? 3 : 1;
}

struct RecurrenceSteps {
  Recurrence kind;
  bool reverse;  // the last input comes first
  int64_t length, batch, hidden;
  const float* gates;      // the inputs' share: [length, batch, gates*hidden], row-major
  const Tensor* w_packed;  // of the state's share, [gates*hidden, hidden]
  const float* bias;       // of the state's share; null: none
  const float* h0;         // [batch, hidden], row-major
  float* y;                // states, [length, batch, hidden], row-major
  float* c;                // [batch, hidden]: an LSTM's first one, and then its last
};

void run_recurrence(const RecurrenceSteps& steps);

}  // namespace ec
