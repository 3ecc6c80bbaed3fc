// Convolutions as products whose rows are gathered from the input.
#include "kernels/convolution/convolution.h"

#include <algorithm>

#include "base/block.h"
#include "kernels/gemm/gemm_kernel.h"
#include "math/simd.h"
#include "threads/threads.h"

namespace ec {

bool AxisPhase::dense() const {
  for (size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] != offsets[i - 1] + 1) return false;
  }
  return true;
}

std::vector<AxisPhase> phases_of(const ConvAxis& axis, bool transposed) {
  std::vector<AxisPhase> phases;
  if (!transposed) {
    AxisPhase& phase = phases.emplace_back(AxisPhase{0, axis.out, 1, axis.stride, {}, {}});
    for (int64_t t = 0; t < axis.kernel; ++t) {
      phase.offsets.push_back(t * axis.dilation - axis.padding);
      phase.taps.push_back(t);
    }
    return phases;
  }
  // Output o gets tap t of input i where o = i·stride + t·dilation - padding.
  const int64_t s = axis.stride;
  for (int64_t r = 0; r < s; ++r) {
    AxisPhase& phase = phases.emplace_back(
        AxisPhase{r, std::max<int64_t>(0, (axis.out - r + s - 1) / s), s, 1, {}, {}});
    for (int64_t t = axis.kernel - 1; t >= 0; --t) {
      const int64_t distance = r + axis.padding - t * axis.dilation;
      if (distance % s != 0) continue;
      phase.offsets.push_back(distance / s);
      phase.taps.push_back(t);
    }
  }
  return phases;
}

namespace {

constexpr int kL = kFloatLanes;

EC_INLINE void copy_floats(const float* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + kL <= n; i += kL) store(to + i, load(from + i));
  if (i == n) return;
  if (n >= kL) return store(to + n - kL, load(from + n - kL));  // some of them again
  for (; i < n; ++i) to[i] = from[i];
}

// What the rows of one phase's products are: the values under the taps for each output.
class Patches {
 public:
  Patches(const Convolution& c, const ConvPhase& phase, const float* x)
      : c_(c),
        d_(*phase.axes[0]),
        h_(*phase.axes[1]),
        w_(*phase.axes[2]),
        x_(x),
        channels_(c.channels_in),
        width_(c.group_in()),
        taps_w_(static_cast<int64_t>(w_.offsets.size())),
        merged_(c.groups == 1 && w_.dense()) {}

  static const float* read(const void* ctx, int64_t group, int64_t row, int64_t rows, int64_t k,
                           int64_t depth, float* out, int64_t* ld) {
    const Patches& p = *static_cast<const Patches*>(ctx);
    const Place at = p.place(row);
    if (const float* const direct = p.find(group, at, rows, ld); direct != nullptr) {
      return direct + k;
    }
    p.gather(group, at, rows, k, depth, out, *ld);
    return out;
  }

 private:
  struct Place {
    int64_t batch, d, h, w;
  };

  Place place(int64_t row) const {
    const int64_t w = row % w_.count, h = row / w_.count % h_.count;
    const int64_t d = row / w_.count / h_.count % d_.count;
    return {row / w_.count / h_.count / d_.count, d, h, w};
  }

  // The input's row of pixels at these coordinates; null outside the image.
  const float* line(int64_t batch, int64_t z, int64_t y, int64_t group) const {
    const ConvAxis* const axes = c_.axes;
    if (z < 0 || z >= axes[0].in || y < 0 || y >= axes[1].in) return nullptr;
    return x_ + ((batch * axes[0].in + z) * axes[1].in + y) * axes[2].in * channels_ +
           group * width_;
  }

  // Rows that need no copy: neighbours in one line of the image whose taps meet one run of values,
  // all of it inside.
  const float* find(int64_t group, const Place& at, int64_t rows, int64_t* ld) const {
    if (d_.offsets.size() != 1 || h_.offsets.size() != 1) return nullptr;
    if (!(merged_ || taps_w_ == 1) || taps_w_ == 0 || at.w + rows > w_.count) return nullptr;
    const int64_t step = w_.advance * channels_;
    if (step % 1024 == 0) return nullptr;  // a page apart, they compete for the same cache lines
    const int64_t first = at.w * w_.advance + w_.offsets.front();
    const int64_t last = (at.w + rows - 1) * w_.advance + w_.offsets.back();
    if (first < 0 || last >= c_.axes[2].in) return nullptr;
    const float* const from =
        line(at.batch, at.d * d_.advance + d_.offsets[0], at.h * h_.advance + h_.offsets[0], group);
    if (from == nullptr) return nullptr;
    *ld = step;
    return from + first * channels_;
  }

  void gather(int64_t group, Place at, int64_t rows, int64_t k, int64_t depth, float* out,
              int64_t ld) const {
    for (int64_t r = 0; r < rows; ++r) {
      gather_row(group, at, k, k + depth, out + r * ld - k);
      if (++at.w < w_.count) continue;
      at.w = 0;
      if (++at.h < h_.count) continue;
      at.h = 0;
      if (++at.d < d_.count) continue;
      at.d = 0;
      ++at.batch;
    }
  }

