// Values of a document, and the writer.
#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "json/json.h"

namespace ecr {

Value::Value(std::string value)
    : type_(Type::kString), string_(new std::string(std::move(value))) {}

Value::Value(std::vector<Value> items)
    : type_(Type::kList), list_(new std::vector<Value>(std::move(items))) {}

Value::Value(std::vector<Member> members)
    : type_(Type::kObject), object_(new Object(std::move(members))) {}

// Recursion ends where the parser's does: 32 levels.
Value::~Value() {
  if (type_ == Type::kString) delete string_;
  if (type_ == Type::kList) delete list_;
  if (type_ == Type::kObject) delete object_;
}

const char* Value::type_name() const {
  static constexpr const char* kNames[] = {"null",   "true/false", "integer", "number",
                                           "string", "list",       "object"};
  return kNames[static_cast<int>(type_)];
}

Object::Object(std::vector<Member> members)
    : members_(std::move(members)), order_(members_.size()) {
  std::iota(order_.begin(), order_.end(), 0u);
  std::sort(order_.begin(), order_.end(),
            [this](uint32_t a, uint32_t b) { return members_[a].key < members_[b].key; });
}

const Value* Object::find(const std::string& key) const {
  const auto found =
      std::lower_bound(order_.begin(), order_.end(), key,
                       [this](uint32_t i, const std::string& k) { return members_[i].key < k; });
  if (found == order_.end() || members_[*found].key != key) return nullptr;
  return &members_[*found].value;
}

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

JsonWriter& JsonWriter::open(char bracket) {
  begin();
  text_ += bracket;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  text_ += bracket;
  return *this;
}

JsonWriter& JsonWriter::boolean(bool value) {
  begin();
  text_ += value ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::null() {
  begin();
  text_ += "null";
  return *this;
}

JsonWriter& JsonWriter::integer(int64_t value) {
  begin();
  append(&text_, value);
  return *this;
}

JsonWriter& JsonWriter::number(double value) {
  begin();
  append(&text_, value);
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
      return null();
    case Value::Type::kBoolean:
      return boolean(value.boolean());
    case Value::Type::kInteger:
      return integer(value.integer());
    case Value::Type::kNumber:
      return number(value.number());
    case Value::Type::kString:
      return string(value.string());
    case Value::Type::kList:
      open('[');
      for (const Value& item : value.list()) this->value(item);
      return close(']');
    case Value::Type::kObject:
      open('{');
      for (const Member& member : value.object().members()) key(member.key).value(member.value);
      return close('}');
  }
  return *this;
}

namespace {

void append_escape(std::string* out, uint32_t unit) {
  static constexpr char kDigits[] = "0123456789abcdef";
  *out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) *out += kDigits[unit >> shift & 15];
}

}  // namespace

JsonWriter& JsonWriter::string(const std::string& value) {
  begin();
  text_ += '"';
  for (size_t i = 0; i < value.size(); ++i) {
    const auto lead = static_cast<unsigned char>(value[i]);
    if (lead == '"' || lead == '\\') {
      text_ += '\\';
      text_ += value[i];
    } else if (0x20 <= lead && lead < 0x7F) {
      text_ += value[i];
    } else if (lead < 0x80) {
      append_escape(&text_, lead);
    } else {
      // Strings of a document are valid; those of the system (a path) may not be.
      const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
      uint32_t point = lead & (0xFFu >> (length + 1));
      bool valid = lead >= 0xC2 && lead <= 0xF4 && value.size() - i >= length;
      for (size_t k = 1; valid && k < length; ++k) {
        const auto next = static_cast<unsigned char>(value[i + k]);
        valid = (next & 0xC0) == 0x80;
        point = point << 6 | (next & 0x3Fu);
      }
      if (!valid || point > 0x10FFFF) {
        // As Python spells a byte of a file name that isn't UTF-8.
        append_escape(&text_, 0xDC00u + lead);
        continue;
      }
      if (point >= 0x10000) {
        append_escape(&text_, 0xD800u + ((point - 0x10000) >> 10));
        append_escape(&text_, 0xDC00u + ((point - 0x10000) & 0x3FFu));
      } else {
        append_escape(&text_, point);
      }
      i += length - 1;
    }
  }
  text_ += '"';
  return *this;
}

}  // namespace ecr
