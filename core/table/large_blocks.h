// Memory for the rows and indexes of all tables in the process, in huge pages where the system has
// them (Linux with transparent huge pages, even if only with madvise).
//
// A batch reads rows at random places in a table. With pages of 4 kB, nearly every read misses the
// processor's TLB as well as its data caches. Blocks are therefore cut from large regions instead
// of malloc's heap. Memory of whole free huge pages goes back to the system.
// Thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace sparsefleet {

// Aligned to 64 bytes; content is unspecified. Throws std::bad_alloc. Small blocks, and all blocks
// under AddressSanitizer, come from operator new.
void* AllocateLarge(std::size_t bytes);
// `bytes` as it was allocated.
void FreeLarge(void* block, std::size_t bytes) noexcept;

// For standard containers.
template <typename T>
struct LargeAllocator {
  using value_type = T;
  LargeAllocator() = default;
  template <typename U>
  LargeAllocator(const LargeAllocator<U>&) {}  // NOLINT: containers convert it
  T* allocate(std::size_t count) { return static_cast<T*>(AllocateLarge(count * sizeof(T))); }
  void deallocate(T* block, std::size_t count) noexcept { FreeLarge(block, count * sizeof(T)); }
  bool operator==(const LargeAllocator&) const = default;
};

struct FreeLargeBlock {
  std::size_t bytes = 0;
  void operator()(std::byte* block) const noexcept { FreeLarge(block, bytes); }
};
using LargeBlock = std::unique_ptr<std::byte[], FreeLargeBlock>;

inline LargeBlock MakeLargeBlock(std::size_t bytes) {
  return LargeBlock(static_cast<std::byte*>(AllocateLarge(bytes)), FreeLargeBlock{bytes});
}

// What AllocateLarge() has in use and what it holds, in bytes, small blocks excluded.
struct LargeBlockStats {
  std::size_t used = 0;
  std::size_t mapped = 0;
};
LargeBlockStats LargeBlocksInUse();

}  // namespace sparsefleet
