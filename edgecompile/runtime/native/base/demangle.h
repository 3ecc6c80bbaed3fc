// Leaves libstdc++'s demangler out of a library that is linked with it.
//
// Its handler of exceptions that nobody catches writes their types readably, with 47 KB of code and
// tables. This definition, included once by each library that we link, takes the demangler's place:
// such a type is written as the compiler names it.
#ifndef EDGECOMPILE_DEMANGLE_H_
#define EDGECOMPILE_DEMANGLE_H_

#include <cstddef>

extern "C" __attribute__((visibility("hidden"))) char* __cxa_demangle(const char*, char*,
                                                                      std::size_t*, int* status) {
  *status = -1;  // it failed
  return nullptr;
}

#endif  // EDGECOMPILE_DEMANGLE_H_
