#include "format/sums.h"

#include <algorithm>
#include <cstdlib>
#include <map>

namespace ecr {
namespace {

// With these no sum of axes exceeds 64 bits.
constexpr int64_t kMost = int64_t{1} << 20;
constexpr size_t kMaxCharacters = 200;
constexpr size_t kMaxDigits = 7;

bool is_digit(char c) { return '0' <= c && c <= '9'; }
bool begins_name(char c) { return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || c == '_'; }

// Reads one term after the other.
class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  bool at_end() const { return at_ == text_.size(); }

  bool take(char c) {
    const bool found = !at_end() && text_[at_] == c;
    if (found) ++at_;
    return found;
  }

  std::optional<int64_t> number() {
    const size_t begin = at_;
    while (!at_end() && is_digit(text_[at_])) ++at_;
    const size_t digits = at_ - begin;
    if (digits == 0 || digits > kMaxDigits) return std::nullopt;
    return std::strtoll(text_.substr(begin, digits).c_str(), nullptr, 10);
  }

  std::string name() {
    const size_t begin = at_;
    if (at_end() || !begins_name(text_[at_])) return "";
    while (!at_end() && (begins_name(text_[at_]) || is_digit(text_[at_]))) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  bool at_digit() const { return !at_end() && is_digit(text_[at_]); }

 private:
  const std::string& text_;
  size_t at_ = 0;
};

}  // namespace

bool Sum::is_known(const std::vector<int64_t>& sizes) const {
  return std::all_of(terms.begin(), terms.end(),
                     [&sizes](const auto& term) { return sizes[term.first] >= 0; });
}

int64_t Sum::at(const std::vector<int64_t>& sizes) const {
  // Unsigned: an empty array's other sizes may overflow.
  auto value = static_cast<uint64_t>(constant);
  for (const auto& [axis, factor] : terms) {
    value += static_cast<uint64_t>(factor) * static_cast<uint64_t>(sizes[axis]);
  }
  return static_cast<int64_t>(value);
}

std::optional<size_t> Sum::unknown(const std::vector<int64_t>& sizes) const {
  std::optional<size_t> found;
  for (const auto& term : terms) {
    if (sizes[term.first] >= 0) continue;
    if (found) return std::nullopt;
    found = term.first;
  }
  return found;
}

std::optional<int64_t> Sum::solve(size_t axis, int64_t value,
                                  const std::vector<int64_t>& sizes) const {
  int64_t factor = 1;
  // Unsigned: an empty array's other sizes may overflow.
  auto rest = static_cast<uint64_t>(value) - static_cast<uint64_t>(constant);
  for (const auto& [other, own] : terms) {
    if (other == axis) {
      factor = own;
    } else {
      rest -= static_cast<uint64_t>(own) * static_cast<uint64_t>(sizes[other]);
    }
  }
  // A factor isn't beyond kMost; what would be over 64 bits is negative here.
  const auto left = static_cast<int64_t>(factor < 0 ? -rest : rest);
  const int64_t divisor = std::abs(factor);
  if (left < 0 || left % divisor != 0) return std::nullopt;
  return left / divisor;
}

Extent Sum::span(const std::vector<Axis>& axes) const {
  Extent extent{constant, constant};
  for (const auto& [axis, factor] : terms) {
    const Extent& sizes = axes[axis].extent;
    extent.lo += factor * (factor > 0 ? sizes.lo : sizes.hi);
    extent.hi += factor * (factor > 0 ? sizes.hi : sizes.lo);
  }
  return extent;
}

std::optional<Sum> parse_sum(const std::vector<Axis>& axes, const std::string& text) {
  if (text.size() > kMaxCharacters) return std::nullopt;
  std::map<size_t, int64_t> factors;
  Sum sum;
  sum.text = text;
  Reader reader(text);
  for (bool first = true; !reader.at_end(); first = false) {
    const bool minus = reader.take('-');
    const bool plus = !minus && reader.take('+');
    if (!first && !minus && !plus) return std::nullopt;
    int64_t factor = 1;
    bool is_term = true;
    if (reader.at_digit()) {
      const std::optional<int64_t> number = reader.number();
      if (!number) return std::nullopt;
      factor = *number;
      is_term = reader.take('*');
    }
    if (minus) factor = -factor;
    if (!is_term) {
      sum.constant += factor;
      continue;
    }
    const std::string name = reader.name();
    const auto axis = std::find_if(axes.begin(), axes.end(),
                                   [&name](const Axis& item) { return item.name == name; });
    if (axis == axes.end()) return std::nullopt;
    factors[static_cast<size_t>(axis - axes.begin())] += factor;
  }
  for (const auto& [axis, factor] : factors) {
    if (factor == 0 || std::abs(factor) > kMost) return std::nullopt;
    sum.terms.emplace_back(axis, factor);
  }
  if (sum.terms.empty() || std::abs(sum.constant) > kMost) return std::nullopt;
  return sum;
}

}  // namespace ecr
