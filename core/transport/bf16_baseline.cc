#include "optimizer/kernels.h"
#include "transport/bf16_body.h"

namespace sparsefleet {

const Bf16Kernels& BaselineBf16() { return kKernels; }

const Bf16Kernels& BestBf16() {
#if defined(__x86_64__)
  static const Bf16Kernels& best = HasAvx2() ? Avx2Bf16() : BaselineBf16();
  return best;
#else
  return BaselineBf16();
#endif
}

}  // namespace sparsefleet
