#include "server/acceptor.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "sync/mutex.h"

namespace sparsefleet {
namespace {

// Small, so that handshakes in progress get a turn in between. Otherwise a fleet that reconnects
// all at once would exceed the limit on unproven connections.
constexpr int kAcceptsPerTurn = 16;

bool IsOutOfRoom(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

bool HasWaiting(int listening) {
  pollfd entry{listening, POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

}  // namespace

Status Acceptor::Listen(OwnedSocket listening) {
  MutexLock lock(mutex_);
  socket_ = std::move(listening);
  if (Status s = poller_.Add(socket_.fd(), token_); !s.ok()) return s;
  poller_.Arm(socket_.fd(), token_, true, false);
  return Status::Ok();
}

Status Acceptor::AcceptSome(const OnSocket& on_socket, const MakeRoom& make_room) {
  std::vector<Accepted> accepted;
  const Status status = Gather(make_room, accepted);
  // Without the lock, so that other threads can accept and shake hands in the meantime.
  for (auto& [id, socket, from] : accepted) on_socket(id, std::move(socket), from);
  return status;
}

Status Acceptor::Gather(const MakeRoom& make_room, std::vector<Accepted>& out) {
  MutexLock lock(mutex_);
  if (socket_.fd() < 0) return Status::Ok();
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Accepted next;
    socklen_t length = sizeof(next.from);
    next.socket =
        OwnedSocket(::accept(socket_.fd(), reinterpret_cast<sockaddr*>(&next.from), &length));
    if (next.socket.fd() >= 0) {
      next.id = next_id_.fetch_add(1);
      out.push_back(std::move(next));
      continue;
    }
    const int error = errno;
    if (error == EAGAIN || error == EWOULDBLOCK) break;
    // These concern only the connection that just ended, see accept(2).
    if (error == EINTR || error == ECONNABORTED || error == EPROTO || error == EPERM) continue;
    if (IsOutOfRoom(error)) {
      // Linux looks for a descriptor before it looks for a connection.
      if (!HasWaiting(socket_.fd())) break;
      if (make_room()) continue;
    }
    return {Code::kIo, "cannot accept connections: " + ErrnoText(error)};
  }
  poller_.Arm(socket_.fd(), token_, true, false);
  return Status::Ok();
}

void Acceptor::Resume() {
  MutexLock lock(mutex_);
  if (socket_.fd() >= 0) poller_.Arm(socket_.fd(), token_, true, false);
}

void Acceptor::Close() {
  MutexLock lock(mutex_);
  if (socket_.fd() < 0) return;
  poller_.Remove(socket_.fd());
  socket_ = OwnedSocket();
}

}  // namespace sparsefleet
