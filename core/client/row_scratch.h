// Temporary memory of pulls and pushes, reused across calls.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "client/key_partition.h"
#include "merge/unique.h"
#include "sync/mutex.h"
#include "transport/bf16.h"

namespace sparsefleet {

// For one section of a pull or push.
struct SectionScratch {
  KeyPartition partition;
  UniqueKeys unique;
  std::vector<float> summed;       // rows of the unique keys
  std::vector<float> partitioned;  // rows server by server
  std::vector<Bf16> narrow;        // values in 16 bits, server by server
};

struct RowScratch {
  std::vector<SectionScratch> sections;
};

// `size` numbers at the front of `room`, which only grows, so that it is not cleared every time.
template <typename T>
std::span<T> Room(std::vector<T>& room, std::size_t size) {
  if (room.size() < size) room.resize(size);
  return std::span(room).first(size);
}

// One per concurrent call rather than per thread: threads come and go.
// Thread-safe.
class ScratchPool {
 public:
  // Returned to the pool on destruction.
  class Lease {
   public:
    Lease(ScratchPool& pool, std::unique_ptr<RowScratch> scratch)
        : pool_(pool), scratch_(std::move(scratch)) {}
    Lease(const Lease&) = delete;
    ~Lease() {
      MutexLock lock(pool_.mutex_);
      pool_.idle_.push_back(std::move(scratch_));
    }
    SectionScratch& section(std::size_t i) { return scratch_->sections[i]; }

   private:
    ScratchPool& pool_;
    std::unique_ptr<RowScratch> scratch_;
  };

  Lease Take(std::size_t num_sections) {
    std::unique_ptr<RowScratch> scratch;
    {
      MutexLock lock(mutex_);
      if (!idle_.empty()) {
        scratch = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (!scratch) scratch = std::make_unique<RowScratch>();
    if (scratch->sections.size() < num_sections) scratch->sections.resize(num_sections);
    return Lease(*this, std::move(scratch));
  }

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<RowScratch>> idle_ GUARDED_BY(mutex_);
};

}  // namespace sparsefleet
