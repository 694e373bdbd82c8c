#include "log/spare_preparer.h"

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace sparsefleet {
namespace {

// A log that is synced must not have such a thread: a sync may wait for a write that it has begun.
void RunOnlyWhenIdle() {
#if defined(__linux__)
  const sched_param parameters{};
  (void)::pthread_setschedparam(::pthread_self(), SCHED_IDLE, &parameters);
#endif
}

}  // namespace

SparePreparer::SparePreparer(const LogDirectory& directory, std::uint64_t owner,
                             std::uint64_t bytes)
    : directory_(directory),
      owner_(owner),
      bytes_(bytes),
      thread_([this](const std::stop_token& stop) { Work(stop); }) {}

SparePreparer::~SparePreparer() {
  thread_.request_stop();
  thread_.join();
}

void SparePreparer::Request() {
  {
    std::lock_guard lock(mutex_);
    is_requested_ = true;
  }
  changed_.notify_one();
}

void SparePreparer::Work(const std::stop_token& stop) {
  RunOnlyWhenIdle();
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [&] { return is_requested_; })) {
    is_requested_ = false;
    lock.unlock();
    (void)directory_.PrepareSpare(owner_, bytes_, [&] { return stop.stop_requested(); });
    lock.lock();
  }
}

}  // namespace sparsefleet
