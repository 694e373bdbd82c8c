#include "log/group_commit.h"

#include <utility>
#include <vector>

namespace sparsefleet {

GroupCommit::GroupCommit(std::function<Result<std::uint64_t>()> sync,
                         std::function<void(const Status&)> on_failure)
    : sync_(std::move(sync)),
      on_failure_(std::move(on_failure)),
      thread_([this](const std::stop_token& stop) { Work(stop); }) {}

GroupCommit::~GroupCommit() { Stop(); }

void GroupCommit::Stop() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void GroupCommit::When(std::uint64_t end, std::function<void()> done) {
  {
    std::lock_guard lock(mutex_);
    if (has_failed_) return;
    if (end > durable_end_) {
      waiting_.emplace(end, std::move(done));
      changed_.notify_one();
      return;
    }
  }
  done();
}

std::uint64_t GroupCommit::durable_end() const {
  std::lock_guard lock(mutex_);
  return durable_end_;
}

std::size_t GroupCommit::num_waiting() const {
  std::lock_guard lock(mutex_);
  return waiting_.size();
}

void GroupCommit::Drain() {
  std::unique_lock lock(mutex_);
  drained_.wait(lock, [&] { return has_failed_ || (waiting_.empty() && !is_calling_); });
}

void GroupCommit::Work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [&] { return !waiting_.empty(); })) {
    lock.unlock();
    auto end = sync_();
    lock.lock();
    if (!end.ok()) {
      has_failed_ = true;
      waiting_.clear();
      drained_.notify_all();
      lock.unlock();
      return on_failure_(end.status());
    }
    durable_end_ = std::max(durable_end_, end.value());
    std::vector<std::function<void()>> due;
    const auto last = waiting_.upper_bound(durable_end_);
    for (auto it = waiting_.begin(); it != last; ++it) due.push_back(std::move(it->second));
    waiting_.erase(waiting_.begin(), last);
    is_calling_ = true;
    lock.unlock();
    for (auto& done : due) done();
    lock.lock();
    is_calling_ = false;
    if (waiting_.empty()) drained_.notify_all();
  }
}

}  // namespace sparsefleet
