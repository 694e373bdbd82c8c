#include <fcntl.h>
#include <sys/event.h>
#include <unistd.h>

#include <cerrno>

#include "server/poller.h"
#include "transport/socket.h"

namespace sparsefleet {
namespace {

constexpr std::uint64_t kStopToken = UINT64_MAX;

struct kevent Change(int fd, std::int16_t filter, std::uint16_t flags, std::uint64_t token) {
  struct kevent change{};
  EV_SET(&change, static_cast<uintptr_t>(fd), filter, flags, 0, 0,
         reinterpret_cast<void*>(static_cast<uintptr_t>(token)));
  return change;
}

}  // namespace

struct Poller::Impl {
  OwnedSocket queue;
  OwnedSocket stop_read;
  OwnedSocket stop_write;
};

Poller::Poller(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Poller::~Poller() = default;

Result<std::unique_ptr<Poller>> Poller::Create() {
  auto impl = std::make_unique<Impl>();
  impl->queue = OwnedSocket(::kqueue());
  if (impl->queue.fd() < 0) return Status(Code::kIo, "kqueue: " + ErrnoText(errno));
  int ends[2] = {-1, -1};
  if (::pipe(ends) != 0) return Status(Code::kIo, "pipe: " + ErrnoText(errno));
  impl->stop_read = OwnedSocket(ends[0]);
  impl->stop_write = OwnedSocket(ends[1]);
  for (const int fd : {impl->queue.fd(), ends[0], ends[1]}) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  // Level-triggered and never read: the byte wakes every thread.
  const auto change = Change(ends[0], EVFILT_READ, EV_ADD, kStopToken);
  if (::kevent(impl->queue.fd(), &change, 1, nullptr, 0, nullptr) != 0) {
    return Status(Code::kIo, "kevent: " + ErrnoText(errno));
  }
  return std::unique_ptr<Poller>(new Poller(std::move(impl)));
}

Status Poller::Add(int fd, std::uint64_t token) {
  const struct kevent changes[2] = {
      Change(fd, EVFILT_READ, EV_ADD | EV_DISPATCH | EV_DISABLE, token),
      Change(fd, EVFILT_WRITE, EV_ADD | EV_DISPATCH | EV_DISABLE, token)};
  // A listening socket has no write filter on some systems; the read filter is what counts.
  if (::kevent(impl_->queue.fd(), &changes[0], 1, nullptr, 0, nullptr) != 0) {
    return {Code::kIo, "kevent: " + ErrnoText(errno)};
  }
  ::kevent(impl_->queue.fd(), &changes[1], 1, nullptr, 0, nullptr);
  return Status::Ok();
}

void Poller::Arm(int fd, std::uint64_t token, bool read, bool write) {
  const auto change = [&](std::int16_t filter, bool wanted) {
    const std::uint16_t flags =
        static_cast<std::uint16_t>(EV_DISPATCH | (wanted ? EV_ENABLE : EV_DISABLE));
    const auto entry = Change(fd, filter, flags, token);
    ::kevent(impl_->queue.fd(), &entry, 1, nullptr, 0, nullptr);
  };
  change(EVFILT_READ, read);
  change(EVFILT_WRITE, write);
}

void Poller::Remove(int fd) {
  for (const std::int16_t filter : {EVFILT_READ, EVFILT_WRITE}) {
    const auto entry = Change(fd, filter, EV_DELETE, 0);
    ::kevent(impl_->queue.fd(), &entry, 1, nullptr, 0, nullptr);
  }
}

std::optional<std::uint64_t> Poller::Wait() {
  for (;;) {
    struct kevent event{};
    const int count = ::kevent(impl_->queue.fd(), nullptr, 0, &event, 1, nullptr);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::nullopt;
    const auto token = static_cast<std::uint64_t>(reinterpret_cast<uintptr_t>(event.udata));
    if (token == kStopToken) return std::nullopt;
    if (count == 1) return token;
  }
}

void Poller::Stop() {
  const char byte = 0;
  // A full pipe wakes the threads just as well.
  if (::write(impl_->stop_write.fd(), &byte, 1) < 0) return;
}

}  // namespace sparsefleet
