// Built with AVX-512 F, BW, DQ and VL; see core/CMakeLists.txt.
#include "table/codec_kernels_body.h"

namespace sparsefleet {

const CodecKernels& Avx512CodecKernels() { return kKernels; }

}  // namespace sparsefleet
