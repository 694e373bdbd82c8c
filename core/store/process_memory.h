// How this process deals with the memory it frees.
#pragma once

namespace sparsefleet {

// A training step frees buffers of megabytes and takes the same ones again in the next. The C
// library gives such memory back to the system in between, which costs a page fault for every 4
// KiB; after this call it keeps it, and new threads share arenas. Does nothing where the C library
// is not glibc. Thread-safe.
void KeepFreedMemory();

}  // namespace sparsefleet
