// The writer.
#include "base/text.h"
#include "json/json.h"

namespace ecr {
namespace {

void append_escape(std::string* out, uint32_t unit) {
  static constexpr char kDigits[] = "0123456789abcdef";
  *out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) *out += kDigits[unit >> shift & 15];
}

}  // namespace

void JsonWriter::begin() {
  if (text_.empty()) return;
  const char last = text_.back();
  if (last != '{' && last != '[' && last != ':') text_ += ',';
}

JsonWriter& JsonWriter::key(const std::string& name) {
  string(name);
  text_ += ':';
  return *this;
}

JsonWriter& JsonWriter::open(char bracket) { return raw(std::string(1, bracket)); }

JsonWriter& JsonWriter::close(char bracket) {
  text_ += bracket;
  return *this;
}

JsonWriter& JsonWriter::raw(const std::string& json) {
  begin();
  text_ += json;
  return *this;
}

JsonWriter& JsonWriter::value(const Value& value) {
  switch (value.type()) {
    case Value::Type::kNull:
      return raw("null");
    case Value::Type::kBoolean:
      return raw(std::get<bool>(value.data) ? "true" : "false");
    case Value::Type::kInteger:
      return raw(cat(value.integer()));
    case Value::Type::kNumber:
      return raw(cat(value.number()));
    case Value::Type::kString:
      return string(value.string());
    case Value::Type::kList:
      open('[');
      for (const Value& item : value.list()) this->value(item);
      return close(']');
    case Value::Type::kObject:
      open('{');
      for (const Member& member : value.object()) key(member.key).value(member.value);
      return close('}');
  }
  return *this;
}

JsonWriter& JsonWriter::string(const std::string& value) {
  begin();
  text_ += '"';
  for (size_t i = 0; i < value.size();) {
    const CodePoint point = decode_utf8(value.data() + i, value.size() - i);
    if (point.length == 0) {
      // Strings of a document are valid; a path may not be. As Python spells such a byte.
      append_escape(&text_, 0xDC00u + static_cast<unsigned char>(value[i++]));
      continue;
    }
    i += point.length;
    if (point.value >= 0x10000) {
      append_escape(&text_, 0xD800u + ((point.value - 0x10000) >> 10));
      append_escape(&text_, 0xDC00u + ((point.value - 0x10000) & 0x3FFu));
    } else if (point.value < 0x20 || point.value >= 0x7F) {
      append_escape(&text_, point.value);
    } else {
      if (point.value == '"' || point.value == '\\') text_ += '\\';
      text_ += static_cast<char>(point.value);
    }
  }
  text_ += '"';
  return *this;
}

}  // namespace ecr
