// The parser: strict, with limits on size and depth.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/status.h"
#include "base/text.h"
#include "json/json.h"

namespace ecr {
namespace {

constexpr int kMaxDepth = 32;
// No number of a bundle needs more; converting longer ones could take long.
constexpr size_t kMaxIntegerLength = 20;
constexpr size_t kMaxNumberLength = 64;

struct Refused {
  const char* rule;
  std::string text;
};

[[noreturn]] void refuse(const char* rule, std::string text) {
  throw Refused{rule, std::move(text)};
}

bool is_digit(char letter) { return '0' <= letter && letter <= '9'; }

// Looked at before anything else, so that a document that is too deep is called that whatever else
// is wrong with it.
void check_depth(const char* data, size_t size) {
  int64_t depth = 0;
  for (size_t i = 0; i < size; ++i) {
    if (data[i] == '"') {
      const size_t opened = i;
      for (++i; i < size && data[i] != '"'; ++i) {
        if (data[i] == '\\') ++i;
      }
      if (i >= size) refuse("json-syntax", cat("unterminated string at ", opened));
    } else if (data[i] == '[' || data[i] == '{') {
      if (++depth > kMaxDepth)
        refuse("json-depth", cat("nested deeper than ", kMaxDepth, " levels"));
    } else if (data[i] == ']' || data[i] == '}') {
      --depth;
    }
  }
}

class Parser {
 public:
  Parser(const char* begin, const char* end) : begin_(begin), at_(begin), end_(end) {}

  Value parse() {
    skip_space();
    Value value = parse_value(0);
    skip_space();
    if (at_ != end_) fail_syntax("more after the end of the document");
    return value;
  }

 private:
  [[noreturn]] void fail_syntax(const char* text) const {
    refuse("json-syntax", cat(text, " at byte ", at_ - begin_));
  }

  void skip_space() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r')) ++at_;
  }

  bool take(char letter) {
    if (at_ >= end_ || *at_ != letter) return false;
    ++at_;
    return true;
  }

  bool take_word(const char* word) {
    const size_t length = std::strlen(word);
    if (static_cast<size_t>(end_ - at_) < length || std::memcmp(at_, word, length) != 0) {
      return false;
    }
    at_ += length;
    return true;
  }

  Value parse_value(int depth) {
    if (at_ >= end_) fail_syntax("a value is missing");
    if (depth > kMaxDepth) refuse("json-depth", "nested too deep");
    switch (*at_) {
      case '{':
        return parse_object(depth);
      case '[':
        return parse_list(depth);
      case '"':
        return Value(parse_string());
      default:
        break;
    }
    if (take_word("true")) return Value(true);
    if (take_word("false")) return Value(false);
    if (take_word("null")) return Value();
    for (const char* word : {"NaN", "Infinity", "-Infinity"}) {
      if (take_word(word)) refuse("json-number", cat(word, " isn't a JSON number"));
    }
    return parse_number_token();
  }

  Value parse_list(int depth) {
    ++at_;
    std::vector<Value> items;
    skip_space();
    if (!take(']')) {
      do {
        skip_space();
        items.push_back(parse_value(depth + 1));
        skip_space();
      } while (take(','));
      if (!take(']')) fail_syntax("',' or ']' is missing");
    }
    items.shrink_to_fit();
    return Value(std::move(items));
  }

  Value parse_object(int depth) {
    ++at_;
    std::vector<Member> members;
    skip_space();
    if (!take('}')) {
      do {
        skip_space();
        if (at_ >= end_ || *at_ != '"') fail_syntax("a key is missing");
        std::string key = parse_string();
        skip_space();
        if (!take(':')) fail_syntax("':' is missing");
        skip_space();
        Value value = parse_value(depth + 1);
        members.push_back({std::move(key), std::move(value)});
        skip_space();
      } while (take(','));
      if (!take('}')) fail_syntax("',' or '}' is missing");
    }
    check_distinct(members);
    members.shrink_to_fit();
    return Value(std::move(members));
  }

  static void check_distinct(const std::vector<Member>& members) {
    std::vector<const std::string*> keys;
    keys.reserve(members.size());
    for (const Member& member : members) keys.push_back(&member.key);
    std::sort(keys.begin(), keys.end(), [](const auto* a, const auto* b) { return *a < *b; });
    const auto twice = std::adjacent_find(keys.begin(), keys.end(),
                                          [](const auto* a, const auto* b) { return *a == *b; });
    if (twice != keys.end()) {
      refuse("json-duplicate", cat("the key ", quoted(**twice), " occurs twice"));
    }
  }

  std::string parse_string() {
    ++at_;
    std::string result;
    while (true) {
      const char* const run = at_;
      while (at_ < end_ && *at_ != '"' && *at_ != '\\' &&
             static_cast<unsigned char>(*at_) >= 0x20) {
        ++at_;
      }
      result.append(run, at_);
      if (at_ >= end_) fail_syntax("unterminated string");
      if (take('"')) return result;
      if (!take('\\')) fail_syntax("control character in a string");
      parse_escape(&result);
    }
  }

