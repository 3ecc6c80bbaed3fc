// Visibility of the runtime library's symbols: everything is hidden except what is marked EC_API,
// and every exported name begins with ec_ (the version script exports nothing else).
#pragma once

#ifdef __cplusplus
#define EC_API extern "C" __attribute__((visibility("default")))
#else
#define EC_API __attribute__((visibility("default")))
#endif
