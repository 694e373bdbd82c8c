#include "table/codec_kernels_body.h"

namespace sparsefleet {

const CodecKernels& BaselineCodecKernels() { return kKernels; }

}  // namespace sparsefleet
