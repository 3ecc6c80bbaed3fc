// The operators on boxes of AOTInductor's C ABI, our own, on suppression.h and roi_align.h.
#include <algorithm>
#include <bit>
#include <vector>

#include "base/profile.h"
#include "kernels/roi_align.h"
#include "kernels/suppression.h"
#include "shim/arguments.h"
#include "shim/handles.h"

namespace ec {
namespace {

// Up to so many numbers of boxes torchvision moves the groups apart; of more it takes each by
// itself.
constexpr int64_t kMostMoved = 4000;

// Equal groups have equal numbers.
std::vector<int64_t> numbers_of(const Tensor& groups) {
  const bool whole = groups.dtype != kFloat16 && groups.dtype != kBFloat16 &&
                     groups.dtype != kFloat32 && groups.dtype != kFloat64;
  OwnedTensor typed, holder;
  const Tensor& wide = converted(groups, whole ? kInt64 : kFloat64, &typed);
  const Tensor& line = row_major(wide, &holder);
  std::vector<int64_t> result(static_cast<size_t>(line.numel()));
  for (size_t i = 0; i < result.size(); ++i) {
    // A zero is one, whichever sign it has.
    result[i] = whole ? line.as<int64_t>()[i] : std::bit_cast<int64_t>(line.as<double>()[i] + 0.0);
  }
  return result;
}

// The boxes of each group further right and down than all of those before, as torchvision moves
// them.
template <class T>
std::vector<T> moved_apart(const T* boxes, const Tensor& groups, int64_t count) {
  OwnedTensor typed, holder;
  const Tensor& line =
      row_major(converted(groups, sizeof(T) == 4 ? kFloat32 : kFloat64, &typed), &holder);
  T most = count > 0 ? boxes[0] : T{0};
  for (int64_t i = 1; i < 4 * count; ++i) {
    if (boxes[i] > most || boxes[i] != boxes[i]) most = boxes[i];
    if (most != most) break;
  }
  std::vector<T> result(static_cast<size_t>(4 * count));
  for (int64_t i = 0; i < count; ++i) {
    const T offset = line.as<T>()[i] * (most + T{1});
    for (int64_t j = 4 * i; j < 4 * i + 4; ++j) result[static_cast<size_t>(j)] = boxes[j] + offset;
  }
  return result;
}

template <class T>
std::vector<int64_t> suppress(const Tensor& boxes, const Tensor& scores, const Tensor* groups,
                              double threshold) {
  OwnedTensor holders[2];
  Suppression<T> call{};
  call.count = boxes.sizes[0];
  call.boxes = row_major(boxes, &holders[0]).template as<T>();
  call.scores = row_major(scores, &holders[1]).template as<T>();
  call.threshold = threshold;
  if (groups == nullptr) return call.kept();
  if (4 * call.count > kMostMoved) {
    const std::vector<int64_t> numbers = numbers_of(*groups);
    call.groups = numbers.data();
    return call.kept();
  }
  const std::vector<T> moved = moved_apart(call.boxes, *groups, call.count);
  call.boxes = moved.data();
  return call.kept();
}

}  // namespace

EC_API int32_t ec_aoti_torch_cpu_ec_suppress(AtenTensorHandle boxes, AtenTensorHandle scores,
                                             AtenTensorHandle* groups, double threshold,
                                             AtenTensorHandle* ret0) {
  return guarded("aoti_torch_cpu_ec_suppress", [&] {
    const Tensor& corners = *unwrap(boxes);
    const Tensor& values = *unwrap(scores);
    const Tensor* numbers = unwrap_optional(groups);
    require_dims(corners, 2, "boxes");
    require_dims(values, 1, "scores");
    const int64_t count = corners.sizes[0];
    if (corners.sizes[1] != 4) fail("boxes have %ld numbers instead of 4", corners.sizes[1]);
    if (values.sizes[0] != count) fail("%ld boxes have %ld scores", count, values.sizes[0]);
    if (numbers != nullptr && (numbers->dims != 1 || numbers->sizes[0] != count)) {
      fail("%ld boxes have groups of another shape", count);
    }
    if (values.dtype != corners.dtype || (values.dtype != kFloat32 && values.dtype != kFloat64)) {
      fail("boxes are %s and scores %s: both must be float32, or both float64",
           dtype_name(corners.dtype), dtype_name(values.dtype));
    }
    const WorkTimer timer(Work::kBoxes, {.bytes = 5 * count * element_size(values.dtype)});
    const std::vector<int64_t> kept = values.dtype == kFloat32
                                          ? suppress<float>(corners, values, numbers, threshold)
                                          : suppress<double>(corners, values, numbers, threshold);
    const int64_t sizes[] = {static_cast<int64_t>(kept.size())};
    OwnedTensor result(new_contiguous(1, sizes, kInt64));
    std::copy(kept.begin(), kept.end(), result->as<int64_t>());
    *ret0 = wrap(result.release());
  });
}

EC_API int32_t ec_aoti_torch_cpu_ec_roi_align(AtenTensorHandle input, AtenTensorHandle boxes,
                                              double scale, int64_t rows, int64_t columns,
                                              int64_t samples, int32_t aligned,
                                              AtenTensorHandle* ret0) {
  return guarded("aoti_torch_cpu_ec_roi_align", [&] {
    const Tensor& maps = *unwrap(input);
    const Tensor& corners = *unwrap(boxes);
    require_float32(maps, "input");
    require_dims(maps, 4, "input");
    require_float32(corners, "boxes");
    require_dims(corners, 2, "boxes");
    if (corners.sizes[1] != 5) fail("boxes have %ld numbers instead of 5", corners.sizes[1]);
    if (rows < 0 || columns < 0) fail("%ld by %ld bins", rows, columns);
    OwnedTensor holder;
    RoiAlign call{};
    call.input = maps.as<float>();
    call.images = maps.sizes[0];
    call.channels = maps.sizes[1];
    call.height = maps.sizes[2];
    call.width = maps.sizes[3];
    std::copy(maps.strides, maps.strides + 4, call.strides);
    call.boxes = row_major(corners, &holder).as<float>();
    call.count = corners.sizes[0];
    call.scale = static_cast<float>(scale);
    call.rows = rows;
    call.columns = columns;
    call.samples = samples;
    call.aligned = aligned != 0;
    const int64_t sizes[] = {call.count, call.channels, rows, columns};
    OwnedTensor result(new_contiguous(4, sizes, kFloat32));
    call.output = result->as<float>();
    const int64_t out = result->numel();
    const WorkTimer timer(Work::kBoxes, {.flops = 8 * out, .bytes = 4 * (maps.numel() + out)});
    roi_align(call);
    *ret0 = wrap(result.release());
  });
}

}  // namespace ec
