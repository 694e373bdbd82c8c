#include "store/process_memory.h"

#ifdef __GLIBC__
#include <malloc.h>

#include <climits>
#endif

namespace sparsefleet {

void KeepFreedMemory() {
#ifdef __GLIBC__
  constexpr int kLargestBlock = 32 << 20;  // glibc takes no larger value for this setting
  mallopt(M_MMAP_THRESHOLD, kLargestBlock);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
}

}  // namespace sparsefleet
