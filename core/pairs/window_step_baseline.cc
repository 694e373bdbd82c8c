#include "pairs/window_step_body.h"

namespace sparsefleet {

void WindowStepBaseline(const WindowRows& rows) { Step(rows); }

}  // namespace sparsefleet
