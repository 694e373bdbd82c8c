// A thread for long work, so that it does not hold up requests. Header only.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "sync/mutex.h"

namespace sparsefleet {

// Thread-safe. Jobs run one at a time, in the order given.
class JobThread {
 public:
  JobThread() : thread_([this](const std::stop_token& stop) { Work(stop); }) {}
  ~JobThread() { Stop(); }

  void Run(std::function<void()> job) {
    {
      MutexLock lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    more_.notify_one();
  }

  // Returns true when no job is left, false if some are at the deadline.
  bool AwaitIdle(std::chrono::steady_clock::time_point deadline) {
    MutexLock lock(mutex_);
    return idle_.WaitUntil(mutex_, deadline,
                           [&]() REQUIRES(mutex_) { return jobs_.empty() && !busy_; });
  }

  // Ends the thread after all jobs given so far, since someone waits for the result of each. Long
  // jobs must be cancelled by other means.
  void Stop() {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Work(const std::stop_token& stop) {
    MutexLock lock(mutex_);
    while (more_.wait(lock, stop, [&]() REQUIRES(mutex_) { return !jobs_.empty(); })) {
      auto job = std::move(jobs_.front());
      jobs_.pop_front();
      busy_ = true;
      lock.unlock();
      job();
      job = nullptr;
      lock.lock();
      busy_ = false;
      if (jobs_.empty()) idle_.notify_all();
    }
  }

  Mutex mutex_;
  std::condition_variable_any more_;
  CondVar idle_;
  bool busy_ GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> jobs_ GUARDED_BY(mutex_);
  std::jthread thread_;  // last: it uses the members above
};

}  // namespace sparsefleet
