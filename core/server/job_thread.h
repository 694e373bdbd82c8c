// One thread for work that takes long, so that it does not hold up requests. Header only.
#pragma once

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

  // Ends the thread after the job under way; jobs not begun are dropped.
  void Stop() {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (more_.wait(lock, stop, [&] { return !jobs_.empty(); }) && !stop.stop_requested()) {
      auto job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      job = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any more_;
  std::deque<std::function<void()>> jobs_;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace sparsefleet
