// Short tasks that the pool's threads share, such as the replies that one request has made
// possible.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "server/poller.h"
#include "status/status.h"
#include "sync/mutex.h"
#include "transport/socket.h"

namespace sparsefleet {

// Thread-safe. Tasks must not throw, and must not wait for one another.
class TaskQueue {
 public:
  // `token`: how the poller reports that there are tasks; the thread that gets it calls Help().
  TaskQueue(Poller& poller, std::uint64_t token) : poller_(poller), token_(token) {}
  ~TaskQueue();

  // Lets the poller's threads help. Without it, callers run all tasks themselves.
  Status Open();

  // Runs the tasks, in this thread and in those that help. Returns when none is left to start, so
  // that none is lost if the pool stops; others may still be running.
  void Run(std::vector<std::function<void()>> tasks);
  // Runs tasks until none is left.
  void Help();

 private:
  std::function<void()> Next();  // empty: none is left
  // Asks one more thread for help, or stops asking.
  void Signal(bool on) REQUIRES(mutex_);

  Poller& poller_;
  const std::uint64_t token_;
  OwnedSocket receiver_;  // readable while threads are asked to help
  OwnedSocket sender_;
  Mutex mutex_;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  bool is_signaled_ GUARDED_BY(mutex_) = false;
};

}  // namespace sparsefleet
