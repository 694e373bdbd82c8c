#include "server/row_loader.h"

#include <algorithm>
#include <utility>

namespace sparsefleet {
namespace {

constexpr unsigned kMostThreads = 8;
constexpr std::size_t kPartsPerThread = 4;  // that wait

}  // namespace

RowLoader::RowLoader() {
  const unsigned count = std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads);
  for (unsigned i = 0; i < count; ++i) threads_.emplace_back([this] { Work(); });
}

RowLoader::~RowLoader() {
  MutexLock lock(mutex_);
  is_over_ = true;
  parts_.clear();
  changed_.notify_all();
}

void RowLoader::Add(std::shared_ptr<SparseTable> table, std::span<const std::byte> rows) {
  MutexLock lock(mutex_);
  changed_.Wait(
      mutex_, [&]() REQUIRES(mutex_) { return parts_.size() < kPartsPerThread * threads_.size(); });
  parts_.push_back({std::move(table), rows});
  changed_.notify_all();
}

Status RowLoader::Drain() {
  MutexLock lock(mutex_);
  changed_.Wait(mutex_, [&]() REQUIRES(mutex_) { return parts_.empty() && num_running_ == 0; });
  return std::exchange(failure_, Status::Ok());
}

void RowLoader::Work() {
  MutexLock lock(mutex_);
  for (;;) {
    changed_.Wait(mutex_, [&]() REQUIRES(mutex_) { return is_over_ || !parts_.empty(); });
    if (parts_.empty()) return;
    const Part part = std::move(parts_.front());
    parts_.pop_front();
    ++num_running_;
    lock.unlock();
    Status status = part.table->RestoreRecords(part.rows);
    lock.lock();
    --num_running_;
    if (failure_.ok()) failure_ = std::move(status);
    changed_.notify_all();
  }
}

}  // namespace sparsefleet
