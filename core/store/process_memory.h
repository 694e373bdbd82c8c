// Tunes how this process reuses the memory it frees.
#pragma once

namespace sparsefleet {

// A training step frees buffers of megabytes and allocates the same ones again in the next. By
// default the C library returns such memory to the system in between, which costs a page fault for
// every 4 KiB; after this call it keeps the memory, and threads share few arenas.
//
// `training_threads` train at the same time. With more than one, more arenas are allowed, so that
// they do not contend for a lock. glibc reads the limit only once, when a second thread first
// allocates; a later call cannot change it. Does nothing where the C library is not glibc.
// Thread-safe.
void KeepFreedMemory(int training_threads);

}  // namespace sparsefleet
