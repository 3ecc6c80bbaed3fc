// The device that a library's tensors are on; each library defines one.
#pragma once

#include <cstdint>

namespace ec {

struct Device {
  int32_t type, index;  // c10's DeviceType, and the number among the devices of that type
  const char* name;     // for messages
};
extern const Device kDevice;

// Throws Error if code asks for a tensor on another one.
void check_device(int32_t type);

}  // namespace ec
