#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cerrno>

#include "server/poller.h"
#include "transport/socket.h"

namespace sparsefleet {
namespace {

constexpr std::uint64_t kStopToken = UINT64_MAX;

}  // namespace

struct Poller::Impl {
  OwnedSocket epoll;
  OwnedSocket stop_event;
};

Poller::Poller(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Poller::~Poller() = default;

Result<std::unique_ptr<Poller>> Poller::Create() {
  auto impl = std::make_unique<Impl>();
  impl->epoll = OwnedSocket(::epoll_create1(EPOLL_CLOEXEC));
  if (impl->epoll.fd() < 0) return Status(Code::kIo, "epoll_create1: " + ErrnoText(errno));
  impl->stop_event = OwnedSocket(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (impl->stop_event.fd() < 0) return Status(Code::kIo, "eventfd: " + ErrnoText(errno));
  epoll_event event{};
  event.events = EPOLLIN;  // level-triggered and never read: it wakes every thread
  event.data.u64 = kStopToken;
  if (::epoll_ctl(impl->epoll.fd(), EPOLL_CTL_ADD, impl->stop_event.fd(), &event) != 0) {
    return Status(Code::kIo, "epoll_ctl: " + ErrnoText(errno));
  }
  return std::unique_ptr<Poller>(new Poller(std::move(impl)));
}

Status Poller::Add(int fd, std::uint64_t token) {
  epoll_event event{};
  event.events = EPOLLONESHOT;
  event.data.u64 = token;
  if (::epoll_ctl(impl_->epoll.fd(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return {Code::kIo, "epoll_ctl: " + ErrnoText(errno)};
  }
  return Status::Ok();
}

void Poller::Arm(int fd, std::uint64_t token, bool read, bool write) {
  epoll_event event{};
  event.events = EPOLLONESHOT | (read ? EPOLLIN | EPOLLRDHUP : 0u) | (write ? EPOLLOUT : 0u);
  event.data.u64 = token;
  ::epoll_ctl(impl_->epoll.fd(), EPOLL_CTL_MOD, fd, &event);
}

void Poller::Remove(int fd) { ::epoll_ctl(impl_->epoll.fd(), EPOLL_CTL_DEL, fd, nullptr); }

std::optional<std::uint64_t> Poller::Wait() {
  for (;;) {
    // One event at a time: a second would wait until the first is handled.
    epoll_event event{};
    const int count = ::epoll_wait(impl_->epoll.fd(), &event, 1, -1);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 || event.data.u64 == kStopToken) return std::nullopt;
    const std::uint64_t token = event.data.u64;  // a copy: the struct is packed
    if (count == 1) return token;
  }
}

void Poller::Stop() { ::eventfd_write(impl_->stop_event.fd(), 1); }

}  // namespace sparsefleet
