// Strict JSON (RFC 8259 and the limits of FORMAT.md) that somebody else wrote, and a writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ecr {

class Object;
struct Member;

// One JSON value in 16 bytes, so that a hostile document of many small ones stays small. Integers
// and other numbers are told apart by how they are written, as FORMAT.md does.
class Value {
 public:
  enum class Type : uint8_t { kNull, kBoolean, kInteger, kNumber, kString, kList, kObject };

  Value() noexcept : integer_(0) {}
  explicit Value(bool value) noexcept : type_(Type::kBoolean), integer_(value ? 1 : 0) {}
  explicit Value(int64_t value) noexcept : type_(Type::kInteger), integer_(value) {}
  explicit Value(double value) noexcept : type_(Type::kNumber), number_(value) {}
  explicit Value(std::string value);
  explicit Value(std::vector<Value> items);
  explicit Value(std::vector<Member> members);  // the keys are distinct
  Value(Value&& other) noexcept : type_(other.type_), integer_(other.integer_) {
    other.type_ = Type::kNull;
  }
  Value& operator=(Value&& other) noexcept {
    std::swap(type_, other.type_);
    std::swap(integer_, other.integer_);
    return *this;
  }
  ~Value();

  Type type() const { return type_; }
  bool is(Type type) const { return type_ == type; }
  // What the document calls a value of this type.
  const char* type_name() const;

  // Each only for its own type.
  bool boolean() const { return integer_ != 0; }
  int64_t integer() const { return integer_; }
  double number() const { return number_; }
  const std::string& string() const { return *string_; }
  const std::vector<Value>& list() const { return *list_; }
  const Object& object() const { return *object_; }

 private:
  Type type_ = Type::kNull;
  // Moved as a whole through integer_.
  union {
    int64_t integer_;
    double number_;
    std::string* string_;
    std::vector<Value>* list_;
    Object* object_;
  };
};
static_assert(sizeof(double) == sizeof(int64_t) && sizeof(void*) <= sizeof(int64_t));

struct Member {
  std::string key;
  Value value;
};

// Members in the order of the document. Finding one compares strings and hashes nothing, so no
// choice of keys makes it slow.
class Object {
 public:
  Object() = default;
  explicit Object(std::vector<Member> members);

  const std::vector<Member>& members() const { return members_; }
  size_t size() const { return members_.size(); }
  const Value* find(const std::string& key) const;  // null where there is none

 private:
  std::vector<Member> members_;
  std::vector<uint32_t> order_;
};

// Parses one document whose root is an object. Throws Error ECR_BUNDLE that begins with `source`
// and names the broken rule: json-size, json-utf8, json-depth, json-syntax, json-duplicate,
// json-number or json-object.
Value parse_json(const char* data, size_t size, const std::string& source, size_t max_bytes);

// Writes compact ASCII JSON; commas come by themselves.
class JsonWriter {
 public:
  JsonWriter& key(const std::string& name);
  JsonWriter& open(char bracket);  // '{' or '['
  JsonWriter& close(char bracket);
  JsonWriter& null();
  JsonWriter& boolean(bool value);
  JsonWriter& integer(int64_t value);
  JsonWriter& number(double value);
  JsonWriter& string(const std::string& value);
  JsonWriter& value(const Value& value);  // of a parsed document, so at most 32 levels deep
  JsonWriter& raw(const std::string& json);
  const std::string& text() const { return text_; }

 private:
  void begin();
  std::string text_;
};

}  // namespace ecr
