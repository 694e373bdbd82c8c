#include "optimizer/kernels_body.h"

namespace sparsefleet {

const RowKernels& BaselineKernels() { return kKernels; }

}  // namespace sparsefleet
