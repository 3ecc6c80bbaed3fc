// Convolutions of 3×3 by Winograd's minimal filtering, with fewer multiplications than outputs have
// taps.
//
// An image is cut into tiles of R×R outputs (R is Convolution::tile, 2 or 4). The (R+2)×(R+2) input
// values under a tile are transformed for each channel, which gives as many points. At each point,
// the tiles are a matrix [tiles][channels in], multiplied by the point's weights, which were
// transformed at build time. The (R+2)² products of an output channel are transformed back to the
// R×R outputs. So a tile takes (R+2)² multiplications for each pair of channels in place of 9·R²:
// 16 instead of 36, or 36 instead of 144.
//
// A task is a block of tiles by a group of panels. What it transforms and multiplies stays in the
// second-level cache.
#include <algorithm>

#include "base/scratch.h"
#include "kernels/convolution/convolution.h"
#include "kernels/gemm/gemm_kernel.h"
#include "kernels/gemm/gemm_split.h"
#include "kernels/gemm/gemm_walk.h"
#include "kernels/vectors.h"
#include "math/simd.h"
#include "threads/threads.h"

namespace ec {
namespace {

constexpr int kL = kFloatLanes;
// Floats of transformed inputs and products that a task holds: half of a cache of 1 MiB.
constexpr int64_t kBlockFloats = 128 * 1024;
constexpr int64_t kLeastTiles = 2 * kTileRows;  // of a task, where threads want more tasks

thread_local Scratch t_scratch;

// The transforms along one axis. They interpolate a polynomial at the points 0, ±a, ±b … and
// infinity; convolution.py derives those of weights from the same points.
template <int R>
struct Transform;

template <>
struct Transform<2> {  // 0, 1, -1
  EC_INLINE static void input(const vf32 (&x)[4], vf32 (&to)[4]) {
    to[0] = x[2] - x[0];
    to[1] = x[2] + x[1];
    to[2] = x[2] - x[1];
    to[3] = x[3] - x[1];
  }
  EC_INLINE static void output(const vf32 (&m)[4], vf32 (&to)[2]) {
    to[0] = m[0] + m[1] + m[2];
    to[1] = m[1] - m[2] + m[3];
  }
};

// The usual points 1, -1, 2, -2 make errors four times as large as these.
template <>
struct Transform<4> {
  static constexpr float kA = 0.75f, kB = 1.5f;  // and all products below are exact
  static constexpr float kA2 = kA * kA, kB2 = kB * kB;

  EC_INLINE static void input(const vf32 (&x)[6], vf32 (&to)[6]) {
    const vf32 even_a = x[4] - kB2 * x[2], odd_a = kA * (x[3] - kB2 * x[1]);
    const vf32 even_b = x[4] - kA2 * x[2], odd_b = kB * (x[3] - kA2 * x[1]);
    to[0] = x[4] - (kA2 + kB2) * x[2] + kA2 * kB2 * x[0];
    to[1] = even_a + odd_a;
    to[2] = even_a - odd_a;
    to[3] = even_b + odd_b;
    to[4] = even_b - odd_b;
    to[5] = x[5] - (kA2 + kB2) * x[3] + kA2 * kB2 * x[1];
  }
  EC_INLINE static void output(const vf32 (&m)[6], vf32 (&to)[4]) {
    const vf32 even_a = m[1] + m[2], odd_a = m[1] - m[2];
    const vf32 even_b = m[3] + m[4], odd_b = m[3] - m[4];
    to[0] = m[0] + even_a + even_b;
    to[1] = kA * odd_a + kB * odd_b;
    to[2] = kA2 * even_a + kB2 * even_b;
    to[3] = kA2 * kA * odd_a + kB2 * kB * odd_b + m[5];
  }
};

// Tiles are added up in the same order whatever their number: one sum for each product.
template <int... Rows>
constexpr TileTable<Tile, kTileRows> make_single_tiles(std::integer_sequence<int, Rows...>) {
  return {{run_tile<Rows + 1, kTileVectors<Rows + 1>, 1>...},
          {kTileVectors<Rows + 1> * kFloatLanes...}};
}
constexpr auto kSingleTiles = make_single_tiles(std::make_integer_sequence<int, kTileRows>{});

template <int R>
class Winograd {
 public:
  static constexpr int kSide = R + 2;
  static constexpr int kPoints = kSide * kSide;

  Winograd(const Convolution& c, const float* x, const float* packed, const Epilogue& epilogue,
           float* out)
      : c_(c),
        h_(c.axes[1]),
        w_(c.axes[2]),
        x_(x),
        packed_(packed),
        epilogue_(epilogue),
        out_(out),
        tiles_h_((h_.out + R - 1) / R),
        tiles_w_((w_.out + R - 1) / R),
        tiles_(c.batch * c.axes[0].out * tiles_h_ * tiles_w_),
        panels_((c.channels_out + kPanel - 1) / kPanel),
        ld_((c.channels_in + 31) / 16 * 16) {
    epilogue_.ld_residual = c.channels_out;
  }

