// The mask of a run: the tokens whose logits its caller reads.
#pragma once

#include "kernels/gemm/packed_weight.h"

namespace ec {

// While it lives, runs of the calling thread have this mask. Generated code calls operators on the
// thread that runs it.
class HeadMask {
 public:
  explicit HeadMask(const ColumnMask& mask) : mask_(mask) { t_mask = &mask_; }
  ~HeadMask() { t_mask = nullptr; }
  HeadMask(const HeadMask&) = delete;
  HeadMask& operator=(const HeadMask&) = delete;

  // Null: all logits are read.
  static const ColumnMask* of_run() { return t_mask; }

 private:
  static inline thread_local const ColumnMask* t_mask = nullptr;
  ColumnMask mask_;
};

}  // namespace ec
