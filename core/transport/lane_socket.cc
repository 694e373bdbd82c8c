#include "transport/lane_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "transport/key_proof.h"

namespace sparsefleet {
namespace {

#ifdef MSG_NOSIGNAL
constexpr int kSendFlags = MSG_NOSIGNAL;
#else
constexpr int kSendFlags = 0;  // PrepareSocket has set SO_NOSIGPIPE
#endif
#ifdef MSG_CMSG_CLOEXEC
constexpr int kReceiveFlags = MSG_CMSG_CLOEXEC;
#else
constexpr int kReceiveFlags = 0;
#endif

ResolvedEndpoint::Address AbstractAddress(const std::string& name) {
  ResolvedEndpoint::Address address;
  sockaddr_un unix_address{};
  unix_address.sun_family = AF_UNIX;
  // The zero byte before the name makes it abstract.
  const std::size_t length = std::min(name.size(), sizeof(unix_address.sun_path) - 1);
  std::memcpy(unix_address.sun_path + 1, name.data(), length);
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  std::memcpy(&address.bytes, &unix_address, sizeof(unix_address));
  return address;
}

}  // namespace

ResolvedEndpoint LaneAddress(const std::string& name, const Endpoint& endpoint) {
  return {endpoint, {AbstractAddress(name)}};
}

#ifdef __linux__

Result<LaneListener> ListenOnLane() {
  std::array<std::byte, 16> random;
  if (Status s = FillRandom(random); !s.ok()) return s;
  LaneListener listener;
  listener.name = "sparsefleet-";
  for (const std::byte byte : random) {
    constexpr char kDigits[] = "0123456789abcdef";
    listener.name += kDigits[static_cast<int>(byte) >> 4];
    listener.name += kDigits[static_cast<int>(byte) & 15];
  }
  listener.socket = OwnedSocket(::socket(AF_UNIX, SOCK_STREAM, 0));
  const auto address = AbstractAddress(listener.name);
  if (listener.socket.fd() < 0 || !PrepareSocket(listener.socket.fd()).ok() ||
      ::bind(listener.socket.fd(), reinterpret_cast<const sockaddr*>(&address.bytes),
             address.size) != 0 ||
      ::listen(listener.socket.fd(), 1024) != 0) {
    return Status(Code::kIo, "cannot listen on a Unix socket: " + ErrnoText(errno));
  }
  return listener;
}

Status CheckSameUser(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return {Code::kIo, "cannot read a socket's peer: " + ErrnoText(errno)};
  }
  if (peer.uid == ::geteuid()) return Status::Ok();
  return {Code::kAuthFailed, "the peer on this host runs as user " + std::to_string(peer.uid) +
                                 ", but this process runs as " + std::to_string(::geteuid())};
}

#else

Result<LaneListener> ListenOnLane() {
  return Status(Code::kIo, "this system has no abstract Unix sockets");
}

Status CheckSameUser(int) { return {Code::kIo, "this system has no abstract Unix sockets"}; }

#endif

Result<bool> SendWithDescriptor(int fd, std::span<const std::byte> bytes, int descriptor) {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  iovec buffer{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &buffer;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &descriptor, sizeof(descriptor));
  for (;;) {
    const ssize_t count = ::sendmsg(fd, &message, kSendFlags);
    if (count == static_cast<ssize_t>(bytes.size())) return true;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    return Status(Code::kPeerLost, "cannot send shared memory: " +
                                       (count < 0 ? ErrnoText(errno) : "it was sent only in part"));
  }
}

Result<std::optional<OwnedSocket>> ReceiveWithDescriptor(int fd, std::span<std::byte> out) {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  iovec buffer{out.data(), out.size()};
  msghdr message{};
  message.msg_iov = &buffer;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_LEN(sizeof(int));  // no room for a second, unrequested one
  ssize_t count = 0;
  do {
    count = ::recvmsg(fd, &message, kReceiveFlags);
  } while (count < 0 && errno == EINTR);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::optional<OwnedSocket>();
  OwnedSocket received;
  for (cmsghdr* head = count < 0 ? nullptr : CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(head), sizeof(descriptor));
    received = OwnedSocket(descriptor);
  }
  if (count != static_cast<ssize_t>(out.size()) || received.fd() < 0) {
    return Status(Code::kPeerLost, "the server closed the connection before sending shared memory");
  }
  return std::optional<OwnedSocket>(std::move(received));
}

}  // namespace sparsefleet
