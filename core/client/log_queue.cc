#include "client/log_queue.h"

#include <system_error>

#include "sync/mutex.h"

namespace sparsefleet {

Result<std::unique_ptr<LogQueue>> LogQueue::Start(Function log) {
  std::unique_ptr<LogQueue> made(new LogQueue(std::move(log)));
  if (!made->log_) return made;
  try {
    made->thread_ = std::thread([self = made.get()] { self->Run(); });
  } catch (const std::system_error& error) {
    return Status(Code::kIo, std::string("cannot start the log thread: ") + error.what());
  }
  return made;
}

LogQueue::~LogQueue() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void LogQueue::Add(int severity, std::string message) {
  if (!log_) return;
  {
    MutexLock lock(mutex_);
    lines_.emplace_back(severity, std::move(message));
    if (lines_.size() > kMaxLines) {
      lines_.pop_front();
      ++num_dropped_;
    }
  }
  changed_.notify_all();
}

void LogQueue::Run() {
  MutexLock lock(mutex_);
  for (;;) {
    changed_.Wait(mutex_, [&]() REQUIRES(mutex_) { return stopping_ || !lines_.empty(); });
    if (lines_.empty()) return;
    const auto [severity, message] = std::move(lines_.front());
    lines_.pop_front();
    const std::size_t dropped = std::exchange(num_dropped_, 0);
    lock.unlock();
    if (dropped > 0) log_(1, std::to_string(dropped) + " log lines were dropped");
    log_(severity, message);
    lock.lock();
  }
}

}  // namespace sparsefleet
