// Tunes how this process reuses the memory it frees.
#pragma once

namespace sparsefleet {

// A training step frees buffers of megabytes and allocates the same ones again in the next. By
// default the C library returns such memory to the system in between, which costs a page fault for
// every 4 KiB; after this call it keeps the memory. Threads share few arenas, unless several of
// them train: those allocate in every step, and would wait for each other's use of an arena. glibc
// reads the number of arenas when a second thread first allocates. Does nothing where the C library
// is not glibc. Thread-safe.
void KeepFreedMemory(int training_threads);

}  // namespace sparsefleet
