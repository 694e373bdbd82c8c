// Built with -mavx2; see core/CMakeLists.txt.
#include "optimizer/kernels_body.h"

namespace sparsefleet {

const RowKernels& Avx2Kernels() { return kKernels; }

}  // namespace sparsefleet
