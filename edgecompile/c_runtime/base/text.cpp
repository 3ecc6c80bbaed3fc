// Numbers, quotes and UTF-8 for messages and JSON.
#include "base/text.h"

#include <locale.h>
#include <stdlib.h>

#include <cstdio>
#include <cstring>

namespace ecr {
namespace {

// A program may have set a locale whose decimal point is a comma.
locale_t c_locale() {
  static const locale_t locale = newlocale(LC_ALL_MASK, "C", nullptr);
  return locale;
}

class InCLocale {
 public:
  InCLocale() : before_(uselocale(c_locale())) {}
  ~InCLocale() { uselocale(before_); }
  InCLocale(const InCLocale&) = delete;
  InCLocale& operator=(const InCLocale&) = delete;

 private:
  locale_t before_;
};

}  // namespace

std::string format_number(double value) {
  char text[40];
  const InCLocale in_c_locale;
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    if (strtod_l(text, nullptr, c_locale()) == value) break;
  }
  const bool is_integer = std::strpbrk(text, ".en") == nullptr;
  return is_integer ? std::string(text) + ".0" : text;
}

double parse_number(const std::string& text) { return strtod_l(text.c_str(), nullptr, c_locale()); }

std::string shorten(const std::string& text, size_t limit) {
  std::string result = text.size() <= limit ? text : text.substr(0, limit - 3) + std::string("...");
  for (char& letter : result) {
    const auto byte = static_cast<unsigned char>(letter);
    if (byte < 0x20 || byte >= 0x7F) letter = '?';
  }
  return result;
}

std::string quoted(const std::string& text, size_t limit) {
  return cat("'", shorten(text, limit), "'");
}

CodePoint decode_utf8(const char* data, size_t room) {
  const auto* at = reinterpret_cast<const unsigned char*>(data);
  if (at[0] < 0x80) return {at[0], 1};
  const size_t length = at[0] < 0xE0 ? 2 : at[0] < 0xF0 ? 3 : 4;
  if (at[0] < 0xC2 || at[0] > 0xF4 || length > room) return {};
  uint32_t point = at[0] & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((at[i] & 0xC0) != 0x80) return {};
    point = point << 6 | (at[i] & 0x3Fu);
  }
  const uint32_t least = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
  if (point < least || point > 0x10FFFF) return {};
  return {point, length};
}

namespace {

// strerror_r is one of two functions, depending on the C library.
[[maybe_unused]] const char* pick(const char* result, const char*) { return result; }
[[maybe_unused]] const char* pick(int result, const char* buffer) {
  return result == 0 ? buffer : "unknown error";
}

}  // namespace

std::string system_text(int number) {
  char buffer[256] = "";
  return pick(strerror_r(number, buffer, sizeof buffer), buffer);
}

}  // namespace ecr
