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
  // Threads with separate arenas would each keep memory that the others could use, and new threads
  // get other arenas than the ones before them. A step allocates only a few hundred blocks per
  // thread that are large enough to need the arena's lock, so several threads can share one.
  constexpr unsigned kThreadsPerArena = 8;
  mallopt(M_MMAP_THRESHOLD, kLargestBlock);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_ARENA_MAX,
          static_cast<int>(std::max(1U, std::thread::hardware_concurrency() / kThreadsPerArena)));
#endif
}

}  // namespace sparsefleet
