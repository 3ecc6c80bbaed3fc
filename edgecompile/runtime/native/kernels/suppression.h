// Non-maximum suppression: of boxes that overlap, the one with the highest score is kept.
#pragma once

#include <cstdint>
#include <vector>

namespace ec {

// Boxes in groups; a box suppresses those of its own group alone. T is float or double.
template <class T>
struct Suppression {
  int64_t count;          // of boxes
  const T* boxes;         // [count, 4], row-major: left, top, right, bottom
  const T* scores;        // [count]
  const int64_t* groups;  // [count]; null: all boxes are in one
  double threshold;       // the share of two boxes' union up to which both are kept

  // The numbers of the boxes that are kept, the highest score first. NaN counts as higher than
  // every number, and equal scores keep the order of the numbers.
  std::vector<int64_t> kept() const;
};

extern template struct Suppression<float>;
extern template struct Suppression<double>;

}  // namespace ec