  // Columns [k, end) of one row to out[k], …
  void gather_row(int64_t group, const Place& at, int64_t k, int64_t end, float* out) const {
    const int64_t segment = taps_w_ * width_;  // the columns of one line of the image
    if (segment == 0) return;
    const auto taps_h = static_cast<int64_t>(h_.offsets.size());
    const int64_t x0 = at.w * w_.advance;
    for (int64_t s = k / segment; s * segment < end; ++s) {
      const int64_t z = at.d * d_.advance + d_.offsets[static_cast<size_t>(s / taps_h)];
      const int64_t y = at.h * h_.advance + h_.offsets[static_cast<size_t>(s % taps_h)];
      const int64_t from = std::max<int64_t>(0, k - s * segment);
      const int64_t to = std::min(segment, end - s * segment);
      float* const target = out + s * segment;
      const float* const pixels = line(at.batch, z, y, group);
      if (pixels == nullptr) {
        std::fill(target + from, target + to, 0.0f);
      } else if (merged_) {
        gather_run(pixels, x0 + w_.offsets.front(), from, to, target);
      } else {
        gather_taps(pixels, x0, from, to, target);
      }
    }
  }

  // Columns [from, to) of a line where the taps meet neighbours, the first of them at x.
  void gather_run(const float* pixels, int64_t x, int64_t from, int64_t to, float* target) const {
    const int64_t in = c_.axes[2].in;
    const int64_t begin = std::clamp(-x * width_, from, to);
    const int64_t end = std::clamp((in - x) * width_, begin, to);
    std::fill(target + from, target + begin, 0.0f);
    copy_floats(pixels + x * width_ + begin, end - begin, target + begin);
    std::fill(target + end, target + to, 0.0f);
  }

  void gather_taps(const float* pixels, int64_t x0, int64_t from, int64_t to, float* target) const {
    for (int64_t tap = from / width_; tap * width_ < to; ++tap) {
      const int64_t x = x0 + w_.offsets[static_cast<size_t>(tap)];
      const int64_t begin = std::max(from, tap * width_), end = std::min(to, (tap + 1) * width_);
      if (x < 0 || x >= c_.axes[2].in) {
        std::fill(target + begin, target + end, 0.0f);
      } else {
        copy_floats(pixels + x * channels_ + begin - tap * width_, end - begin, target + begin);
      }
    }
  }

  const Convolution& c_;
  const AxisPhase &d_, &h_, &w_;
  const float* x_;
  int64_t channels_, width_, taps_w_;
  bool merged_;
};

// Rows of one phase, which lie together and have the bias, to their places among the outputs.
void spread_rows(const Convolution& c, const ConvPhase& phase, const float* rows,
                 const Epilogue& epilogue, float* out) {
  const AxisPhase &d = *phase.axes[0], &h = *phase.axes[1], &w = *phase.axes[2];
  parallel_for(c.batch * d.count * h.count, [&](int64_t i) {
    const int64_t y = h.first + i % h.count * h.step;
    const int64_t z = d.first + i / h.count % d.count * d.step;
    const int64_t image = i / h.count / d.count;
    const int64_t first =
        (((image * c.axes[0].out + z) * c.axes[1].out + y) * c.axes[2].out + w.first) *
        c.channels_out;
    float* const line = out + first;
    const float* const from = rows + i * w.count * c.channels_out;
    for (int64_t j = 0; j < w.count; ++j) {
      copy_floats(from + j * c.channels_out, c.channels_out, line + j * epilogue.ld_residual);
    }
    finish_rows(epilogue, epilogue.residual == nullptr ? nullptr : epilogue.residual + first, line,
                epilogue.ld_residual, w.count, c.channels_out);
  });
}

void convolve_phase(const Convolution& c, const ConvPhase& phase, const float* x,
                    const float* packed, const Epilogue& epilogue, float* out) {
  const AxisPhase &d = *phase.axes[0], &h = *phase.axes[1], &w = *phase.axes[2];
  const int64_t m = c.batch * d.count * h.count * w.count;
  if (m == 0) return;
  const Patches patches(c, phase, x);
  GatheredProduct p{};
  p.batch = c.groups, p.m = m, p.n = c.group_out(), p.k = phase.k;
  p.a = {Patches::read, &patches};
  p.b = packed + phase.k0 * kPanel;
  p.b_batch = packed_elements(p.n, c.k());
  p.b_panel = c.k() * kPanel;
  p.bias_batch = p.n;
  p.c_batch = p.n;
  p.epilogue = epilogue;
  p.epilogue.ld_residual = w.step * c.channels_out;
  p.epilogue.residual_batch = p.n;
  // Outputs of one phase are evenly spaced where there is one line of them alone.
  const bool whole = d.step == 1 && h.step == 1 && w.step == 1;
  const bool one_line = c.batch == 1 && c.axes[0].out == 1 && c.axes[1].out == 1;
  if (whole || one_line) {
    p.c = out + w.first * c.channels_out;
    p.ldc = w.step * c.channels_out;
    if (epilogue.residual != nullptr) p.epilogue.residual += w.first * c.channels_out;
    return gemm_gathered(p);
  }
  const Epilogue spread = p.epilogue;
  p.epilogue = {.bias = epilogue.bias};
  const Block rows(m * c.channels_out);
  p.c = rows.get();
  p.ldc = c.channels_out;
  gemm_gathered(p);
  spread_rows(c, phase, rows.get(), spread, out);
}

