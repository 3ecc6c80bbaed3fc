// Typed access to a parsed document that notes every problem and goes on; nothing is thrown until
// the whole document has been looked at.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "json/json.h"

namespace ecr {

// Broken rules, by their ids in FORMAT.md.
class Problems {
 public:
  explicit Problems(std::string source) : source_(std::move(source)) {}
  void add(const char* rule, const std::string& where, const std::string& text);
  bool empty() const { return count_ == 0; }
  size_t count() const { return count_; }
  // Throws with every problem on a line of its own, if there is one; of very many only the first.
  void raise_if_any(int32_t code = ECR_BUNDLE, const std::string& hint = "") const;

 private:
  std::string source_;
  std::vector<std::string> lines_;
  size_t count_ = 0;
};

// An integer or another number, told apart as in the document.
struct Number {
  bool is_integer = true;
  int64_t integer = 0;
  double real = 0;

  // Holds both kinds exactly: long double has 64 bits or more on the architectures that matter,
  // and elsewhere no program can run anyway.
  long double value() const {
    return is_integer ? static_cast<long double>(integer) : static_cast<long double>(real);
  }
  std::string text() const;
};

// A list's first items, at most as many as are allowed.
struct Items {
  const Value* first = nullptr;
  size_t count = 0;
  const Value* begin() const { return first; }
  const Value* end() const { return first + count; }
};

// Every method gives null, nothing or something empty where the value can't be used.
class Reader {
 public:
  explicit Reader(Problems* problems) : problems_(problems) {}

  void add(const char* rule, const std::string& where, const std::string& text) {
    problems_->add(rule, where, text);
  }
  size_t count_problems() const { return problems_->count(); }
  // The required value of a key.
  const Value* key(const Object& parent, const char* name, const std::string& where);
  const Object& mapping(const Object& parent, const char* name, const std::string& where,
                        bool optional = false);
  Items items(const Object& parent, const char* name, const std::string& where, size_t least,
              size_t most);
  void count(size_t count, const std::string& where, size_t least, size_t most);

  const Object* as_object(const Value& value, const std::string& where);
  const std::string* as_string(const Value& value, const std::string& where);
  std::optional<int64_t> as_integer(const Value& value, const std::string& where);
  std::optional<Number> as_number(const Value& value, const std::string& where);

  const std::string* string(const Object& parent, const char* name, const std::string& where);
  std::optional<int64_t> integer(const Object& parent, const char* name, const std::string& where);
  std::optional<Number> number(const Object& parent, const char* name, const std::string& where);
  // A string under a key that is a name, see check_name.
  const std::string* name(const Object& parent, const char* name, const std::string& where);
  bool check_name(const std::string& value, const std::string& where);

 private:
  void add_type(const Value& value, const std::string& where, const char* wanted);
  Problems* problems_;
};

}  // namespace ecr
