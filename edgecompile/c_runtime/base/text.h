// Text for messages and JSON. Nothing here depends on the process' locale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace ecr {

// The shortest decimal text that reads back as `value`; has a "." or an "e", so it isn't an
// integer's.
std::string format_number(double value);
// What a whole decimal number means; infinite where it is too large.
double parse_number(const std::string& text);

inline void append(std::string* out, const std::string& text) { *out += text; }
inline void append(std::string* out, const char* text) { *out += text; }
inline void append(std::string* out, double value) { *out += format_number(value); }
template <class Integer, class = std::enable_if_t<std::is_integral_v<Integer>>>
void append(std::string* out, Integer value) {
  *out += std::to_string(value);
}

// The parts behind each other: cat("bucket ", 3).
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::string result;
  (append(&result, parts), ...);
  return result;
}

// "a, b, c": what `text` gives for every item.
template <class Items, class Text>
std::string join(const Items& items, const Text& text, const char* between = ", ") {
  std::string result;
  for (const auto& item : items) {
    if (!result.empty()) result += between;
    result += text(item);
  }
  return result;
}
template <class Items>
std::string join(const Items& items, const char* between = ", ") {
  return join(items, [](const auto& item) { return cat(item); }, between);
}

// Text that somebody else wrote, for a message: cut to `limit` bytes, anything but printable ASCII
// replaced.
std::string shorten(const std::string& text, size_t limit = 60);
std::string quoted(const std::string& text, size_t limit = 60);

struct CodePoint {
  uint32_t value = 0;
  size_t length = 0;  // of its bytes
};
// The first code point of `room` bytes, at least one; its length is 0 where that isn't UTF-8. Lone
// surrogates are allowed, as JSON can spell them.
CodePoint decode_utf8(const char* data, size_t room);

// What the system says about an errno.
std::string system_text(int number);

}  // namespace ecr