// The most floats of a row of taps that is read where it lies. With more, a panel of weights leaves
// the nearest cache from one line to the next, and copies cost little beside the multiplications.
constexpr int64_t kMostParted = 320;

// Whether tiles may read rows in the image itself, one line of the kernel after the other. That
// saves the copy of each row; lines of outputs must be long, since a tile has those of one only.
bool reads_lines(const Convolution& c) {
  const ConvAxis &d = c.axes[0], &h = c.axes[1], &w = c.axes[2];
  const bool flat = d.in == 1 && d.out == 1 && d.kernel == 1 && d.padding == 0;
  return flat && !c.transposed && c.groups == 1 && h.kernel > 1 && w.dilation == 1 &&
         c.k() <= kMostParted && w.out >= 4 * kFewRows;
}

// Copies each image in turn, with the zeros around it that taps meet, so memory holds one image.
void convolve_lines(const Convolution& c, const float* x, const float* packed,
                    const Epilogue& epilogue, float* out) {
  const ConvAxis &h = c.axes[1], &w = c.axes[2];
  const int64_t lines = (h.out - 1) * h.stride + (h.kernel - 1) * h.dilation + 1;
  const int64_t line = ((w.out - 1) * w.stride + w.kernel) * c.channels_in;
  const int64_t before = w.padding * c.channels_in, in = w.in * c.channels_in;
  const bool as_is = h.padding == 0 && before == 0 && lines <= h.in && line <= in;
  const Block padded(as_is ? 0 : lines * line);
  for (int64_t image = 0; image < c.batch; ++image) {
    const float* const from = x + image * h.in * in;
    if (!as_is) {
      parallel_for(lines, [&](int64_t i) {
        const int64_t y = i - h.padding;
        const bool inside = y >= 0 && y < h.in;
        const int64_t begin = inside ? std::clamp<int64_t>(before, 0, line) : line;
        const int64_t end = inside ? std::clamp(before + in, begin, line) : line;
        float* const to = padded.get() + i * line;
        std::fill_n(to, begin, 0.0f);
        if (inside) copy_floats(from + y * in + (begin - before), end - begin, to + begin);
        std::fill(to + end, to + line, 0.0f);
      });
    }
    const int64_t first = image * h.out * w.out * c.channels_out;
    PartedProduct p{h.out, w.out, c.channels_out, h.kernel, w.kernel * c.channels_in};
    const int64_t step = as_is ? in : line;
    p.a = as_is ? from : padded.get();
    p.a_batch = h.stride * step;
    p.a_row = w.stride * c.channels_in;
    p.part_step = h.dilation * step;
    p.b = packed;
    p.epilogue = epilogue;
    if (epilogue.residual != nullptr) p.epilogue.residual += first;
    p.epilogue.ld_residual = c.channels_out;
    p.epilogue.residual_batch = w.out * c.channels_out;
    p.c = out + first;
    p.c_batch = w.out * c.channels_out;
    p.ldc = c.channels_out;
    gemm_parts(p);
  }
}

// A kernel of one place, everything as it lies: the images are one long line of pixels.
Convolution simplified(const Convolution& c) {
  for (const ConvAxis& axis : c.axes) {
    if (axis.kernel != 1 || axis.stride != 1 || axis.padding != 0 || axis.in != axis.out) return c;
  }
  Convolution line = c;
  line.batch = 1;
  line.transposed = false;
  line.axes[0] = line.axes[1] = line.axes[2] = ConvAxis{};
  line.axes[2].in = line.axes[2].out = c.places_in();
  return line;
}

}  // namespace

void convolve(const Convolution& given, const float* x, const float* packed,
              const Epilogue& epilogue, float* out) {
  const Convolution c = simplified(given);
  if (c.places_out() == 0 || c.channels_out == 0) return;
  if (c.tile != 0) return convolve_winograd(c, x, packed, epilogue, out);
  if (c.channel_wise()) return convolve_channels(c, x, packed, epilogue, out);
  if (reads_lines(c)) return convolve_lines(c, x, packed, epilogue, out);
  std::vector<AxisPhase> phases[kMaxSpatial];
  for (int i = 0; i < kMaxSpatial; ++i) phases[i] = phases_of(c.axes[i], c.transposed);
  each_phase(phases, c.group_in(),
             [&](const ConvPhase& phase) { convolve_phase(c, phase, x, packed, epilogue, out); });
}

}  // namespace ec
