// One thread for work that takes long, so that it does not hold up requests. Header only.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace sparsefleet {

// Thread-safe. Jobs run one after another, in the order given.
class JobThread {
 public:
  JobThread() : thread_([this](const std::stop_token& stop) { Work(stop); }) {}
  ~JobThread() { Stop(); }

  void Run(std::function<void()> job) {
    {
      std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    more_.notify_one();
  }

  // True when no job is left, false if some are at the deadline.
  bool AwaitIdle(std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    return idle_.wait_until(lock, deadline, [&] { return jobs_.empty() && !busy_; });
  }

  // Ends the thread after all jobs given so far: someone waits for the answer of each. Jobs that
  // take long are to be told by other means to be quick.
  void Stop() {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (more_.wait(lock, stop, [&] { return !jobs_.empty(); })) {
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

  std::mutex mutex_;
  std::condition_variable_any more_;
  std::condition_variable idle_;
  bool busy_ = false;
  std::deque<std::function<void()>> jobs_;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace sparsefleet
