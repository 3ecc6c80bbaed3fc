// The steps of a tile of several rows of prepared activations: for each block of inputs one, and
// another where a row has an outlier in it.
#pragma once

#include "kernels/gemm/narrow/gemm_rounded_tile.h"

namespace ec {

// Operands of a step: a block, with the first or the second part of activations.
struct RoundedStep {
  int32_t a, b;
};

// Writes the steps in order of `count` times Row::kRows prepared rows that lie `distance` bytes
// apart. Returns their number, up to two for a block.
template <class Row>
int64_t list_rounded_steps(const Row& row, const char* rows, int64_t count, int64_t distance,
                           int64_t block_bytes, RoundedStep* steps) {
  RoundedStep* to = steps;
  uint64_t wanted = 0;  // a bit for each of 64 blocks
  for (int64_t block = 0; block < row.blocks; ++block, wanted >>= 1) {
    if (block % 64 == 0) {
      wanted = 0;
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t r = 0; r < Row::kRows; ++r) {
          wanted |= row.wanted(rows + i * distance, r)[block / 64];
        }
      }
    }
    const RoundedStep step{static_cast<int32_t>(block * Row::kRecord),
                           static_cast<int32_t>(block * block_bytes)};
    *to++ = step;
    if (wanted & 1) *to++ = {step.a + static_cast<int32_t>(row.part()), step.b};
  }
  return to - steps;
}

}  // namespace ec
