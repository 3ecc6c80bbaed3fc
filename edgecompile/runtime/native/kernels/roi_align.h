// Averages of interpolated samples over the bins of boxes in feature maps, single precision.
#pragma once

#include <cstdint>

namespace ec {

struct RoiAlign {
  const float* input;  // [images, channels, height, width]
  int64_t images, channels, height, width;
  int64_t strides[4];  // of the input, in elements
  const float* boxes;  // [count, 5], row-major: the number of the image, left, top, right, bottom
  int64_t count;
  float scale;            // of the boxes' coordinates
  int64_t rows, columns;  // of bins in a box
  int64_t samples;        // in a bin along each axis; 0 or less: one for each pixel of the box
  bool aligned;           // pixels' centres are at halves
  float* output;          // [count, channels, rows, columns], row-major
};

// Throws Error for a box of an image that isn't there, and of more samples than 2^31.
void roi_align(const RoiAlign& call);

}  // namespace ec
