// Put before the wrapper that AOTInductor generated: keeps iostream, locale and regex out of model
// libraries.
//
// The generated code uses std::stringstream for the texts of errors, std::regex to split "cpu:0",
// and std::cerr to print what it returns as an error anyway. Linked statically these are two thirds
// of a model library, and 40 % of the time to compile it. Here the names mean something small:
// texts are strings, the one regular expression is matched by hand, and cerr is silent, as a
// library has no business writing to a process's stderr. Code that asks for more does not compile.
#pragma once

// <iostream> would define an object that initializes the standard streams.
#define _GLIBCXX_IOSTREAM 1  // libstdc++'s include guard
#define _GLIBCXX_REGEX 1     // its classes are defined below

#include <functional>  // which <regex> brought
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace edgecompile_slim {

class Text {
 public:
  Text() = default;
  explicit Text(std::string text) : text_(static_cast<std::string&&>(text)) {}
  template <class T>
  Text& operator<<(const T& value) {
    if constexpr (requires { std::to_string(value); }) {
      text_ += std::to_string(value);
    } else {
      text_ += value;
    }
    return *this;
  }
  std::string str() const { return text_; }

 private:
  std::string text_;
};

struct Silence {
  template <class T>
  const Silence& operator<<(const T&) const {
    return *this;
  }
  // std::endl, a function template: no type can be deduced from it.
  const Silence& operator<<(std::ostream& (*)(std::ostream&)) const { return *this; }
};
inline constexpr Silence silence;

// Stands for the one expression in use, (cpu|cuda|xpu|mps)(:([0-9]+))?; only what a program is for
// is matched: a CPU, or the first GPU of those that the runtime shows it.
struct DevicePattern {
  explicit DevicePattern(const char*) {}
};
struct DeviceMatch {
  struct Part {
    bool matched = false;
    std::string text;
    std::string str() const { return text; }
  };
  Part parts[4];
  const Part& operator[](int i) const { return parts[i]; }
};
inline bool match_device(const std::string& device, DeviceMatch& match, const DevicePattern&) {
#ifdef USE_CUDA
  match.parts[1] = {true, "cuda"};
  match.parts[3] = {true, "0"};
  return device == "cuda:0";
#else
  match.parts[1] = {true, "cpu"};
  return device == "cpu";
#endif
}

}  // namespace edgecompile_slim

namespace std {
using edgecompile_slim_text = ::edgecompile_slim::Text;
using edgecompile_slim_pattern = ::edgecompile_slim::DevicePattern;
using edgecompile_slim_match = ::edgecompile_slim::DeviceMatch;
using ::edgecompile_slim::match_device;
using ::edgecompile_slim::silence;
}  // namespace std

#define stringstream edgecompile_slim_text
#define ostringstream edgecompile_slim_text
#define cerr silence
#define regex edgecompile_slim_pattern
#define smatch edgecompile_slim_match
#define regex_match match_device
