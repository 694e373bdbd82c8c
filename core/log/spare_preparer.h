// Prepares the next segment of a log in the background, so that records find its pages in memory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stop_token>
#include <thread>

#include "log/log_directory.h"

namespace sparsefleet {

// A record written to new pages costs about twice as much as one that overwrites them, and many
// times as much on a virtual machine whose host must find the memory first. A separate thread
// therefore writes a spare before it is needed; it runs only while a core is idle, where the
// system can do that. Thread-safe.
class SparePreparer {
 public:
  // Spares have `bytes` bytes. `directory` must outlive this object.
  SparePreparer(const LogDirectory& directory, std::uint64_t owner, std::uint64_t bytes);
  ~SparePreparer();  // abandons a spare that is being written

  // Asks for a spare, unless there is one. Returns at once. If it cannot be written, such as on a
  // full disk, there is none.
  void Request();

 private:
  void Work(const std::stop_token& stop);

  const LogDirectory& directory_;
  const std::uint64_t owner_;
  const std::uint64_t bytes_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool is_requested_ = false;  // guarded by mutex_
  std::jthread thread_;        // last: it uses the members above
};

}  // namespace sparsefleet
