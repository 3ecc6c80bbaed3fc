// Numbers, quotes and UTF-8 for messages and JSON.
#include "base/text.h"

#include <locale.h>
#include <stdlib.h>

#include <algorithm>
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

// Length of the sequence that begins with `lead`; its continuation bytes aren't looked at.
size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xE0) return 2;
  return lead < 0xF0 ? 3 : 4;
}

uint32_t decode(const unsigned char* at, size_t length) {
  if (length == 1) return at[0];
  uint32_t point = at[0] & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) point = point << 6 | (at[i] & 0x3Fu);
  return point;
}

// Inclusive ranges of Unicode's categories Cc, Cf, Cs, Co, Zl, Zp and Zs (without the space), in
// ascending order. Source: the Unicode Character Database, version 15.
constexpr uint32_t kInvisible[][2] = {
    {0x00, 0x1F},       {0x7F, 0xA0},       {0xAD, 0xAD},       {0x600, 0x605},
    {0x61C, 0x61C},     {0x6DD, 0x6DD},     {0x70F, 0x70F},     {0x890, 0x891},
    {0x8E2, 0x8E2},     {0x1680, 0x1680},   {0x180E, 0x180E},   {0x2000, 0x200F},
    {0x2028, 0x202F},   {0x205F, 0x2064},   {0x2066, 0x206F},   {0x3000, 0x3000},
    {0xD800, 0xF8FF},   {0xFDD0, 0xFDEF},   {0xFEFF, 0xFEFF},   {0xFFF9, 0xFFFB},
    {0x110BD, 0x110BD}, {0x110CD, 0x110CD}, {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3},
    {0x1D173, 0x1D17A}, {0xE0001, 0xE0001}, {0xE0020, 0xE007F}, {0xF0000, 0x10FFFF},
};

bool is_visible(uint32_t point) {
  if ((point & 0xFFFE) == 0xFFFE) return false;
  return std::none_of(std::begin(kInvisible), std::end(kInvisible), [point](const auto& range) {
    return range[0] <= point && point <= range[1];
  });
}

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

std::string place_of(const std::string& where, const std::string& key) {
  return where.empty() ? shorten(key) : cat(where, ".", shorten(key));
}

size_t count_code_points(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char letter) {
    return (static_cast<unsigned char>(letter) & 0xC0) != 0x80;
  }));
}

bool is_printable(const std::string& text) {
  const auto* at = reinterpret_cast<const unsigned char*>(text.data());
  const unsigned char* const end = at + text.size();
  while (at < end) {
    const size_t length = sequence_length(*at);
    if (length > static_cast<size_t>(end - at) || !is_visible(decode(at, length))) return false;
    at += length;
  }
  return true;
}

size_t find_bad_utf8(const char* data, size_t size) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(data);
  size_t i = 0;
  while (i < size) {
    if (bytes[i] < 0x80) {
      ++i;
      continue;
    }
    const size_t length = sequence_length(bytes[i]);
    if (bytes[i] < 0xC2 || bytes[i] > 0xF4 || length > size - i) return i;
    for (size_t k = 1; k < length; ++k) {
      if ((bytes[i + k] & 0xC0) != 0x80) return i;
    }
    const uint32_t point = decode(bytes + i, length);
    const uint32_t least = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
    if (point < least || point > 0x10FFFF || (0xD800 <= point && point <= 0xDFFF)) return i;
    i += length;
  }
  return size;
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
