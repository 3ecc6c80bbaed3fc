// The runtime library's copy of _dl_find_object; model libraries have theirs in model/support.cpp.
#include "base/find_object.h"