  void parse_escape(std::string* out) {
    static constexpr char kLetters[] = "\"\\/bfnrt";
    static constexpr char kMeanings[] = "\"\\/\b\f\n\r\t";
    if (at_ >= end_) fail_syntax("unterminated string");
    const char letter = *at_++;
    if (letter == 'u') {
      uint32_t point = parse_unit();
      if (0xD800 <= point && point < 0xDC00) {
        // A high surrogate that no low one follows stands for itself.
        const char* const before = at_;
        if (take('\\') && take('u')) {
          const std::optional<uint32_t> low = peek_unit();
          if (low && 0xDC00 <= *low && *low < 0xE000) {
            at_ += 4;
            append_point(out, 0x10000 + ((point - 0xD800) << 10) + (*low - 0xDC00));
            return;
          }
        }
        at_ = before;
      }
      append_point(out, point);
      return;
    }
    const char* const found =
        letter == '\0' ? nullptr : static_cast<const char*>(std::strchr(kLetters, letter));
    if (found == nullptr) fail_syntax("unknown escape");
    *out += kMeanings[found - kLetters];
  }

  std::optional<uint32_t> peek_unit() const {
    if (end_ - at_ < 4) return std::nullopt;
    uint32_t unit = 0;
    for (int i = 0; i < 4; ++i) {
      const char letter = at_[i];
      unit <<= 4;
      if (is_digit(letter)) {
        unit |= static_cast<uint32_t>(letter - '0');
      } else if ('a' <= letter && letter <= 'f') {
        unit |= static_cast<uint32_t>(letter - 'a' + 10);
      } else if ('A' <= letter && letter <= 'F') {
        unit |= static_cast<uint32_t>(letter - 'A' + 10);
      } else {
        return std::nullopt;
      }
    }
    return unit;
  }

  uint32_t parse_unit() {
    const std::optional<uint32_t> unit = peek_unit();
    if (!unit) fail_syntax("\\u needs four hex digits");
    at_ += 4;
    return *unit;
  }

  static void append_point(std::string* out, uint32_t point) {
    const auto put = [out](uint32_t byte) { *out += static_cast<char>(byte); };
    if (point < 0x80) {
      put(point);
      return;
    }
    if (point < 0x800) {
      put(0xC0 | point >> 6);
    } else if (point < 0x10000) {
      put(0xE0 | point >> 12);
      put(0x80 | (point >> 6 & 0x3F));
    } else {
      put(0xF0 | point >> 18);
      put(0x80 | (point >> 12 & 0x3F));
      put(0x80 | (point >> 6 & 0x3F));
    }
    put(0x80 | (point & 0x3F));
  }

  void take_digits() {
    while (at_ < end_ && is_digit(*at_)) ++at_;
  }

  Value parse_number_token() {
    const char* const begin = at_;
    take('-');
    if (at_ >= end_ || !is_digit(*at_)) {
      at_ = begin;
      fail_syntax("no value");
    }
    if (!take('0')) take_digits();
    bool is_integer = true;
    // A "." or "e" that no digit follows isn't the number's: the caller trips over it.
    if (end_ - at_ >= 2 && at_[0] == '.' && is_digit(at_[1])) {
      is_integer = false;
      ++at_;
      take_digits();
    }
    if (at_ < end_ && (*at_ == 'e' || *at_ == 'E')) {
      const char* const before = at_++;
      if (at_ < end_ && (*at_ == '+' || *at_ == '-')) ++at_;
      if (at_ < end_ && is_digit(*at_)) {
        is_integer = false;
        take_digits();
      } else {
        at_ = before;
      }
    }
    const std::string text(begin, at_);
    return is_integer ? Value(to_integer(text)) : Value(to_number(text));
  }

  static int64_t to_integer(const std::string& text) {
    const bool negative = text[0] == '-';
    const uint64_t limit = (uint64_t{1} << 63) - (negative ? 0 : 1);
    uint64_t value = 0;
    bool fits = text.size() <= kMaxIntegerLength;
    for (size_t i = negative ? 1 : 0; fits && i < text.size(); ++i) {
      const auto digit = static_cast<uint64_t>(text[i] - '0');
      fits = value <= (limit - digit) / 10;
      value = value * 10 + digit;
    }
    if (!fits) refuse("json-number", cat(shorten(text), " doesn't fit in 64 bits"));
    return static_cast<int64_t>(negative ? 0 - value : value);
  }

  static double to_number(const std::string& text) {
    const double value = text.size() <= kMaxNumberLength ? parse_number(text) : HUGE_VAL;
    if (!std::isfinite(value)) {
      refuse("json-number", cat(shorten(text), " isn't a finite double"));
    }
    return value;
  }

  const char* begin_;
  const char* at_;
  const char* end_;
};

}  // namespace

Value parse_json(const char* data, size_t size, const std::string& source, size_t max_bytes) {
  try {
    if (size > max_bytes) refuse("json-size", cat(size, " bytes, at most ", max_bytes));
    const size_t bad = find_bad_utf8(data, size);
    if (bad != size) refuse("json-utf8", cat("not UTF-8 at byte ", bad));
    check_depth(data, size);
    Value value = Parser(data, data + size).parse();
    if (!value.is(Value::Type::kObject)) {
      refuse("json-object", cat("must be an object, not ", value.type_name()));
    }
    return value;
  } catch (const Refused& refused) {
    fail(ECR_BUNDLE, cat(source, ": document: ", refused.text, " [", refused.rule, "]"));
  }
}

}  // namespace ecr
