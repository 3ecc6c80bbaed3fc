// Images at places between their pixels (torch's grid_sample, bilinear), single precision.
#pragma once

#include <cstdint>

namespace ec {

// Values beyond an image's edge; the numbers are torch's.
enum class Beyond : int64_t { kZeros, kBorder, kReflection };

struct Samples {
  const float* images;  // [count, height, width, channels]
  int64_t count, height, width, channels;
  int64_t strides[4];  // of the images, in elements
  const float* grid;   // [count, points, 2], row-major: x and y, the image reaches from -1 to 1
  int64_t points;
  Beyond beyond;
  bool align_corners;  // -1 and 1 are the centres of the outermost pixels, not their edges
  float* output;       // [count, points, channels], row-major
};

// As torch has it, a place that is infinite or NaN gives NaN with zeros beyond the edge.
void sample(const Samples& call);

}  // namespace ec
