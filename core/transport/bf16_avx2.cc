// Built with -mavx2; see core/CMakeLists.txt.
#include "transport/bf16_body.h"

namespace sparsefleet {

const Bf16Kernels& Avx2Bf16() { return kKernels; }

}  // namespace sparsefleet
