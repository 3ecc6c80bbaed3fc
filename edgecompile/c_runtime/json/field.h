// Typed access to a parsed document: whatever breaks a rule is refused at once, with its place.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "json/json.h"

namespace ecr {

// An integer or another number, told apart as in the document.
struct Number {
  // Holds both kinds exactly: long double has 64 bits or more on the architectures that matter,
  // and elsewhere no program can run anyway.
  long double value = 0;
  bool is_integer = true;

  std::string text() const;
};

// A value of a document and the path of keys to it. Methods throw Error ECR_BUNDLE that names the
// broken rule of FORMAT.md: key-type, key-missing, list-size, name-form.
class Field {
 public:
  // The root. `source` says which document it is, and outlives the fields.
  Field(const Value& value, const std::string& source) : Field(value, source, "") {}

  // Throws Error ECR_BUNDLE for a rule that the value breaks.
  [[noreturn]] void refuse(const char* rule, const std::string& text) const;

  const Value& value() const { return *value_; }
  bool is_null() const { return value_->type() == Value::Type::kNull; }
  Field child(const Member& member) const;
  bool has(const char* key) const { return value_->find(key) != nullptr; }  // of an object
  // The required value of a key of an object.
  Field at(const char* key) const;
  // An optional one; none where it is absent or null.
  std::optional<Field> find(const char* key) const;
  const Object& object(size_t least = 0, size_t most = SIZE_MAX) const;
  std::vector<Field> list(size_t least, size_t most, const char* rule = "list-size") const;

  const std::string& string() const;
  const std::string& name() const;  // 1 to 200 letters, digits and _ . : + -
  void check_name(const std::string& text) const;
  void check_strings() const;  // an object of strings
  bool boolean() const;
  int64_t integer() const;
  Number number() const;

 private:
  Field(const Value& value, const std::string& source, std::string place)
      : value_(&value), source_(&source), place_(std::move(place)) {}
  Field within(const std::string& key, const Value& value) const;
  void check_type(Value::Type type, const char* name) const;
  void check_size(size_t size, size_t least, size_t most, const char* rule) const;

  const Value* value_;
  const std::string* source_;
  std::string place_;
};

}  // namespace ecr
