// A server: tables served over sockets.
// Thread-safe. Two servers in one process work.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "monitor/span_ring.h"
#include "server/command_queue.h"
#include "server/durable_state.h"
#include "status/status.h"
#include "store/store.h"
#include "table/table_set.h"
#include "transport/security.h"

namespace sparsefleet {

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: any free port, see Server::port()
  SecurityOptions security;

  // Behaviour.
  std::uint32_t index = 0;                       // this server's index among num_servers
  std::uint32_t num_servers = 1;                 // clients that expect another number are rejected
  std::uint64_t max_frame_bytes = 256ull << 20;  // larger requests and replies are rejected
  double peer_timeout_s = 10.0;                  // a client silent for this long is considered lost
  double handshake_timeout_s = 10.0;             // a connection must prove the key within this
  double frame_timeout_s = 30.0;                 // longest pause within a frame
  double drain_timeout_s = 30.0;                 // Stop(): time for requests in progress

  // All dense tables with their optimizer state; 0: the memory of this machine.
  std::uint64_t max_dense_bytes = 0;
  // Notes (see Store::PutNote) that exist before the first client connects.
  std::map<std::string, std::string> notes;

  // What survives the process, and where its log is kept: see docs/running_servers.md.
  Durability durability = Durability::kOff;
  std::string log_dir;
  std::uint64_t snapshot_bytes = 1ull << 30;  // log after which a snapshot is written, or earlier
  FileCalls* file_calls = nullptr;            // null: the system's
  // Durability::kReplica: the process that holds a copy of the log, and how long replies wait for
  // it while it is lost before they go out without it.
  std::string replica;
  double replica_wait_s = std::numeric_limits<double>::infinity();
  double replica_start_wait_s = 60;  // Start(): for a replica that does not answer
  bool take_over = false;  // a process that still holds log_dir, stopped or not, is killed
  // This server holds copies of the logs of others, below this directory; empty: it does not.
  std::string replica_dir;
  bool replica_sync = true;  // it answers when records are on the disk
  // Commands whose names begin so are logged; the program writes their state with
  // AppendCommandState() when `write_command_state` is called, which happens with each snapshot.
  std::vector<std::string> logged_commands;
  std::function<Status()> write_command_state;

  // Limits on connections, see connection_limits.h. Start() raises the soft RLIMIT_NOFILE for them;
  // if the hard limit is too low, the server accepts fewer connections and logs it.
  std::uint32_t max_connections = 10000;  // that have proven the key; more are rejected
  // Connections that have not proven the key yet; the oldest is dropped for a new one. 0: a quarter
  // of max_connections, at most 512.
  std::uint32_t max_unproven = 0;
  // The same per IPv4 address or IPv6 /64 network. 0: half of max_unproven.
  std::uint32_t max_unproven_per_address = 0;

  // Speed.
  std::uint32_t num_threads = 0;  // request threads; 0: one per core, at most 8

  // Receives log lines (a lost peer, a refused connection), on a server thread.
  // Severity: 0 info, 1 warning, 2 error.
  std::function<void(int severity, const std::string& message)> log;
};

class Server {
 public:
  // Binds, listens and starts the threads; kIo naming the endpoint if it is in use.
  static Result<std::unique_ptr<Server>> Start(ServerOptions options);
  ~Server();  // Stop()

  std::uint16_t port() const;
  TableSet& tables();
  // The tables as a Store, which may outlive the server. It holds only the rows and elements on
  // this server.
  std::shared_ptr<Store> TablesAsStore();
  StatMap Stats() const;
  // Requests with their times, by MessageType, while a profile is taken.
  SpanRing& spans();
  // Whether a client of this name is connected and not considered lost.
  bool HasClient(std::string_view name) const;
  // The same for the client of this session, see Command::session().
  bool HasSession(std::uint64_t number) const;

  // Reports that the processes of the clients with this name have ended: they count as lost at
  // once, without the peer timeout. Returns how many there were.
  std::size_t DropClients(std::string_view name);
  // Reports that their launcher has restarted the clients with this name: the time in which they
  // must be back starts again. Returns how many are awaited.
  std::size_t ExpectClients(std::string_view name);

  // Returns true when a client requested shutdown or Stop() was called, false after timeout_s.
  bool WaitForShutdownRequest(double timeout_s);

  // On a durable server: the logged commands and states found at the start, in order; once.
  std::vector<RecoveredCommand> TakeRecoveredCommands();
  Status AppendCommandState(const std::string& name, std::span<const std::byte> state);
  // Runs `change`, which changes tables without logging, and writes a snapshot before returning; no
  // other snapshot is written meanwhile. A server that is not durable just runs it.
  Status ChangeInBulk(const std::function<Status()>& change);
  Status Snapshot();
  // Not ok once the log is broken: the process must end, and its successor recovers.
  Status failure() const;

  // The next command from a client, for the caller to answer; null if none arrived within
  // timeout_s; kShuttingDown once commands are drained.
  Result<std::unique_ptr<Command>> NextCommand(double timeout_s);
  // Hands out no further commands: waiting and new ones fail with kShuttingDown.
  void DrainCommands();

  // Accepts no new requests, finishes those in progress (waits and unanswered commands end with
  // kShuttingDown), closes all connections, joins all threads. Idempotent.
  void Stop();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sparsefleet
