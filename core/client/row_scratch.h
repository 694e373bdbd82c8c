// Memory that pulls and pushes need for a moment, kept from call to call.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "client/dealing.h"
#include "merge/unique.h"

namespace sparsefleet {

// For one section of a pull or push.
struct SectionScratch {
  KeyDeal deal;
  UniqueKeys unique;
  std::vector<float> summed;  // rows of the unique keys
  std::vector<float> dealt;   // rows server by server
};

struct RowScratch {
  std::vector<SectionScratch> sections;
};

// `size` floats at the front of `room`, which only ever grows: no clearing again and again.
inline std::span<float> Room(std::vector<float>& room, std::size_t size) {
  if (room.size() < size) room.resize(size);
  return std::span(room).first(size);
}

// As many as calls run at once, not one a thread: threads come and go.
// Thread-safe.
class ScratchPool {
 public:
  // Given back when it goes.
  class Lease {
   public:
    Lease(ScratchPool& pool, std::unique_ptr<RowScratch> scratch)
        : pool_(pool), scratch_(std::move(scratch)) {}
    Lease(const Lease&) = delete;
    ~Lease() {
      std::lock_guard lock(pool_.mutex_);
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
      std::lock_guard lock(mutex_);
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
  std::mutex mutex_;
  std::vector<std::unique_ptr<RowScratch>> idle_;
};

}  // namespace sparsefleet
