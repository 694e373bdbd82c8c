#include "transport/stream_io.h"

#include <limits.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace sparsefleet {
namespace {

#ifdef MSG_NOSIGNAL
constexpr int kSendFlags = MSG_NOSIGNAL;
#else
constexpr int kSendFlags = 0;  // PrepareSocket has set SO_NOSIGPIPE
#endif

#ifdef IOV_MAX
constexpr std::size_t kMaxBuffers = IOV_MAX;
#else
constexpr std::size_t kMaxBuffers = 1024;
#endif

IoResult Failure() {
  if (errno == EAGAIN || errno == EWOULDBLOCK) return {IoOutcome::kNotReady, 0, 0};
  return {IoOutcome::kBroken, 0, errno};
}

}  // namespace

IoResult ReceiveSome(int fd, std::span<std::byte> out) {
  for (;;) {
    const ssize_t count = ::recv(fd, out.data(), out.size(), 0);
    if (count > 0) return {IoOutcome::kMoved, static_cast<std::size_t>(count), 0};
    if (count == 0) return {IoOutcome::kEnd, 0, 0};
    if (errno != EINTR) return Failure();
  }
}

IoResult SendSome(int fd, std::span<const iovec> buffers) {
  msghdr message{};
  // sendmsg() does not modify the list; its type lacks const for historical reasons.
  message.msg_iov = const_cast<iovec*>(buffers.data());
  message.msg_iovlen = std::min(buffers.size(), kMaxBuffers);
  for (;;) {
    const ssize_t count = ::sendmsg(fd, &message, kSendFlags);
    if (count >= 0) return {IoOutcome::kMoved, static_cast<std::size_t>(count), 0};
    if (errno != EINTR) return Failure();
  }
}

}  // namespace sparsefleet
