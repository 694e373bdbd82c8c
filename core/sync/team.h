// Threads that divide work among them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "sync/mutex.h"

namespace sparsefleet {

// Run() is for one thread at a time.
class Team {
 public:
  // One thread per core, up to kMostThreads.
  static constexpr unsigned kMostThreads = 8;
  Team();
  // `num_threads` includes the caller of Run(): with 1, it does everything itself. If the system
  // refuses threads, there are fewer.
  explicit Team(unsigned num_threads);
  ~Team();

  // Calls work(i) once for each i < count, on any of the threads, and returns when all calls have.
  // It waits for no thread that is late: the others, of which the caller is one, take over.
  // `work` must not throw.
  void Run(std::size_t count, const std::function<void(std::size_t)>& work);

 private:
  struct Job {
    const std::function<void(std::size_t)>& work;
    const std::size_t count;
    std::atomic<std::size_t> next{0};
    std::atomic<std::size_t> done{0};
    void TakePart() noexcept;
  };
  void Work();

  Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<Job> job_ GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> num_jobs_{0};
  std::atomic<bool> is_over_{false};
  std::vector<std::jthread> threads_;  // last: they use the others
};

}  // namespace sparsefleet
