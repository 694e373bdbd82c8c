#include "server/task_queue.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <utility>

namespace sparsefleet {

TaskQueue::~TaskQueue() {
  if (receiver_.fd() >= 0) poller_.Remove(receiver_.fd());
}

Status TaskQueue::Open() {
  int ends[2];
  if (::pipe(ends) != 0) return {Code::kIo, "pipe: " + ErrnoText(errno)};
  receiver_ = OwnedSocket(ends[0]);
  sender_ = OwnedSocket(ends[1]);
  for (const int fd : ends) {
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    ::fcntl(fd, F_SETFL, O_NONBLOCK);
  }
  if (Status s = poller_.Add(receiver_.fd(), token_); !s.ok()) return s;
  poller_.Arm(receiver_.fd(), token_, true, false);
  return Status::Ok();
}

void TaskQueue::Signal(bool on) {
  if (on == is_signaled_ || sender_.fd() < 0) return;
  is_signaled_ = on;
  // One byte at most is in the pipe, so neither blocks.
  char byte = 0;
  const auto done = on ? ::write(sender_.fd(), &byte, 1) : ::read(receiver_.fd(), &byte, 1);
  if (done != 1) is_signaled_ = false;  // this thread does the work
}

std::function<void()> TaskQueue::Next() {
  MutexLock lock(mutex_);
  if (tasks_.empty()) return {};
  auto task = std::move(tasks_.front());
  tasks_.pop_front();
  if (tasks_.empty()) Signal(false);
  return task;
}

void TaskQueue::Run(std::vector<std::function<void()>> tasks) {
  {
    MutexLock lock(mutex_);
    tasks_.insert(tasks_.end(), std::move_iterator(tasks.begin()), std::move_iterator(tasks.end()));
    Signal(tasks_.size() > 1);
  }
  while (const auto task = Next()) task();
}

void TaskQueue::Help() {
  // Before the work: while tasks are left, one more thread is asked.
  poller_.Arm(receiver_.fd(), token_, true, false);
  while (const auto task = Next()) task();
}

}  // namespace sparsefleet
