#include "server/acceptor.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace sparsefleet {
namespace {

constexpr int kAcceptsPerTurn = 64;

std::string AddressText(const sockaddr_storage& address) {
  char host[INET6_ADDRSTRLEN] = "?";
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &v4.sin_addr, host, sizeof(host));
    return Endpoint{host, ntohs(v4.sin_port)}.ToString();
  }
  if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof(host));
    return Endpoint{host, ntohs(v6.sin6_port)}.ToString();
  }
  return "an unnamed peer";
}

}  // namespace

Status Acceptor::Listen(const Endpoint& endpoint) {
  auto fd = sparsefleet::Listen(endpoint);
  if (!fd.ok()) return fd.status();
  std::lock_guard lock(mutex_);
  socket_ = OwnedSocket(fd.value());
  auto port = BoundPort(socket_.fd());
  if (!port.ok()) return port.status();
  port_ = port.value();
  if (Status s = poller_.Add(socket_.fd(), kToken); !s.ok()) return s;
  poller_.Arm(socket_.fd(), kToken, true, false);
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
  poller_.Arm(socket_.fd(), kToken, true, false);
  return Status::Ok();
}

void Acceptor::Resume() {
  std::lock_guard lock(mutex_);
  if (socket_.fd() >= 0) poller_.Arm(socket_.fd(), kToken, true, false);
}

void Acceptor::Close() {
  std::lock_guard lock(mutex_);
  if (socket_.fd() < 0) return;
  poller_.Remove(socket_.fd());
  socket_ = OwnedSocket();
}

}  // namespace sparsefleet
