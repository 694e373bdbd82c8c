#include "pairs/window_step_body.h"

namespace sparsefleet {

void WindowStepAvx2(const WindowRows& rows) { Step(rows); }

}  // namespace sparsefleet