  void run() const {
    const Grid grid = divide();
    const auto [chunks, groups] = grid;
    parallel_for(chunks * groups, [&, chunks = chunks, groups = groups](int64_t i) {
      const int64_t chunk = i / groups, group = i % groups;
      run_block(tiles_ * chunk / chunks, tiles_ * (chunk + 1) / chunks, panels_ * group / groups,
                panels_ * (group + 1) / groups);
    });
  }

 private:
  struct Place {
    int64_t image, h, w;  // the first output of a tile
  };

  Place place(int64_t tile) const {
    const int64_t row = tile / tiles_w_;
    return {row / tiles_h_, row % tiles_h_ * R, tile % tiles_w_ * R};
  }

  // The floats that one tile takes.
  int64_t tile_floats() const { return kPoints * (ld_ + kPanel); }

  Grid divide() const {
    const int64_t most = std::max<int64_t>(kTileRows, kBlockFloats / tile_floats());
    Grid grid{(tiles_ + most - 1) / most, 1};
    const int64_t threads = num_threads();
    const int64_t work = tiles_ * kPoints * c_.channels_in * c_.channels_out;
    if (threads == 1 || work < GridLimits{}.serial_work) return grid;
    const int64_t wanted =
        std::clamp<int64_t>(work / GridLimits{}.task_work, 4 * threads, 16 * threads);
    const int64_t least = grid.chunks;
    grid.chunks = std::clamp<int64_t>(tiles_ / kLeastTiles, least, std::max(least, wanted));
    if (threads <= grid.chunks && grid.chunks < 4 * threads) {  // as many for each thread
      const int64_t even = grid.chunks / threads * threads;
      grid.chunks = even < least ? even + threads : even;
    }
    // Each group transforms the inputs again, so there are no more than keep the threads busy.
    grid.groups = std::clamp<int64_t>(2 * threads / grid.chunks, 1, panels_);
    return grid;
  }

  void run_block(int64_t t0, int64_t t1, int64_t p0, int64_t p1) const {
    const int64_t tiles = t1 - t0;
    // Points are a line of the cache more than a multiple of a page apart.
    const int64_t plane = tiles * ld_ + 16, product_plane = tiles * kPanel + 16;
    float* const points = t_scratch.get(kPoints * (plane + product_plane) + ld_);
    float* const products = points + kPoints * plane;
    float* const zeros = products + kPoints * product_plane;
    std::fill_n(zeros, ld_, 0.0f);
    for (int64_t i = 0; i < tiles; ++i) {
      transform_input(place(t0 + i), zeros, points + i * ld_, plane);
    }
    const PanelWalk walk(c_.channels_out, p0, p1);
    for (int64_t i = 0; i < walk.count(); ++i) {
      multiply(walk, i, tiles, points, plane, products, product_plane);
      const int64_t n0 = walk.panel(i) * kPanel;
      const int64_t columns = std::min(kPanel, c_.channels_out - n0);
      for (int64_t j = 0; j < tiles; ++j) {
        transform_output(place(t0 + j), products + j * kPanel, product_plane, n0, columns);
      }
    }
  }

  // The points of one tile to points[point·plane + channel].
  void transform_input(const Place& at, const float* zeros, float* points, int64_t plane) const {
    const float* pixels[kPoints];
    const int64_t channels = c_.channels_in;
    for (int i = 0; i < kSide; ++i) {
      const int64_t y = at.h - h_.padding + i;
      const bool meets = y >= 0 && y < h_.in;
      const float* const line = meets ? x_ + (at.image * h_.in + y) * w_.in * channels : nullptr;
      for (int j = 0; j < kSide; ++j) {
        const int64_t x = at.w - w_.padding + j;
        const bool inside = meets && x >= 0 && x < w_.in;
        pixels[i * kSide + j] = inside ? line + x * channels : zeros;
      }
    }
    int64_t k = 0;
    for (; k + kL <= channels; k += kL) transform_channels<true>(pixels, k, kL, points + k, plane);
    if (k < channels) transform_channels<false>(pixels, k, channels - k, points + k, plane);
  }

