// The interface of the rest of the runtime to the OpenMP regions of compiled models.
#pragma once

namespace ec {

// Gives up the innermost OpenMP region that the calling thread is in: the thread leaves it here,
// the region's other members leave it at their next barrier, and the thread that started it goes
// on behind it with a pending failure (status.h). Returns only if the thread is in no region.
// Nothing can be thrown out of a region (the compiler makes that std::terminate), so this jumps;
// what the abandoned frames own is leaked.
void abandon_region(const char* message);

}  // namespace ec
