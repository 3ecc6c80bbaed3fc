// Built without fused multiply-adds: a difference in the last bit of a share could keep another
// box.
#include "kernels/suppression.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace ec {
namespace {

// A NaN as the second argument is left out by both.
template <class T>
T larger(T a, T b) {
  return a < b ? b : a;
}
template <class T>
T smaller(T a, T b) {
  return b < a ? b : a;
}

// The largest number of the type up to `value`: what is above it is above `value` as well.
template <class T>
T rounded_down(double value) {
  const T near = static_cast<T>(value);
  return near > value ? std::nextafter(near, -std::numeric_limits<T>::infinity()) : near;
}

// Boxes of one group in the order of their scores, a column for each number of a box.
template <class T>
class Line {
 public:
  Line(const T* boxes, const int64_t* order, int64_t count) : count_(count) {
    for (auto* column : {&left_, &top_, &right_, &bottom_, &area_}) {
      column->resize(static_cast<size_t>(count));
    }
    gone_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(i);
      const T* const box = boxes + 4 * order[i];
      left_[at] = box[0];
      top_[at] = box[1];
      right_[at] = box[2];
      bottom_[at] = box[3];
      area_[at] = (box[2] - box[0]) * (box[3] - box[1]);
    }
  }

  bool gone(int64_t i) const { return gone_[static_cast<size_t>(i)] != 0; }

  // Marks the boxes behind `i` of whose union with it more than `limit` is common.
  void suppress(int64_t i, T limit) {
    const auto at = static_cast<size_t>(i);
    const T left = left_[at], top = top_[at], right = right_[at], bottom = bottom_[at];
    const T area = area_[at];
    const T *lefts = left_.data(), *tops = top_.data();
    const T *rights = right_.data(), *bottoms = bottom_.data(), *areas = area_.data();
    uint8_t* const gone = gone_.data();
    for (int64_t j = i + 1; j < count_; ++j) {
      const T width = larger(T{0}, smaller(right, rights[j]) - larger(left, lefts[j]));
      const T height = larger(T{0}, smaller(bottom, bottoms[j]) - larger(top, tops[j]));
      const T common = width * height;
      gone[j] |= static_cast<uint8_t>(common / (area + areas[j] - common) > limit);
    }
  }

 private:
  int64_t count_;
  std::vector<T> left_, top_, right_, bottom_, area_;
  std::vector<uint8_t> gone_;
};

}  // namespace

template <class T>
std::vector<int64_t> Suppression<T>::kept() const {
  const auto size = static_cast<size_t>(count);
  const T limit = rounded_down<T>(threshold);
  std::vector<int64_t> order(size), grouped;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const T first = scores[a], second = scores[b];
    return first > second || (first != first && second == second);
  });
  if (groups != nullptr) {
    grouped = order;
    std::stable_sort(grouped.begin(), grouped.end(),
                     [&](int64_t a, int64_t b) { return groups[a] < groups[b]; });
  }
  const int64_t* const line = groups == nullptr ? order.data() : grouped.data();
  std::vector<uint8_t> stays(size);
  for (int64_t begin = 0, end; begin < count; begin = end) {
    end = count;
    if (groups != nullptr) {
      const int64_t group = groups[line[begin]];
      end = begin + 1;
      while (end < count && groups[line[end]] == group) ++end;
    }
    Line<T> boxes_of_group(boxes, line + begin, end - begin);
    for (int64_t i = 0; i < end - begin; ++i) {
      if (boxes_of_group.gone(i)) continue;
      stays[static_cast<size_t>(line[begin + i])] = 1;
      boxes_of_group.suppress(i, limit);
    }
  }
  std::erase_if(order, [&](int64_t box) { return stays[static_cast<size_t>(box)] == 0; });
  return order;
}

template struct Suppression<float>;
template struct Suppression<double>;

}  // namespace ec
