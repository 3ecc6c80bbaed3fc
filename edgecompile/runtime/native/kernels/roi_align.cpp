// Built without fused multiply-adds, and in the order of torchvision's sums, so that answers are
// its own.
#include "kernels/roi_align.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "threads/threads.h"

namespace ec {
namespace {

constexpr int64_t kBlock = 64;  // channels whose sums are kept side by side
constexpr int64_t kSerial =
    16 * 1024;  // products that one thread makes: fork and join cost as much
constexpr double kMostSamples = 2147483647.0;

// A box along one axis.
struct Span {
  float start, bin;  // in pixels
  int64_t samples;   // in a bin

  float at(int64_t bin_number, int64_t sample) const {
    return start + static_cast<float>(bin_number) * bin +
           (static_cast<float>(sample) + 0.5F) * bin / static_cast<float>(samples);
  }
};

Span span_of(const RoiAlign& call, float from, float to, int64_t bins) {
  const float offset = call.aligned ? 0.5F : 0.0F;
  const float start = from * call.scale - offset;
  float size = to * call.scale - offset - start;
  if (!call.aligned) size = std::max(size, 1.0F);
  const float bin = size / static_cast<float>(bins);
  const float samples = std::ceil(bin);
  // A box without a size, or with NaN for it, has nothing to read.
  const bool counts = samples > 0 && static_cast<double>(samples) <= kMostSamples;
  if (call.samples <= 0 && samples > 0 && !counts) fail("a box of %g pixels", double{size});
  return {start, bin, call.samples > 0 ? call.samples : counts ? static_cast<int64_t>(samples) : 0};
}

// The two neighbours of a place along one axis, and their shares.
struct Neighbours {
  int64_t low, high;
  float low_share, high_share;

  // False outside the map. NaN is outside as well.
  bool find(float place, int64_t size) {
    if (!(place >= -1.0F && place <= static_cast<float>(size))) return false;
    if (place <= 0) place = 0;
    low = static_cast<int64_t>(place);
    high = low + 1;
    if (low >= size - 1) {
      high = low = size - 1;
      place = static_cast<float>(low);
    }
    high_share = place - static_cast<float>(low);
    low_share = 1.0F - high_share;
    return true;
  }
};

// sums[c] += the interpolated value of channel c.
inline void add_sample(const float* channels, int64_t stride, int64_t count, const int64_t* places,
                       const float* shares, float* sums) {
  const float *a = channels + places[0], *b = channels + places[1];
  const float *c = channels + places[2], *d = channels + places[3];
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = i * stride;
    sums[i] += shares[0] * a[at] + shares[1] * b[at] + shares[2] * c[at] + shares[3] * d[at];
  }
}

void fill_bin(const RoiAlign& call, int64_t box, const Span& down, const Span& across, int64_t row,
              int64_t column) {
  const auto image = static_cast<int64_t>(call.boxes[5 * box]);
  const int64_t bins = call.rows * call.columns;
  const int64_t stride = call.strides[1];
  const auto count = static_cast<float>(std::max<int64_t>(down.samples * across.samples, 1));
  float* const out = call.output + (box * call.channels * call.rows + row) * call.columns + column;
  for (int64_t first = 0; first < call.channels; first += kBlock) {
    const int64_t channels = std::min(kBlock, call.channels - first);
    const float* const map = call.input + image * call.strides[0] + first * stride;
    float sums[kBlock] = {};
    for (int64_t i = 0; i < down.samples; ++i) {
      Neighbours y, x;
      if (!y.find(down.at(row, i), call.height)) continue;
      for (int64_t j = 0; j < across.samples; ++j) {
        if (!x.find(across.at(column, j), call.width)) continue;
        const int64_t above = y.low * call.strides[2], below = y.high * call.strides[2];
        const int64_t left = x.low * call.strides[3], right = x.high * call.strides[3];
        const int64_t places[] = {above + left, above + right, below + left, below + right};
        const float shares[] = {y.low_share * x.low_share, y.low_share * x.high_share,
                                y.high_share * x.low_share, y.high_share * x.high_share};
        if (stride == 1) {  // by vectors
          add_sample(map, 1, channels, places, shares, sums);
        } else {
          add_sample(map, stride, channels, places, shares, sums);
        }
      }
    }
    for (int64_t c = 0; c < channels; ++c) out[(first + c) * bins] = sums[c] / count;
  }
}

}  // namespace

void roi_align(const RoiAlign& call) {
  if (call.count * call.channels * call.rows * call.columns == 0) return;
  if (call.height < 1 || call.width < 1) fail("a map of %ld by %ld", call.height, call.width);
  double work = 0;
  for (int64_t box = 0; box < call.count; ++box) {
    const float* const at = call.boxes + 5 * box;
    if (!(at[0] > -1.0F && at[0] < static_cast<float>(call.images))) {
      fail("box %ld is of image %g, of which there are %ld", box, double{at[0]}, call.images);
    }
    const double samples =
        static_cast<double>(span_of(call, at[2], at[4], call.rows).samples * call.rows) *
        static_cast<double>(span_of(call, at[1], at[3], call.columns).samples * call.columns);
    if (samples > kMostSamples) fail("box %ld has %g samples", box, samples);
    work += samples * static_cast<double>(call.channels);
  }
  const auto task = [&](int64_t i) {
    const int64_t box = i / call.rows;
    const float* const at = call.boxes + 5 * box;
    const Span down = span_of(call, at[2], at[4], call.rows);
    const Span across = span_of(call, at[1], at[3], call.columns);
    for (int64_t column = 0; column < call.columns; ++column) {
      fill_bin(call, box, down, across, i % call.rows, column);
    }
  };
  const int64_t tasks = call.count * call.rows;
  if (work < kSerial) {
    for (int64_t i = 0; i < tasks; ++i) task(i);
  } else {
    parallel_for(tasks, task);
  }
}

}  // namespace ec
