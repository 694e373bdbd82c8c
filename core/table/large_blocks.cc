#include "table/large_blocks.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

#include "sync/mutex.h"

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
#define SPARSEFLEET_LARGE_BLOCKS
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#undef SPARSEFLEET_LARGE_BLOCKS  // it finds errors at the ends of blocks that are malloc's
#endif
#endif
#endif

#ifdef SPARSEFLEET_LARGE_BLOCKS
#include <pthread.h>
#include <sys/mman.h>
#endif

namespace sparsefleet {
namespace {

constexpr std::align_val_t kAlignment{64};

#ifdef SPARSEFLEET_LARGE_BLOCKS

constexpr std::size_t kSmallestBlock = 32 << 10;
constexpr std::size_t kPage = 4 << 10;
constexpr std::size_t kHugePage = 2 << 20;
constexpr std::size_t kRegion = 64 << 20;

constexpr std::size_t RoundUp(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Free space is listed by address: the lowest is used first, so that the rest can go back to the
// system. Regions of address space are not joined, even if they happen to be neighbors.
class Regions {
 public:
  void* Allocate(std::size_t bytes) {
    bytes = RoundUp(bytes, kPage);
    const MutexLock lock(mutex_);
    for (auto free = free_.begin(); free != free_.end(); ++free) {
      if (free->second >= bytes) return Take(free, bytes);
    }
    try {
      return Take(Map(RoundUp(bytes, kRegion)), bytes);
    } catch (const std::bad_alloc&) {  // a limit is near
      return Take(Map(RoundUp(bytes, kHugePage)), bytes);
    }
  }

  void Free(void* block, std::size_t bytes) noexcept {
    bytes = RoundUp(bytes, kPage);
    const auto at = reinterpret_cast<std::uintptr_t>(block);
    const MutexLock lock(mutex_);
    used_ -= bytes;
    const auto region = std::prev(regions_.upper_bound(at));
    try {
      const auto [begin, size] = *Join(at, bytes, *region);
      if (size == region->second) {
        Unmap(region);
      } else {
        Release(std::max(begin, at / kHugePage * kHugePage),
                std::min(begin + size, RoundUp(at + bytes, kHugePage)));
      }
    } catch (const std::bad_alloc&) {
      // No memory to list it: the block stays unused.
    }
  }

  // Around a fork, so that the child does not inherit the mutex from a thread that it lacks.
  void BeforeFork() NO_THREAD_SAFETY_ANALYSIS { mutex_.lock(); }
  void AfterFork() NO_THREAD_SAFETY_ANALYSIS { mutex_.unlock(); }

  LargeBlockStats Stats() {
    const MutexLock lock(mutex_);
    return {used_, mapped_};
  }

 private:
  using Extents = std::map<std::uintptr_t, std::size_t>;  // begin -> size

  void* Take(Extents::iterator free, std::size_t bytes) REQUIRES(mutex_) {
    const auto [begin, size] = *free;
    if (size > bytes) {  // from the end: the begin, and with it the node, stays
      free->second = size - bytes;
    } else {
      free_.erase(free);
    }
    used_ += bytes;
    return reinterpret_cast<void*>(begin + size - bytes);
  }

  // Adds a region and returns it as free space.
  Extents::iterator Map(std::size_t bytes) REQUIRES(mutex_) {
    const std::size_t reserved = bytes + kHugePage;  // to align it
    void* found = mmap(nullptr, reserved, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) throw std::bad_alloc();
    const auto start = reinterpret_cast<std::uintptr_t>(found);
    const std::uintptr_t begin = RoundUp(start, kHugePage);
    if (begin > start) munmap(found, begin - start);
    const std::uintptr_t unused = start + reserved - begin - bytes;
    if (unused > 0) munmap(reinterpret_cast<void*>(begin + bytes), unused);
    void* region = reinterpret_cast<void*>(begin);
    (void)madvise(region, bytes, MADV_HUGEPAGE);  // without huge pages it is memory like any other
    try {
      regions_.emplace(begin, bytes);
      mapped_ += bytes;
      return free_.emplace(begin, bytes).first;
    } catch (...) {
      munmap(region, bytes);
      if (regions_.erase(begin) > 0) mapped_ -= bytes;
      throw;
    }
  }

  void Unmap(Extents::iterator region) noexcept REQUIRES(mutex_) {
    const auto [begin, size] = *region;
    if (munmap(reinterpret_cast<void*>(begin), size) != 0) {  // too many mappings: keep it as free
      Release(begin, begin + size);
      return;
    }
    mapped_ -= size;
    free_.erase(begin);
    regions_.erase(region);
  }

  // Lists free space, joined with its free neighbors in the region; returns the whole.
  Extents::iterator Join(std::uintptr_t at, std::size_t bytes, const Extents::value_type& region)
      REQUIRES(mutex_) {
    const auto after = free_.lower_bound(at);
    const bool joins_after = after != free_.end() && after->first == at + bytes &&
                             at + bytes < region.first + region.second;
    if (after != free_.begin() && at > region.first) {
      const auto before = std::prev(after);
      if (before->first + before->second == at) {
        before->second += bytes;
        if (joins_after) {
          before->second += after->second;
          free_.erase(after);
        }
        return before;
      }
    }
    if (!joins_after) return free_.emplace_hint(after, at, bytes);
    auto node = free_.extract(after);
    node.key() = at;
    node.mapped() += bytes;
    return free_.insert(std::move(node)).position;
  }

  // Returns the memory of whole huge pages in the free range [begin, end) to the system.
  static void Release(std::uintptr_t begin, std::uintptr_t end) noexcept {
    begin = RoundUp(begin, kHugePage);
    end = end / kHugePage * kHugePage;
    if (begin < end) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }

  Mutex mutex_;
  Extents regions_ GUARDED_BY(mutex_);
  Extents free_ GUARDED_BY(mutex_);
  std::size_t used_ GUARDED_BY(mutex_) = 0;
  std::size_t mapped_ GUARDED_BY(mutex_) = 0;
};

// Never destroyed: tables may outlive it.
Regions& TheRegions() {
  static Regions* const regions = [] {
    static auto* made = new Regions();
    pthread_atfork([] { made->BeforeFork(); }, [] { made->AfterFork(); },
                   [] { made->AfterFork(); });
    return made;
  }();
  return *regions;
}

bool IsLarge(std::size_t bytes) { return bytes >= kSmallestBlock; }

#endif

}  // namespace

#ifdef SPARSEFLEET_LARGE_BLOCKS

void* AllocateLarge(std::size_t bytes) {
  return IsLarge(bytes) ? TheRegions().Allocate(bytes) : ::operator new(bytes, kAlignment);
}

void FreeLarge(void* block, std::size_t bytes) noexcept {
  if (block == nullptr) return;
  if (IsLarge(bytes)) {
    TheRegions().Free(block, bytes);
  } else {
    ::operator delete(block, kAlignment);
  }
}

LargeBlockStats LargeBlocksInUse() { return TheRegions().Stats(); }

#else

void* AllocateLarge(std::size_t bytes) { return ::operator new(bytes, kAlignment); }

void FreeLarge(void* block, std::size_t) noexcept { ::operator delete(block, kAlignment); }

LargeBlockStats LargeBlocksInUse() { return {}; }

#endif

}  // namespace sparsefleet
