// A server: tables behind sockets.
// Thread-safe. Two servers in one process work.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "server/command_queue.h"
#include "status/status.h"
#include "store/store.h"
#include "table/table_set.h"
#include "transport/security.h"

namespace sparsefleet {

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: a free one, see Server::port()
  SecurityOptions security;

  // Behaviour.
  std::uint32_t index = 0;                       // this server's place among num_servers
  std::uint32_t num_servers = 1;                 // clients that count otherwise are refused
  std::uint64_t max_frame_bytes = 256ull << 20;  // larger requests and replies are refused
  double peer_timeout_s = 10.0;                  // a client silent for this long counts as lost
  double handshake_timeout_s = 10.0;             // a connection must prove the key within this
  double frame_timeout_s = 30.0;  // a frame once begun must be whole within this of its last byte
  double drain_timeout_s = 30.0;  // Stop(): requests under way get this long

  // Of all dense tables together, with their optimizers' state; 0: the memory of this machine.
  std::uint64_t max_dense_bytes = 0;
  // Notes (see Store::PutNote) that are there before the first client is.
  std::map<std::string, std::string> notes;

  // Speed.
  std::uint32_t num_threads = 0;  // request threads; 0: one a core, at most 8
  std::uint32_t max_connections = 10000;

  // Told of things worth a log line (a lost peer, a refused stranger), on a server thread.
  // Severity: 0 info, 1 warning, 2 error.
  std::function<void(int severity, const std::string& message)> log;
};

class Server {
 public:
  // Binds, listens and starts the threads; kIo naming the endpoint if it is taken.
  static Result<std::unique_ptr<Server>> Start(ServerOptions options);
  ~Server();  // Stop()

  std::uint16_t port() const;
  TableSet& tables();
  // The same for callers of a Store, which may outlive the server: rows and elements held here,
  // nothing dealt over servers.
  std::shared_ptr<Store> TablesAsStore();
  StatMap Stats() const;
  // Whether a client of this name is here: it has come, and has neither gone nor been lost.
  bool HasClient(std::string_view name) const;

  // Returns true when a client asked for shutdown or Stop() was called, false after timeout_s.
  bool WaitForShutdownRequest(double timeout_s);

  // The next command that a client has sent, to be answered by the caller; null if none came
  // within timeout_s; kShuttingDown once commands are drained.
  Result<std::unique_ptr<Command>> NextCommand(double timeout_s);
  // No further commands are handed out: those that wait, and new ones, fail with kShuttingDown.
  void DrainCommands();

  // Takes no new requests, finishes those under way (waits, and commands not answered, are
  // ended with kShuttingDown), closes all connections, joins all threads. Idempotent.
  void Stop();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sparsefleet
