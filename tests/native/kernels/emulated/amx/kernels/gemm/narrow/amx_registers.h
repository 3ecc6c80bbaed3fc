// An emulation of the tile registers of AMX, in place of the header of this name, for CPUs that
// have none: "Intel Architecture Instruction Set Extensions Programming Reference", chapter 3. An
// access beyond a tile's shape or without one ends the process, as the CPU would.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "math/simd.h"

namespace ec {

inline bool amx_permitted() { return true; }

constexpr int64_t kAmxRows = 16;
constexpr int64_t kAmxGroups = 16;
constexpr int64_t kAmxBytes = 64;

struct EmulatedTile {
  int64_t rows, row_bytes;  // 0: no shape
  alignas(64) int8_t bytes[kAmxRows][kAmxBytes];
};
inline thread_local EmulatedTile t_tiles[8];
inline std::atomic<int64_t> g_products{0};  // of tiles, so far
#define EC_EMULATED_TILES 1

class AmxShapes {
 public:
  AmxShapes(int64_t rows, int64_t groups) {
    if (rows < 1 || rows > kAmxRows || groups < 1 || groups > kAmxGroups) abort();
    for (int i = 0; i < 8; ++i) {
      const bool is_a = i == 4 || i == 5, is_b = i > 5;
      t_tiles[i] = {is_b ? groups : rows, is_a ? 4 * groups : kAmxBytes, {}};
    }
  }
  ~AmxShapes() {
    for (EmulatedTile& tile : t_tiles) tile = {};
  }
  AmxShapes(const AmxShapes&) = delete;
  AmxShapes& operator=(const AmxShapes&) = delete;
};

inline EmulatedTile& shaped_tile(int i) {
  if (t_tiles[i].rows == 0) abort();
  return t_tiles[i];
}

template <int Tile>
void zero_tile() {
  EmulatedTile& tile = shaped_tile(Tile);
  std::memset(tile.bytes, 0, sizeof tile.bytes);
}
template <int Tile, int kTimes = 1>
void load_tile(const void* from, int64_t stride) {
  EmulatedTile& tile = shaped_tile(Tile);
  std::memset(tile.bytes, 0, sizeof tile.bytes);
  for (int64_t r = 0; r < tile.rows; ++r) {
    std::memcpy(tile.bytes[r], static_cast<const char*>(from) + r * kTimes * stride,
                static_cast<size_t>(tile.row_bytes));
  }
}
template <int Tile>
void store_tile(void* to, int64_t stride) {
  const EmulatedTile& tile = shaped_tile(Tile);
  for (int64_t r = 0; r < tile.rows; ++r) {
    std::memcpy(static_cast<char*>(to) + r * stride, tile.bytes[r],
                static_cast<size_t>(tile.row_bytes));
  }
}

// sum(c, a, b): a column of C with four bytes of a row of A and of a column of B added.
template <int C, int A, int B, class Sum>
void multiply_tiles(const Sum& sum) {
  EmulatedTile &c = shaped_tile(C), &a = shaped_tile(A), &b = shaped_tile(B);
  g_products.fetch_add(1, std::memory_order_relaxed);
  if (c.rows != a.rows || a.row_bytes != 4 * b.rows || c.row_bytes != b.row_bytes) abort();
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t g = 0; g < b.rows; ++g) {
      for (int64_t j = 0; j < c.row_bytes; j += 4) {
        sum(c.bytes[r] + j, a.bytes[r] + 4 * g, b.bytes[g] + j);
      }
    }
  }
}
template <int C, int A, int B>
void multiply_bf16_tiles() {
  multiply_tiles<C, A, B>([](int8_t* to, const int8_t* x, const int8_t* y) {
    float sum;
    std::memcpy(&sum, to, 4);
    for (int i = 0; i < 4; i += 2) {
      float factors[2];
      for (int of = 0; of < 2; ++of) {
        uint16_t half;
        std::memcpy(&half, (of == 0 ? x : y) + i, 2);
        const uint32_t bits = uint32_t{half} << 16;
        std::memcpy(&factors[of], &bits, 4);
      }
      sum += factors[0] * factors[1];
    }
    std::memcpy(to, &sum, 4);
  });
}
template <int C, int A, int B>
void multiply_int8_tiles() {
  multiply_tiles<C, A, B>([](int8_t* to, const int8_t* x, const int8_t* y) {
    int32_t sum;
    std::memcpy(&sum, to, 4);
    for (int i = 0; i < 4; ++i) sum += int32_t{x[i]} * int32_t{y[i]};
    std::memcpy(to, &sum, 4);
  });
}

}  // namespace ec
