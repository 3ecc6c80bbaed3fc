// Stands before the C library's header of that name, which all of its headers include.
//
// From glibc 2.38 on, strtol, sscanf and their kin are other functions (__isoc23_strtol …), which
// read 0b as well. Systems with an older glibc don't have these, so a library that calls one
// wouldn't load there.
#include_next <features.h>

#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0
