#include "optimizer/kernels.h"

namespace sparsefleet {

#if defined(__x86_64__)

bool HasAvx2() { return __builtin_cpu_supports("avx2") != 0; }

const RowKernels& BestKernels() {
  static const RowKernels& best = HasAvx2() ? Avx2Kernels() : BaselineKernels();
  return best;
}

#else

bool HasAvx2() { return false; }
const RowKernels& BestKernels() { return BaselineKernels(); }

#endif

}  // namespace sparsefleet
