#include "kernels/samples.h"

#include <algorithm>
#include <cmath>

#include "math/simd.h"
#include "threads/threads.h"

namespace ec {
namespace {

constexpr int kL = kFloatLanes;
constexpr int64_t kTaskPoints = 64;
constexpr int64_t kSerial = 8 * 1024;  // results that one thread makes: fork and join cost as much

// Where a coordinate of the grid is along an axis, in pixels.
float place_of(float at, int64_t pixels, const Samples& call) {
  const auto size = static_cast<float>(pixels);
  const float last = size - 1.0f;
  const float place =
      call.align_corners ? (at + 1.0f) * (last / 2) : (at + 1.0f) * (size / 2) - 0.5f;
  if (call.beyond == Beyond::kZeros) return place;
  float inside = place;
  if (call.beyond == Beyond::kReflection) {
    const float low = call.align_corners ? 0.0f : -0.5f;
    const float span = call.align_corners ? last : size;
    if (span <= 0) return 0;
    const float distance = std::fabs(place - low), rest = std::fmod(distance, span);
    const bool even = std::fmod(std::floor(distance / span), 2.0f) == 0;
    inside = (even ? rest : span - rest) + low;
  }
  return inside > 0 ? std::min(inside, last) : 0;  // also of NaN
}

// The two pixels beside a place along one axis, and their shares; those outside are left out.
struct Neighbours {
  int64_t pixels[2];
  float shares[2];
  int count = 0;

  Neighbours(float place, int64_t size) {
    if (!(place > -1.0f && place < static_cast<float>(size))) return;
    const float low = std::floor(place);
    const auto pixel = static_cast<int64_t>(low);
    if (pixel >= 0) add(pixel, low + 1.0f - place);
    if (pixel + 1 < size) add(pixel + 1, place - low);
  }

 private:
  void add(int64_t pixel, float share) {
    pixels[count] = pixel;
    shares[count++] = share;
  }
};

void sample_point(const Samples& call, int64_t point) {
  const float* const at = call.grid + 2 * point;
  const float* const image = call.images + point / call.points * call.strides[0];
  float* const out = call.output + point * call.channels;
  const float across = place_of(at[0], call.width, call);
  const float down = place_of(at[1], call.height, call);
  // NaN of a place that is infinite or NaN, else +0: of negative places alone the sum would be -0.
  const float nothing = across * 0.0f + down * 0.0f + 0.0f;
  const Neighbours x(across, call.width), y(down, call.height);
  const float* from[4];
  float shares[4];
  int count = 0;
  for (int i = 0; i < y.count; ++i) {
    for (int j = 0; j < x.count; ++j, ++count) {
      from[count] = image + y.pixels[i] * call.strides[1] + x.pixels[j] * call.strides[2];
      shares[count] = y.shares[i] * x.shares[j];
    }
  }
  const int64_t channels = call.channels, stride = call.strides[3];
  int64_t c = 0;
  if (stride == 1) {
    for (; c + kL <= channels; c += kL) {
      vf32 sum = broadcast(nothing);
      for (int i = 0; i < count; ++i) sum = fma(load(from[i] + c), broadcast(shares[i]), sum);
      store(out + c, sum);
    }
  }
  for (; c < channels; ++c) {
    float sum = nothing;
    for (int i = 0; i < count; ++i) sum += from[i][c * stride] * shares[i];
    out[c] = sum;
  }
}

}  // namespace

void sample(const Samples& call) {
  const int64_t points = call.count * call.points;
  const int64_t tasks = (points + kTaskPoints - 1) / kTaskPoints;
  const auto task = [&](int64_t i) {
    const int64_t end = std::min(points, (i + 1) * kTaskPoints);
    for (int64_t point = i * kTaskPoints; point < end; ++point) sample_point(call, point);
  };
  if (points * call.channels <= kSerial) {
    for (int64_t i = 0; i < tasks; ++i) task(i);
  } else {
    parallel_for(tasks, task);
  }
}

}  // namespace ec
