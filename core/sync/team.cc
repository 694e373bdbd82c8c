#include "sync/team.h"

#include <algorithm>
#include <system_error>

namespace sparsefleet {
namespace {

// How often a thread looks for a new job before it sleeps. Jobs follow one another within
// microseconds while a log is replayed, and waking a thread takes longer than most of them.
constexpr int kLooks = 2000;

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void Team::Job::TakePart() noexcept {
  std::size_t finished = 0;
  for (std::size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
    work(i);
    ++finished;
  }
  if (finished > 0 && done.fetch_add(finished) + finished == count) done.notify_all();
}

Team::Team() : Team(std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads)) {}

Team::Team(unsigned num_threads) {
  threads_.reserve(num_threads);
  try {
    for (unsigned i = 1; i < num_threads; ++i) threads_.emplace_back([this] { Work(); });
  } catch (const std::system_error&) {
    // The threads that there are, and the caller of Run(), do the work.
  }
}

Team::~Team() {
  MutexLock lock(mutex_);
  is_over_ = true;
  changed_.notify_all();
}

void Team::Run(std::size_t count, const std::function<void(std::size_t)>& work) {
  if (threads_.empty() || count < 2) {
    for (std::size_t i = 0; i < count; ++i) work(i);
    return;
  }
  // Kept by threads that are late, which find nothing left to do.
  const std::shared_ptr<Job> job(new Job{work, count});
  {
    MutexLock lock(mutex_);
    job_ = job;
    num_jobs_.fetch_add(1);
    changed_.notify_all();
  }
  job->TakePart();
  for (std::size_t done = job->done; done < count; done = job->done) job->done.wait(done);
}

void Team::Work() {
  std::uint64_t seen = 0;
  for (;;) {
    for (int i = 0; i < kLooks && num_jobs_.load() == seen && !is_over_; ++i) Relax();
    std::shared_ptr<Job> job;
    {
      MutexLock lock(mutex_);
      changed_.Wait(mutex_,
                    [&]() REQUIRES(mutex_) { return is_over_ || num_jobs_.load() != seen; });
      if (is_over_) return;
      seen = num_jobs_.load();
      job = job_;
    }
    job->TakePart();
  }
}

}  // namespace sparsefleet
