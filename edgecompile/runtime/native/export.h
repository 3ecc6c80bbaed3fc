// Marks what the runtime library exports. Everything else is hidden (-fvisibility=hidden).
#pragma once

#define EC_API extern "C" __attribute__((visibility("default")))
