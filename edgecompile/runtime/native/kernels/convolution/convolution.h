// Convolutions of up to three dimensions over images whose channels lie together, with weights
// packed at build time, near the speed of a product of the same size.
//
// A tap is one place of the kernel. What one output sums is a row of K = taps·(channels of a group)
// values, and the weights are a matrix [channels out][K], columns in the order tap, channel.
// A transposed convolution with stride s is, along each axis, s ordinary ones (phases): output o
// belongs to phase o mod s, and each tap to one phase alone. Phases follow each other in K, the
// last axis' fastest, and within a phase the taps ascend by the input that they meet.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/gemm/gemm.h"

namespace ec {

constexpr int kMaxSpatial = 3;

// One spatial dimension; the default is one that isn't there.
struct ConvAxis {
  int64_t in = 1, out = 1;
  int64_t kernel = 1, stride = 1, dilation = 1;
  int64_t padding = 0;  // before the first element; what is behind the last follows from `out`
};

struct Convolution {
  int64_t batch = 1, groups = 1, channels_in = 1, channels_out = 1;
  bool transposed = false;
  // Outputs along each side of one of Winograd's tiles, 2 or 4 (convolution_winograd.cpp); 0: taps
  // are multiplied one by one. Packed weights have (tile + 2)² points in place of nine taps.
  int64_t tile = 0;
  ConvAxis axes[kMaxSpatial];  // depth, height, width: shorter ones have the first left out

  int64_t group_in() const { return channels_in / groups; }
  int64_t group_out() const { return channels_out / groups; }
  int64_t taps() const { return axes[0].kernel * axes[1].kernel * axes[2].kernel; }
  int64_t k() const { return taps() * group_in(); }
  int64_t places_in() const { return batch * axes[0].in * axes[1].in * axes[2].in; }
  int64_t places_out() const { return batch * axes[0].out * axes[1].out * axes[2].out; }
  // Groups of few outputs (depthwise ones among them) are computed channel by channel in the lanes
  // of vectors, with the weights of all groups packed as one matrix [channels_out][k]. Else each
  // group is a product with panels of its own, one group's after the other's.
  bool channel_wise() const { return groups > 1 && group_out() <= 8; }
  // Whether the weights may be packed for tiles: 3×3 with stride and dilation 1, without groups.
  bool has_tiles() const {
    const ConvAxis& depth = axes[0];
    const bool flat = depth.in == 1 && depth.out == 1 && depth.kernel == 1 && depth.padding == 0;
    if (transposed || groups != 1 || !flat) return false;
    return std::all_of(axes + 1, axes + kMaxSpatial, [](const ConvAxis& a) {
      return a.kernel == 3 && a.stride == 1 && a.dilation == 1;
    });
  }
  int64_t packed_elements() const {
    if (tile != 0) return ec::packed_elements(channels_out, (tile + 2) * (tile + 2) * channels_in);
    return channel_wise() ? ec::packed_elements(channels_out, k())
                          : groups * ec::packed_elements(group_out(), k());
  }
};

// Outputs first, first + step, … of an axis, `count` of them, number j of which sums the taps that
// lie at the input's positions j·advance + offsets[i].
struct AxisPhase {
  int64_t first, count, step, advance;
  std::vector<int64_t> offsets;
  std::vector<int64_t> taps;  // the place in the kernel of each
  // Whether the taps meet neighbours.
  bool dense() const;
};
std::vector<AxisPhase> phases_of(const ConvAxis& axis, bool transposed);

// One phase of all axes, and where its taps begin in K.
struct ConvPhase {
  const AxisPhase* axes[kMaxSpatial];
  int64_t k0, k;
};
// f(phase) for each; `phases` are those of the three axes.
template <class F>
void each_phase(const std::vector<AxisPhase> (&phases)[kMaxSpatial], int64_t group_in, const F& f) {
  int64_t k0 = 0;
  for (const AxisPhase& d : phases[0]) {
    for (const AxisPhase& h : phases[1]) {
      for (const AxisPhase& w : phases[2]) {
        const auto taps =
            static_cast<int64_t>(d.offsets.size() * h.offsets.size() * w.offsets.size());
        f(ConvPhase{{&d, &h, &w}, k0, taps * group_in});
        k0 += taps * group_in;
      }
    }
  }
}

// out = act(conv(x) + bias) + residual, or with act_last act(conv(x) + bias + residual); x is
// [batch, depth, height, width, channels_in], out and the residual likewise, all without gaps.
// The epilogue's alpha and beta are 1, and its residual's strides aren't read. Throws
// std::bad_alloc.
void convolve(const Convolution& convolution, const float* x, const float* packed,
              const Epilogue& epilogue, float* out);

// Computes a convolution that is channel_wise().
void convolve_channels(const Convolution& convolution, const float* x, const float* packed,
                       const Epilogue& epilogue, float* out);

// Computes a convolution that has tiles.
void convolve_winograd(const Convolution& convolution, const float* x, const float* packed,
                       const Epilogue& epilogue, float* out);

}  // namespace ec
