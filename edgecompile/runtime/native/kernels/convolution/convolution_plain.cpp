// Convolutions with weights as torch keeps them.
#include "kernels/convolution/convolution_plain.h"

#include "threads/threads.h"

namespace ec {
namespace {

// The stride of one of the three axes of a tensor [a, b, …], 0 for an axis that isn't there.
int64_t axis_stride(const Tensor& t, int axis) {
  const int dimension = axis - kMaxSpatial + t.dims;
  return dimension >= 2 ? t.strides[dimension] : 0;
}

// Offset in a weight of output n, channel c of its group and the first tap.
int64_t weight_at(const Convolution& conv, const Tensor& w, int64_t n, int64_t c) {
  if (!conv.transposed) return n * w.strides[0] + c * w.strides[1];
  const int64_t group = n / conv.group_out();
  return (group * conv.group_in() + c) * w.strides[0] + n % conv.group_out() * w.strides[1];
}

// f(offset of its first element in a weight, z, y, x relative to the output) for each tap.
template <class F>
void each_tap(const ConvPhase& phase, const Tensor& w, const F& f) {
  const AxisPhase& d = *phase.axes[0];
  const AxisPhase& h = *phase.axes[1];
  const AxisPhase& v = *phase.axes[2];
  for (size_t i = 0; i < d.taps.size(); ++i) {
    for (size_t j = 0; j < h.taps.size(); ++j) {
      for (size_t k = 0; k < v.taps.size(); ++k) {
        f(d.taps[i] * axis_stride(w, 0) + h.taps[j] * axis_stride(w, 1) +
              v.taps[k] * axis_stride(w, 2),
          d.offsets[i], h.offsets[j], v.offsets[k]);
      }
    }
  }
}

}  // namespace

void pack_weights(const Convolution& c, const Tensor& weight, float* packed) {
  const int64_t k = c.k(), width = c.group_in();
  std::vector<AxisPhase> phases[kMaxSpatial];
  for (int i = 0; i < kMaxSpatial; ++i) phases[i] = phases_of(c.axes[i], c.transposed);
  const Block rows(c.channels_out * k);  // [channels_out][k]
  parallel_for(c.channels_out, [&](int64_t n) {
    float* to = rows.get() + n * k;
    const float* const from = weight.as<float>() + weight_at(c, weight, n, 0);
    const int64_t step = weight.strides[c.transposed ? 0 : 1];
    each_phase(phases, width, [&](const ConvPhase& phase) {
      each_tap(phase, weight, [&](int64_t tap, int64_t, int64_t, int64_t) {
        for (int64_t i = 0; i < width; ++i) *to++ = from[tap + i * step];
      });
    });
  });
  if (c.channel_wise()) return pack_b(rows.get(), 1, k, k, c.channels_out, packed);
  for (int64_t group = 0; group < c.groups; ++group) {
    pack_b(rows.get() + group * c.group_out() * k, 1, k, k, c.group_out(),
           packed + group * packed_elements(c.group_out(), k));
  }
}

void convolve_double(const Convolution& c, const Tensor& x, const Tensor& weight,
                     const Tensor* bias, Tensor* out) {
  if (bias != nullptr && (bias->dims != 1 || bias->sizes[0] != c.channels_out)) {
    fail("bias is no vector of %ld elements", c.channels_out);
  }
  std::vector<AxisPhase> phases[kMaxSpatial];
  for (int i = 0; i < kMaxSpatial; ++i) phases[i] = phases_of(c.axes[i], c.transposed);
  const int64_t width = c.group_in();
  const int64_t step_x = x.strides[1], step_w = weight.strides[c.transposed ? 0 : 1];
  parallel_for(c.batch * c.channels_out, [&](int64_t task) {
    const int64_t batch = task / c.channels_out, n = task % c.channels_out;
    const int64_t group = n / c.group_out();
    const double start = bias == nullptr ? 0.0 : bias->as<double>()[n * bias->strides[0]];
    const double* const image =
        x.as<double>() + batch * x.strides[0] + group * width * x.strides[1];
    const double* const weights = weight.as<double>() + weight_at(c, weight, n, 0);
    double* const target = out->as<double>() + batch * out->strides[0] + n * out->strides[1];
    each_phase(phases, width, [&](const ConvPhase& phase) {
      const AxisPhase &d = *phase.axes[0], &h = *phase.axes[1], &w = *phase.axes[2];
      for (int64_t place = 0; place < d.count * h.count * w.count; ++place) {
        const int64_t jw = place % w.count, jh = place / w.count % h.count;
        const int64_t jd = place / w.count / h.count;
        double sum = start;
        each_tap(phase, weight, [&](int64_t tap, int64_t dz, int64_t dy, int64_t dx) {
          const int64_t at[] = {jd * d.advance + dz, jh * h.advance + dy, jw * w.advance + dx};
          int64_t from = 0;
          for (int i = 0; i < kMaxSpatial; ++i) {
            if (at[i] < 0 || at[i] >= c.axes[i].in) return;
            from += at[i] * axis_stride(x, i);
          }
          for (int64_t i = 0; i < width; ++i) {
            sum += image[from + i * step_x] * weights[tap + i * step_w];
          }
        });
        target[(d.first + jd * d.step) * axis_stride(*out, 0) +
               (h.first + jh * h.step) * axis_stride(*out, 1) +
               (w.first + jw * w.step) * axis_stride(*out, 2)] = sum;
      }
    });
  });
}

}  // namespace ec
