#include "store/process_memory.h"

#include <cstdlib>  // says whether the C library is glibc

#ifdef __GLIBC__
#include <malloc.h>

#include <algorithm>
#include <climits>
#include <thread>
#endif

namespace sparsefleet {

void KeepFreedMemory() {
#ifdef __GLIBC__
  constexpr int kLargestBlock = 32 << 20;  // glibc takes no larger value for this setting
  // Threads with arenas of their own would each keep what the others could use, and a pass of new
  // threads gets other arenas than the one before. In a step a thread takes some hundred blocks
  // that are large enough for the arena's lock, so that several can share one.
  constexpr unsigned kThreadsPerArena = 8;
  mallopt(M_MMAP_THRESHOLD, kLargestBlock);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_ARENA_MAX,
          static_cast<int>(std::max(1U, std::thread::hardware_concurrency() / kThreadsPerArena)));
#endif
}

}  // namespace sparsefleet
