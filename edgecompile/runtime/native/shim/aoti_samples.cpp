// Samples of images of AOTInductor's C ABI, our own operator, on samples.h.
#include <algorithm>

#include "base/profile.h"
#include "kernels/samples.h"
#include "shim/arguments.h"
#include "shim/handles.h"

namespace ec {

EC_API int32_t ec_aoti_torch_cpu_ec_samples(AtenTensorHandle images, AtenTensorHandle grid,
                                            int64_t padding, int32_t align_corners,
                                            AtenTensorHandle* ret0) {
  return guarded("aoti_torch_cpu_ec_samples", [&] {
    const Tensor& pixels = *unwrap(images);
    const Tensor& places = *unwrap(grid);
    require_float32(pixels, "images");
    require_dims(pixels, 4, "images");
    require_float32(places, "grid");
    require_dims(places, 4, "grid");
    if (places.sizes[3] != 2) fail("a place has %ld numbers instead of 2", places.sizes[3]);
    if (places.sizes[0] != pixels.sizes[0]) {
      fail("%ld images have %ld grids", pixels.sizes[0], places.sizes[0]);
    }
    if (padding < 0 || padding > 2) fail("no padding has the number %ld", padding);
    OwnedTensor holder, copy;
    const int64_t sizes[] = {places.sizes[0], places.sizes[1], places.sizes[2], pixels.sizes[3]};
    OwnedTensor result(new_contiguous(4, sizes, kFloat32));
    // Channels that lie apart are read one at a time, which costs more than a copy of them all.
    const int64_t out = result->numel();
    const bool apart = pixels.strides[3] != 1 && 4 * out >= pixels.numel();
    const Tensor& read = apart ? row_major(pixels, &copy) : pixels;
    Samples call{};
    call.images = read.as<float>();
    call.count = pixels.sizes[0];
    call.height = pixels.sizes[1];
    call.width = pixels.sizes[2];
    call.channels = pixels.sizes[3];
    std::copy(read.strides, read.strides + 4, call.strides);
    call.grid = row_major(places, &holder).as<float>();
    call.points = places.sizes[1] * places.sizes[2];
    call.beyond = static_cast<Beyond>(padding);
    call.align_corners = align_corners != 0;
    call.output = result->as<float>();
    if (out > 0 && (call.height < 1 || call.width < 1)) {
      fail("an image of %ld by %ld", call.height, call.width);
    }
    const WorkTimer timer(Work::kSamples, {.flops = 8 * out, .bytes = 4 * (pixels.numel() + out)});
    sample(call);
    *ret0 = wrap(result.release());
  });
}

}  // namespace ec
