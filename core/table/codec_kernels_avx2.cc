// Built with -mavx2; see core/CMakeLists.txt.
#include "table/codec_kernels_body.h"

namespace sparsefleet {

const CodecKernels& Avx2CodecKernels() { return kKernels; }

}  // namespace sparsefleet