  template <bool Whole>
  EC_INLINE static void transform_channels(const float* const* pixels, int64_t k, int64_t valid,
                                           float* to, int64_t plane) {
    vf32 rows[kSide][kSide];
#pragma GCC unroll 6
    for (int i = 0; i < kSide; ++i) {
      vf32 x[kSide];
#pragma GCC unroll 6
      for (int j = 0; j < kSide; ++j) {
        const float* const from = pixels[i * kSide + j] + k;
        x[j] = Whole ? load(from) : load_partial(from, valid);
      }
      Transform<R>::input(x, rows[i]);
    }
#pragma GCC unroll 6
    for (int j = 0; j < kSide; ++j) {
      vf32 x[kSide], y[kSide];
#pragma GCC unroll 6
      for (int i = 0; i < kSide; ++i) x[i] = rows[i][j];
      Transform<R>::input(x, y);
#pragma GCC unroll 6
      for (int i = 0; i < kSide; ++i) store(to + (i * kSide + j) * plane, y[i]);
    }
  }

  // The products of the i-th panel at all points.
  void multiply(const PanelWalk& walk, int64_t i, int64_t tiles, const float* points, int64_t plane,
                float* products, int64_t product_plane) const {
    const int64_t k = c_.channels_in, size = kPoints * k * kPanel;
    const int64_t columns = std::min(kPanel, c_.channels_out - walk.panel(i) * kPanel);
    const float* const panel = packed_ + walk.panel(i) * size;
    const TileRows rows(tiles, kTileRows);
    const int64_t calls = rows.tiles * (kPanel / kSingleTiles.columns[rows.highest() - 1]);
    Tile t{};
    t.k = k;
    t.lda = ld_;
    t.ldc = kPanel;
    t.prefetch_lines = prefetch_rate(static_cast<int>((8 + calls - 1) / calls));
    for (int point = 0; point < kPoints; ++point) {
      const float* const b = panel + point * k * kPanel;
      const float* next = b + k * kPanel;  // the next point's
      if (point + 1 == kPoints) {
        const int64_t after = walk.after(i).panel;
        next = after < 0 ? nullptr : packed_ + after * size;
      }
      t.prefetch = next;
      rows.each([&](int64_t r0, int64_t count) {
        const int64_t width = kSingleTiles.columns[count - 1];
        t.a = points + point * plane + r0 * ld_;
        for (int64_t j = 0; j < columns; j += width) {
          t.b = b + j;
          t.c = products + point * product_plane + r0 * kPanel + j;
          kSingleTiles.run[count - 1](t);
          prefetch_next_part(&t.prefetch, next, k / kTileUnroll * t.prefetch_lines * 16,
                             k * kPanel);
        }
      });
    }
  }

  // The outputs of one tile in the columns [n0, n0 + columns).
  void transform_output(const Place& at, const float* products, int64_t plane, int64_t n0,
                        int64_t columns) const {
    const int64_t height = std::min<int64_t>(R, h_.out - at.h);
    const int64_t width = std::min<int64_t>(R, w_.out - at.w);
    const int64_t line = w_.out * c_.channels_out;
    const int64_t first = ((at.image * h_.out + at.h) * w_.out + at.w) * c_.channels_out + n0;
    float* const out = out_ + first;
    const float* const from_bias = epilogue_.bias == nullptr ? nullptr : epilogue_.bias + n0;
    const float* const residual =
        epilogue_.residual == nullptr ? nullptr : epilogue_.residual + first;
    for (int64_t n = 0; n < columns; n += kL) {
      const int64_t valid = std::min<int64_t>(kL, columns - n);
      const vf32 bias = from_bias == nullptr ? vf32{} : ec::at(from_bias + n, valid);
      vf32 sums[R][kSide];
#pragma GCC unroll 6
      for (int j = 0; j < kSide; ++j) {
        vf32 m[kSide], y[R];
#pragma GCC unroll 6
        for (int i = 0; i < kSide; ++i) m[i] = load(products + (i * kSide + j) * plane + n);
        Transform<R>::output(m, y);
#pragma GCC unroll 4
        for (int i = 0; i < R; ++i) sums[i][j] = y[i];
      }
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) {
        vf32 y[R];
        Transform<R>::output(sums[i], y);
        if (i >= height) break;
#pragma GCC unroll 4
        for (int j = 0; j < R; ++j) {
          if (j < width) put(out + i * line + j * c_.channels_out + n, y[j] + bias, valid);
        }
      }
    }
    for (int64_t i = 0; i < height; ++i) {
      finish_rows(epilogue_, residual == nullptr ? nullptr : residual + i * line, out + i * line,
                  c_.channels_out, width, columns);
    }
  }

  const Convolution& c_;
  const ConvAxis &h_, &w_;
  const float *x_, *packed_;
  Epilogue epilogue_;
  float* out_;
  int64_t tiles_h_, tiles_w_, tiles_, panels_, ld_;
};

}  // namespace

void convolve_winograd(const Convolution& c, const float* x, const float* packed,
                       const Epilogue& epilogue, float* out) {
  if (c.tile == 2) {
    Winograd<2>(c, x, packed, epilogue, out).run();
  } else {
    Winograd<4>(c, x, packed, epilogue, out).run();
  }
}

}  // namespace ec
