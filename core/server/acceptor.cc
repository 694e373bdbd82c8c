#include "server/acceptor.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace sparsefleet {
namespace {

constexpr int kAcceptsPerTurn = 64;

}  // namespace

Status Acceptor::Listen(OwnedSocket listening) {
  std::lock_guard lock(mutex_);
  socket_ = std::move(listening);
  if (Status s = poller_.Add(socket_.fd(), token_); !s.ok()) return s;
  poller_.Arm(socket_.fd(), token_, true, false);
  return Status::Ok();
}

Status Acceptor::AcceptSome(const OnSocket& on_socket) {
  std::lock_guard lock(mutex_);
  if (socket_.fd() < 0) return Status::Ok();
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    OwnedSocket accepted(::accept(socket_.fd(), reinterpret_cast<sockaddr*>(&address), &length));
    if (accepted.fd() >= 0) {
      on_socket(std::move(accepted), AddressText(address));
      continue;
    }
    const int error = errno;
    if (error == EAGAIN || error == EWOULDBLOCK) break;
    // Errors of the one connection that just ended, see accept(2).
    if (error == EINTR || error == ECONNABORTED || error == EPROTO || error == EPERM) continue;
    return {Code::kIo, "cannot accept connections: " + ErrnoText(error)};
  }
  poller_.Arm(socket_.fd(), token_, true, false);
  return Status::Ok();
}

void Acceptor::Resume() {
  std::lock_guard lock(mutex_);
  if (socket_.fd() >= 0) poller_.Arm(socket_.fd(), token_, true, false);
}

void Acceptor::Close() {
  std::lock_guard lock(mutex_);
  if (socket_.fd() < 0) return;
  poller_.Remove(socket_.fd());
  socket_ = OwnedSocket();
}

}  // namespace sparsefleet
