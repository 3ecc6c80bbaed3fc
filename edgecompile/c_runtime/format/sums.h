// Sizes and bounds that follow from axes, "2*length" or "past+length"; FORMAT.md, "Sums of axes".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ecr {

// The sizes that an axis may have: lo, lo + step, ... hi. Only a bucket's has a hint, and a step
// other than 1.
struct Extent {
  int64_t lo = 0;
  int64_t hi = 0;
  int64_t hint = 0;
  int64_t step = 1;
  bool contains(int64_t size) const { return lo <= size && size <= hi && (size - lo) % step == 0; }
};

struct Axis {
  std::string name;
  Extent extent;
};

// A linear function of the sizes of axes, which are named by their position.
struct Sum {
  std::vector<std::pair<size_t, int64_t>> terms;  // the axis and its factor
  int64_t constant = 0;
  std::string text;

  // -1 for a size means that it isn't known.
  bool is_known(const std::vector<int64_t>& sizes) const;
  int64_t at(const std::vector<int64_t>& sizes) const;
  // The one axis whose size isn't known; nothing if there are others, or none.
  std::optional<size_t> unknown(const std::vector<int64_t>& sizes) const;
  // The size of that axis where the sum has this value; nothing if no size from 0 on gives it.
  std::optional<int64_t> solve(size_t axis, int64_t value, const std::vector<int64_t>& sizes) const;
  // The smallest and the largest value where every axis is within its extent.
  Extent span(const std::vector<Axis>& axes) const;
};

// Nothing where the text is no sum of at least one of the axes.
std::optional<Sum> parse_sum(const std::vector<Axis>& axes, const std::string& text);

}  // namespace ecr
