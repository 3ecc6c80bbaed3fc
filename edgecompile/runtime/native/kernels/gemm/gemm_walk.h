// How one task goes over its part of C: shared by products of all number types.
//
// How packing, tasks, panels and tiles fit together:
// - B is packed into panels of 32 columns, all of K in each (gemm_pack, packed_weight; at build
// time
//   for weights). A panel is one stream of memory, the same for every instruction set.
// - A product is divided into tasks, the cells of a grid: chunks of rows by groups of panels
//   (gemm_split). Threads take them one by one.
// - A task cuts K into slices where rows of A would leave the nearest cache; partial sums wait in C
//   or in memory of the thread's own. For each slice it goes over its panels, and for each panel
//   over the tiles of its rows.
// - A tile is up to kTileRows rows by a few vectors of a panel's columns, whose sums stay in
//   registers over the whole slice (gemm_kernel.h; narrow/ has those of fewer bits, on the
//   tile registers of AMX too). It prefetches its part of the panel that comes next.
// - What follows a product (bias, activation, residual) is done to each tile with its last slice.
#pragma once

#include <cstdint>

#include "kernels/gemm/gemm.h"
#include "math/simd.h"
#include "threads/threads.h"

namespace ec {

// A task's rows in as few tiles of at most `most` rows as do, which differ by one row at most.
struct TileRows {
  int64_t rows, tiles;

  TileRows(int64_t rows, int64_t most) : rows(rows), tiles((rows + most - 1) / most) {}

  int64_t highest() const { return (rows + tiles - 1) / tiles; }

  // body(first row, number of rows) for each tile.
  template <class Body>
  void each(const Body& body) const {
    int64_t done = 0;
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t first = done;
      done = rows * (i + 1) / tiles;
      body(first, done - first);
    }
  }
};

// The panels [p0, p1) of a task in the order in which it takes them: such that the next task's come
// next.
class PanelWalk {
 public:
  PanelWalk(int64_t n, int64_t p0, int64_t p1)
      : p0_(p0), p1_(p1), all_((n + kPanel - 1) / kPanel), step_(takes_from_back() ? -1 : 1) {}

  int64_t count() const { return p1_ - p0_; }
  int64_t panel(int64_t i) const { return step_ > 0 ? p0_ + i : p1_ - 1 - i; }
  bool is_last(int64_t i) const { return i + 1 == count(); }

  // What the thread reads after the i-th panel of a slice of K: a panel, -1 for none, and where in
  // K.
  struct Next {
    int64_t panel, k;
  };
  Next after(int64_t i, int64_t k, int64_t depth, bool last_slice) const {
    if (is_last(i) && !last_slice) return {panel(0), k + depth};
    const int64_t next = panel(i) + step_;
    if (next < 0 || next >= all_) return {-1, 0};
    return {next, is_last(i) ? 0 : k};
  }
  Next after(int64_t i) const { return after(i, 0, 0, true); }

 private:
  int64_t p0_, p1_, all_, step_;
};

// After a tile that prefetched `part` of the `size` elements of `panel`: the next tile's part.
template <class T>
void prefetch_next_part(const T** prefetch, const T* panel, int64_t part, int64_t size) {
  if (*prefetch == nullptr) return;
  *prefetch += part;
  if (*prefetch - panel >= size) *prefetch = nullptr;
}

// Memory soon needed, a few lines for each step.
struct StepPrefetch {
  const char* next;
  const char* end;
  int64_t lines;

  EC_INLINE void advance() {
    if (next >= end) return;
    for (int64_t i = 0; i < lines; ++i, next += 64) __builtin_prefetch(next, 0, 2);
  }
};

}  // namespace ec
