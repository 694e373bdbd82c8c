// A server's listening socket.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "server/poller.h"
#include "status/status.h"
#include "sync/mutex.h"
#include "transport/socket.h"

namespace sparsefleet {

// Thread-safe.
class Acceptor {
 public:
  // Takes ownership of a connected socket; `from` is the address of its peer. Ids increase in the
  // order of acceptance.
  using OnSocket =
      std::function<void(std::uint64_t id, OwnedSocket socket, const sockaddr_storage& from)>;
  // Frees a descriptor; false if it cannot.
  using MakeRoom = std::function<bool()>;

  // `token`: how the poller reports the socket; `next_id`: the source of connection ids.
  Acceptor(Poller& poller, std::uint64_t token, std::atomic<std::uint64_t>& next_id)
      : poller_(poller), token_(token), next_id_(next_id) {}
  ~Acceptor() { Close(); }

  Status Listen(OwnedSocket listening);

  // Accepts some of the waiting connections and keeps listening. When the process is out of
  // descriptors it calls `make_room` and tries again. If that does not help, returns the error and
  // stops listening until Resume(), so that a waiting connection does not make the server spin.
  Status AcceptSome(const OnSocket& on_socket, const MakeRoom& make_room);
  void Resume();
  void Close();

 private:
  struct Accepted {
    std::uint64_t id = 0;
    OwnedSocket socket;
    sockaddr_storage from{};
  };
  Status Gather(const MakeRoom& make_room, std::vector<Accepted>& out);

  Poller& poller_;
  const std::uint64_t token_;
  std::atomic<std::uint64_t>& next_id_;
  Mutex mutex_;
  OwnedSocket socket_ GUARDED_BY(mutex_);
};

}  // namespace sparsefleet
