#include "store/process_memory.h"

#include <cstdlib>  // says whether the C library is glibc

#ifdef __GLIBC__
#include <malloc.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <thread>
#endif

namespace sparsefleet {

void KeepFreedMemory([[maybe_unused]] int training_threads) {
#ifdef __GLIBC__
  constexpr int kLargestBlock = 32 << 20;  // glibc takes no larger value for this setting
  // Threads with separate arenas would each keep memory that the others could use, and new threads
  // get other arenas than the ones before them. A thread that does not train allocates few blocks
  // that are large enough to need the arena's lock, so several can share one.
  constexpr std::int64_t kThreadsPerArena = 8;
  // With exactly one per training thread, two would often collide, because other threads take
  // arenas too.
  constexpr std::int64_t kArenasPerTrainingThread = 2;
  std::int64_t arenas =
      std::max<std::int64_t>(1, std::thread::hardware_concurrency() / kThreadsPerArena);
  if (training_threads > 1) {
    arenas = std::max(arenas, training_threads * kArenasPerTrainingThread);
  }
  mallopt(M_MMAP_THRESHOLD, kLargestBlock);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_ARENA_MAX, static_cast<int>(std::min<std::int64_t>(arenas, INT_MAX)));
#endif
}

}  // namespace sparsefleet
