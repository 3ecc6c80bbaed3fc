// The runtime library's copies of what each library has for itself; model libraries have theirs in
// generated/support.cpp.
#include "base/demangle.h"
#include "base/find_object.h"
