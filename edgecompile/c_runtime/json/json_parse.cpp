// The parser: strict, with limits on size and depth.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <system_error>

#include "base/status.h"
#include "base/text.h"
#include "json/json.h"

namespace ecr {
namespace {

constexpr int kMaxDepth = 32;
// No number of a bundle needs more characters; converting longer ones could take long.
constexpr size_t kMaxNumberLength = 64;

bool is_digit(char letter) { return '0' <= letter && letter <= '9'; }

class Parser {
 public:
  Parser(const std::string& text, const std::string& source)
      : source_(source), begin_(text.data()), at_(begin_), end_(begin_ + text.size()) {}

  Value parse() {
    check_utf8();
    skip_space();
    Value value = parse_value(0);
    skip_space();
    if (at_ != end_) fail_syntax("more after the end of the document");
    if (value.type() != Value::Type::kObject) refuse("json-object", "must be an object");
    return value;
  }

 private:
  [[noreturn]] void refuse(const char* rule, const std::string& text) const {
    fail(ECR_BUNDLE, cat(source_, ": document: ", text, " [", rule, "]"));
  }

  [[noreturn]] void fail_syntax(const char* text) const {
    refuse("json-syntax", cat(text, " at byte ", at_ - begin_));
  }

  void check_utf8() const {
    for (const char* at = begin_; at < end_;) {
      const CodePoint point = decode_utf8(at, static_cast<size_t>(end_ - at));
      const bool is_surrogate = 0xD800 <= point.value && point.value < 0xE000;
      if (point.length == 0 || is_surrogate) {
        refuse("json-utf8", cat("not UTF-8 at byte ", at - begin_));
      }
      at += point.length;
    }
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
    if (*at_ == '{' || *at_ == '[') {
      if (depth == kMaxDepth) {
        refuse("json-depth", cat("nested deeper than ", kMaxDepth, " levels"));
      }
      return *at_ == '{' ? parse_object(depth + 1) : parse_list(depth + 1);
    }
    if (*at_ == '"') return Value{std::make_unique<std::string>(parse_string())};
    if (take_word("true")) return Value{true};
    if (take_word("false")) return Value{false};
    if (take_word("null")) return Value{};
    return parse_number_token();
  }

  Value parse_list(int depth) {
    ++at_;
    auto items = std::make_unique<List>();
    skip_space();
    if (!take(']')) {
      do {
        skip_space();
        items->push_back(parse_value(depth));
        skip_space();
      } while (take(','));
      if (!take(']')) fail_syntax("',' or ']' is missing");
    }
    items->shrink_to_fit();
    return Value{std::move(items)};
  }

  Value parse_object(int depth) {
    ++at_;
    auto members = std::make_unique<Object>();
    skip_space();
    if (!take('}')) {
      do {
        skip_space();
        if (at_ >= end_ || *at_ != '"') fail_syntax("a key is missing");
        std::string key = parse_string();
        skip_space();
        if (!take(':')) fail_syntax("':' is missing");
        skip_space();
        members->push_back({std::move(key), parse_value(depth)});
        skip_space();
      } while (take(','));
      if (!take('}')) fail_syntax("',' or '}' is missing");
    }
    members->shrink_to_fit();
    // Compares strings and hashes nothing, so no choice of keys makes it slow.
    std::sort(members->begin(), members->end(),
              [](const Member& a, const Member& b) { return a.key < b.key; });
    const auto twice =
        std::adjacent_find(members->begin(), members->end(),
                           [](const Member& a, const Member& b) { return a.key == b.key; });
    if (twice != members->end()) {
      refuse("json-duplicate", cat("the key ", quoted(twice->key), " occurs twice"));
    }
    return Value{std::move(members)};
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
    const auto [end, error] = std::from_chars(at_, at_ + 4, unit, 16);
    if (error != std::errc() || end != at_ + 4) return std::nullopt;
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
    if (is_integer) {
      int64_t value = 0;
      if (std::from_chars(begin, at_, value).ec != std::errc()) {
        refuse("json-number", shorten(text) + " doesn't fit in 64 bits");
      }
      return Value{value};
    }
    const double value = text.size() <= kMaxNumberLength ? parse_number(text) : HUGE_VAL;
    if (!std::isfinite(value)) refuse("json-number", shorten(text) + " isn't a finite double");
    return Value{value};
  }

  const std::string& source_;
  const char* begin_;
  const char* at_;
  const char* end_;
};

}  // namespace

const Value* Value::find(const std::string& key) const {
  const Object& members = object();
  const auto at =
      std::lower_bound(members.begin(), members.end(), key,
                       [](const Member& member, const std::string& k) { return member.key < k; });
  return at == members.end() || at->key != key ? nullptr : &at->value;
}

Value parse_json(const std::string& text, const std::string& source) {
  return Parser(text, source).parse();
}

}  // namespace ecr
