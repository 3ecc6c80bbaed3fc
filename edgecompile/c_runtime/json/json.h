// Strict JSON (RFC 8259 and the limits of FORMAT.md) that somebody else wrote, and a writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace ecr {

struct Member;
struct Value;
using List = std::vector<Value>;
using Object = std::vector<Member>;  // sorted by the keys, which are distinct

// One JSON value in 16 bytes, so that a hostile document of many small ones stays small. Integers
// and other numbers are told apart by how they are written, as FORMAT.md does.
struct Value {
  enum class Type : uint8_t { kNull, kBoolean, kInteger, kNumber, kString, kList, kObject };
  std::variant<std::monostate, bool, int64_t, double, std::unique_ptr<std::string>,
               std::unique_ptr<List>, std::unique_ptr<Object>>
      data;

  Type type() const { return static_cast<Type>(data.index()); }
  // Each only for its own type.
  int64_t integer() const { return std::get<int64_t>(data); }
  double number() const { return std::get<double>(data); }
  const std::string& string() const { return *std::get<std::unique_ptr<std::string>>(data); }
  const List& list() const { return *std::get<std::unique_ptr<List>>(data); }
  const Object& object() const { return *std::get<std::unique_ptr<Object>>(data); }
  // The value of a key of an object; null where there is none.
  const Value* find(const std::string& key) const;
};

struct Member {
  std::string key;
  Value value;
};

// Parses one document whose root is an object. Throws Error ECR_BUNDLE that begins with `source`
// and names the broken rule: json-utf8, json-depth, json-syntax, json-duplicate, json-number or
// json-object.
Value parse_json(const std::string& text, const std::string& source);

// Writes compact ASCII JSON; commas come by themselves.
class JsonWriter {
 public:
  JsonWriter& key(const std::string& name);
  JsonWriter& open(char bracket);  // '{' or '['
  JsonWriter& close(char bracket);
  JsonWriter& string(const std::string& value);
  JsonWriter& value(const Value& value);  // of a parsed document, so at most 32 levels deep
  JsonWriter& raw(const std::string& json);
  const std::string& text() const { return text_; }

 private:
  void begin();
  std::string text_;
};

}  // namespace ecr
