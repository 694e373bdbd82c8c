#include "server/server.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "server/acceptor.h"
#include "server/connection_limits.h"
#include "server/connection_set.h"
#include "server/dispatcher.h"
#include "server/host_lane.h"
#include "server/housekeeper.h"
#include "server/job_thread.h"
#include "server/server_log.h"
#include "server/session_table.h"
#include "server/task_queue.h"
#include "store/coordinator.h"
#include "store/deadline.h"
#include "store/local_store.h"
#include "store/rounds.h"
#include "store/table_views.h"
#include "sync/mutex.h"
#include "transport/socket.h"

namespace sparsefleet {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

// Tokens that the poller reports.
constexpr std::uint64_t kAcceptor = 0;
constexpr std::uint64_t kLaneAcceptor = 1;
constexpr std::uint64_t kTasks = 2;
constexpr std::uint64_t kFirstConnection = 3;

nanoseconds Seconds(double seconds) {
  return std::chrono::duration_cast<nanoseconds>(std::chrono::duration<double>(seconds));
}

Status CheckOptions(const ServerOptions& options) {
  if (options.index >= options.num_servers) {
    return {Code::kInvalidArgument, "server index " + std::to_string(options.index) +
                                        " must be below num_servers " +
                                        std::to_string(options.num_servers)};
  }
  const std::pair<const char*, double> timeouts[] = {
      {"peer_timeout_s", options.peer_timeout_s},
      {"handshake_timeout_s", options.handshake_timeout_s},
      {"frame_timeout_s", options.frame_timeout_s}};
  for (const auto& [name, value] : timeouts) {
    if (value > 0 && value <= 1e6) continue;
    return {Code::kInvalidArgument, std::string("ServerOptions.") + name + " is " +
                                        std::to_string(value) + ", expected > 0 and <= 1e6"};
  }
  if (options.max_connections == 0) {
    return {Code::kInvalidArgument, "ServerOptions.max_connections is 0, expected at least 1"};
  }
  if (options.max_frame_bytes < 4096 || options.max_frame_bytes > kMaxBodyBytes) {
    return {Code::kInvalidArgument, "ServerOptions.max_frame_bytes is " +
                                        std::to_string(options.max_frame_bytes) +
                                        ", expected 4096 to " + std::to_string(kMaxBodyBytes)};
  }
  return Status::Ok();
}

std::uint64_t MachineMemoryBytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page_bytes = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_bytes <= 0) return UINT64_MAX;
  return static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes);
}

std::uint32_t NumThreads(std::uint32_t asked) {
  if (asked > 0) return asked;
  return std::clamp(std::thread::hardware_concurrency(), 2u, 8u);
}

DispatcherOptions DispatcherOptionsOf(const ServerOptions& options) {
  std::random_device random;
  DispatcherOptions out;
  out.index = options.index;
  out.num_servers = options.num_servers;
  out.incarnation = (static_cast<std::uint64_t>(random()) << 32) | random();
  out.max_frame_bytes = options.max_frame_bytes;
  out.max_dense_bytes =
      options.max_dense_bytes > 0 ? options.max_dense_bytes : MachineMemoryBytes();
  out.peer_timeout_s = options.peer_timeout_s;
  out.logged_commands = options.logged_commands;
  return out;
}

}  // namespace

struct Server::Impl {
  Impl(ServerOptions given, const ConnectionLimits& limits,
       std::unique_ptr<ChannelFactory> channels, std::unique_ptr<Poller> poll);

  DispatcherHooks Hooks();
  void Work();
  void Accept(Acceptor& from, ChannelFactory& channels);
  void Admit(ChannelFactory& channels, std::uint64_t id, OwnedSocket socket,
             const std::string& address, const std::string& address_group);
  void Drop(ServerConnection& unproven, const std::string& why);
  void MakeWay(const ConnectionSet::Pointer& displaced);
  Status Listen();
  void OpenLane();
  void ReportLimits() const;
  void Tick(steady_clock::time_point now);
  void DropLostClients(steady_clock::time_point now);
  std::size_t DropEndedClients(std::string_view name);
  void Forget(Session& session, const std::string& why);
  void AddStats(StatMap& stats) const;
  void RequestShutdown();
  Status Closed() const;
  void OpenReplicaStore();
  Status Recover();
  Status WriteSnapshot();
  void SnapshotIfDue();
  void Fail(const Status& status);
  void StartThreads();  // throws std::system_error if the system refuses a thread
  void Stop();

  const ServerOptions options;
  const std::uint32_t num_threads;
  const steady_clock::time_point begun = steady_clock::now();
  std::unique_ptr<ChannelFactory> factory;
  std::unique_ptr<Poller> poller;
  TaskQueue tasks;
  ServerLog log;
  ServerCounters counters;
  const std::shared_ptr<ServedTables> served;
  TableSet& tables = served->tables;
  Coordinator& coordinator = served->coordinator;
  Rounds rounds;
  CommandQueue commands;
  SessionTable sessions;
  Dispatcher dispatcher;
  std::unique_ptr<Journal> journal;        // null: not durable
  std::unique_ptr<DurableState> durable;   // null: not durable
  std::unique_ptr<ReplicaStore> replicas;  // null: holds no logs of others
  std::atomic<bool> snapshot_runs{false};
  mutable Mutex failure_mutex;
  Status failure;
  ConnectionSet connections;
  ServerConnectionHost host;
  std::atomic<std::uint64_t> next_connection{kFirstConnection};
  Acceptor acceptor;
  std::uint16_t port = 0;
  // For clients on this host; see TransportKind::kAuto.
  std::unique_ptr<ChannelFactory> lane_factory;
  Acceptor lane_acceptor;

  Mutex shutdown_mutex;
  CondVar shutdown_changed;
  bool shutdown_requested GUARDED_BY(shutdown_mutex) = false;

  Mutex stop_mutex;  // held by the thread that stops the server
  bool stopped GUARDED_BY(stop_mutex) = false;

  JobThread jobs;
  std::unique_ptr<Housekeeper> housekeeper;
  std::vector<std::jthread> threads;
};

Server::Impl::Impl(ServerOptions given, const ConnectionLimits& limits,
                   std::unique_ptr<ChannelFactory> channels, std::unique_ptr<Poller> poll)
    : options(std::move(given)),
      num_threads(NumThreads(options.num_threads)),
      factory(std::move(channels)),
      poller(std::move(poll)),
      tasks(*poller, kTasks),
      log(options.log),
      served(std::make_shared<ServedTables>(options.index, options.num_servers)),
      rounds([this](std::span<const PushSection> sections,
                    std::uint64_t step) { return ApplyRound(tables, coordinator, sections, step); },
             [this](std::uint64_t client) { return sessions.HasId(client); }),
      commands(options.max_frame_bytes),
      sessions(Seconds(options.peer_timeout_s)),
      dispatcher(DispatcherOptionsOf(options), Hooks(), tables, coordinator, rounds, commands,
                 sessions),
      connections(limits),
      host{*poller,
           dispatcher,
           sessions,
           counters,
           log,
           options.max_frame_bytes,
           Seconds(options.handshake_timeout_s),
           Seconds(options.frame_timeout_s),
           [this](std::uint64_t id) { MakeWay(connections.MarkAnswered(id)); },
           [this](std::uint64_t id) { return connections.MarkProven(id); },
           [this](std::uint64_t id) { connections.Remove(id); },
           limits.FullText(),
           {}},
      acceptor(*poller, kAcceptor, next_connection),
      lane_acceptor(*poller, kLaneAcceptor, next_connection) {
  coordinator.ShareTasks([this](auto ready) { tasks.Run(std::move(ready)); });
  rounds.ShareTasks([this](auto ready) { tasks.Run(std::move(ready)); });
}

DispatcherHooks Server::Impl::Hooks() {
  DispatcherHooks hooks;
  hooks.run_job = [this](std::function<void()> job) { jobs.Run(std::move(job)); };
  hooks.on_wait = [this](Coordinator::TimePoint deadline) { housekeeper->WakeBy(deadline); };
  hooks.on_shutdown_request = [this] { RequestShutdown(); };
  hooks.add_stats = [this](StatMap& stats) { AddStats(stats); };
  hooks.log = [this](int severity, const std::string& text) { log.Write(severity, text); };
  return hooks;
}

// Runs on a pool thread: handles one ready socket after another.
void Server::Impl::Work() {
  while (const auto token = poller->Wait()) {
    if (*token == kAcceptor) {
      Accept(acceptor, *factory);
    } else if (*token == kLaneAcceptor) {
      Accept(lane_acceptor, *lane_factory);
    } else if (*token == kTasks) {
      tasks.Help();
    } else if (const auto connection = connections.Find(*token)) {
      connection->OnReady();
    }
  }
}

void Server::Impl::Accept(Acceptor& from, ChannelFactory& channels) {
  const auto admit = [&](std::uint64_t id, OwnedSocket socket, const sockaddr_storage& peer) {
    if (&from != &lane_acceptor) {
      return Admit(channels, id, std::move(socket), AddressText(peer), AddressGroup(peer));
    }
    counters.lane_connections_total.fetch_add(1, std::memory_order_relaxed);
    Admit(channels, id, std::move(socket), "a process on this host", "");
  };
  const auto make_room = [&] {
    const auto oldest = connections.TakeOldestUnproven();
    if (oldest != nullptr) Drop(*oldest, "the process is out of file descriptors");
    return oldest != nullptr;
  };
  const Status status = from.AcceptSome(admit, make_room);
  if (!status.ok()) log.WriteRateLimited(kError, status.message());
}

void Server::Impl::Drop(ServerConnection& unproven, const std::string& why) {
  counters.unproven_dropped.fetch_add(1, std::memory_order_relaxed);
  log.WriteRateLimited(kWarning, "dropped a connection from " + unproven.address() +
                                     " that has not proven the job key: " + why);
  unproven.CloseNow();
}

// Closes the connection displaced by a newer one, if any.
void Server::Impl::MakeWay(const ConnectionSet::Pointer& displaced) {
  if (displaced == nullptr) return;
  const ConnectionLimits& limits = connections.limits();
  Drop(*displaced, "the limit is " + std::to_string(limits.unproven) + " such connections, " +
                       std::to_string(limits.unproven_per_address) + " per address");
}

void Server::Impl::Admit(ChannelFactory& channels, std::uint64_t id, OwnedSocket socket,
                         const std::string& address, const std::string& address_group) {
  const auto report = [&](const Status& s) {
    log.WriteRateLimited(kWarning, "connection from " + address + ": " + s.message());
  };
  counters.connections_total.fetch_add(1, std::memory_order_relaxed);
  if (Status s = PrepareSocket(socket.fd()); !s.ok()) return report(s);
  auto channel = channels.Accept(socket.Release());
  if (!channel.ok()) return report(channel.status());
  auto& traffic = &channels == lane_factory.get() ? counters.lane : counters.socket;
  auto connection =
      std::make_shared<ServerConnection>(host, id, std::move(channel).value(), address, traffic);
  const auto added = connections.Add(connection, address_group);
  if (!added.is_added) return;  // the server is stopping
  MakeWay(added.displaced);
  if (Status s = connection->Start(); !s.ok()) {
    report(s);
    connections.Remove(connection->id());
  }
}

void Server::Impl::ReportLimits() const {
  const ConnectionLimits& limits = connections.limits();
  if (limits.proven >= options.max_connections) return;
  log.Write(kInfo, "accepting " + std::to_string(limits.proven) + " connections instead of " +
                       std::to_string(options.max_connections) + ": the process may open " +
                       std::to_string(limits.open_files) +
                       " files; to accept more, raise the hard limit (ulimit -Hn, or LimitNOFILE= "
                       "in systemd)");
}

void Server::Impl::Tick(steady_clock::time_point now) {
  acceptor.Resume();
  lane_acceptor.Resume();
  for (const auto& connection : connections.All()) connection->Tick(now);
  DropLostClients(now);
  SnapshotIfDue();
}

void Server::Impl::DropLostClients(steady_clock::time_point now) {
  sessions.DropLost(now, [this, now](Session& session) {
    Forget(session, session.DescribeLoss(now, options.peer_timeout_s));
  });
}

std::size_t Server::Impl::DropEndedClients(std::string_view name) {
  std::size_t dropped = 0;
  sessions.DropNamed(name, [&](Session& session) {
    Forget(session, "its launcher reports that it has ended");
    ++dropped;
  });
  return dropped;
}

void Server::Impl::Forget(Session& session, const std::string& why) {
  counters.clients_lost.fetch_add(1, std::memory_order_relaxed);
  session.DropHoldings();
  coordinator.ForgetOwner(session.id(), why);
  rounds.ForgetOwner(session.id(), why);
  for (const auto& connection : connections.All()) {
    if (connection->BelongsTo(session)) connection->CloseNow();
  }
  // Last, so that whoever reads it can rely on the rest.
  log.Write(kWarning, session.Describe() + " is considered lost: " + why);
}

void Server::Impl::AddStats(StatMap& stats) const {
  stats["server.uptime_s"] = std::chrono::duration<double>(steady_clock::now() - begun).count();
  stats["server.connections"] = static_cast<double>(connections.size());
  stats["server.connections_unproven"] = static_cast<double>(connections.num_unproven());
  stats["server.connections_answered"] = static_cast<double>(connections.num_answered());
  stats["server.clients"] = static_cast<double>(sessions.size());
  stats["server.tls_key_updates"] = static_cast<double>(factory->key_updates());
  stats["server.threads"] = static_cast<double>(num_threads);
  if (journal != nullptr) journal->AddStats(stats);
  if (replicas != nullptr) replicas->AddStats(stats);
  counters.AddTo(stats);
  dispatcher.times().AddTo(stats);
}

void Server::Impl::OpenReplicaStore() {
  if (options.replica_dir.empty()) return;
  ReplicaStoreOptions held;
  held.directory = options.replica_dir;
  held.sync = options.replica_sync;
  held.end_of_snapshot = static_cast<std::uint32_t>(LogRecord::kEndOfSnapshot);
  held.calls = options.file_calls;
  replicas = std::make_unique<ReplicaStore>(std::move(held));
  dispatcher.SetReplicaStore(replicas.get());
}

Status Server::Impl::Recover() {
  if (options.durability == Durability::kOff) return Status::Ok();
  JournalOptions journal_options;
  journal_options.durability = options.durability;
  journal_options.directory = options.log_dir;
  journal_options.snapshot_bytes = options.snapshot_bytes;
  journal_options.calls = options.file_calls;
  journal_options.take_over = options.take_over;
  journal_options.replica.endpoint = options.replica;
  journal_options.replica.security = options.security;
  journal_options.replica.server = options.index;
  journal_options.replica.wait_s = options.replica_wait_s;
  journal_options.replica.start_wait_s = options.replica_start_wait_s;
  journal_options.log = [this](int severity, const std::string& text) {
    log.Write(severity, text);
  };
  journal_options.on_failure = [this](const Status& status) { Fail(status); };
  auto opened = Journal::Open(std::move(journal_options));
  if (!opened.ok()) return opened.status();
  journal = std::move(opened).value();
  durable = std::make_unique<DurableState>(
      *journal, DurableState::Parts{tables, coordinator, rounds, sessions, dispatcher});
  if (Status s = durable->Recover(dispatcher.incarnation()); !s.ok()) return s;
  served->on_clearing_cut = [this](const auto& names) { return durable->OnClearingCut(names); };
  StatMap found;
  journal->AddStats(found);
  log.Write(kInfo, "log " + options.log_dir + ": " +
                       std::to_string(static_cast<std::uint64_t>(found["log.replayed_records"])) +
                       " records replayed after a snapshot of " +
                       std::to_string(static_cast<std::uint64_t>(found["log.snapshot_bytes"])) +
                       " bytes");
  return Status::Ok();
}

Status Server::Impl::WriteSnapshot() { return durable->Snapshot(options.write_command_state); }

void Server::Impl::SnapshotIfDue() {
  if (journal == nullptr || !journal->IsSnapshotDue() || snapshot_runs.exchange(true)) return;
  jobs.Run([this] {
    if (Status s = WriteSnapshot(); !s.ok()) {
      log.Write(kWarning, "cannot write a snapshot, so the log keeps growing: " + s.message());
    }
    snapshot_runs = false;
  });
}

// No reply that says otherwise may be sent: connections close, and the process must end.
void Server::Impl::Fail(const Status& status) {
  {
    MutexLock lock(failure_mutex);
    if (!failure.ok()) return;
    failure = status;
  }
  log.Write(kError, "the server is stopping: " + status.message());
  for (const auto& connection : connections.All()) connection->CloseNow();
  RequestShutdown();
}

void Server::Impl::RequestShutdown() {
  {
    MutexLock lock(shutdown_mutex);
    shutdown_requested = true;
  }
  shutdown_changed.notify_all();
}

Status Server::Impl::Closed() const {
  return {Code::kShuttingDown, "server " + std::to_string(options.index) + " of " +
                                   std::to_string(options.num_servers) + " is shutting down"};
}

Status Server::Impl::Listen() {
  auto fd = sparsefleet::Listen({options.host, options.port});
  if (!fd.ok()) return fd.status();
  OwnedSocket listening(fd.value());
  auto bound = BoundPort(listening.fd());
  if (!bound.ok()) return bound.status();
  port = bound.value();
  if (Status s = tasks.Open(); !s.ok()) return s;
  if (options.security.transport == TransportKind::kAuto) OpenLane();
  return acceptor.Listen(std::move(listening));
}

// Without it, clients on this host use TCP like all others.
void Server::Impl::OpenLane() {
  auto opened = OpenHostLane(options.security.job_key);
  if (!opened.ok()) {
    return log.Write(kInfo,
                     "no shared memory with clients on this host: " + opened.status().message());
  }
  HostLane lane = std::move(opened).value();
  lane_factory = std::move(lane.channels);
  const Status listens = lane_acceptor.Listen(std::move(lane.listener.socket));
  if (listens.ok()) host.lane_name = lane.listener.name;
}

void Server::Impl::StartThreads() {
  const double shortest =
      std::min({options.peer_timeout_s, options.frame_timeout_s, options.handshake_timeout_s});
  housekeeper = std::make_unique<Housekeeper>(
      Seconds(std::clamp(shortest / 4, 0.002, 0.5)),
      [this](auto now) {
        return std::min({coordinator.Expire(now), rounds.Expire(now), commands.Expire(now)});
      },
      [this](auto now) { Tick(now); });
  for (std::uint32_t i = 0; i < num_threads; ++i) threads.emplace_back([this] { Work(); });
}

void Server::Impl::Stop() {
  MutexLock stopping(stop_mutex);
  if (std::exchange(stopped, true)) return;
  RequestShutdown();
  dispatcher.Drain();
  acceptor.Close();
  lane_acceptor.Close();
  connections.Seal();
  coordinator.Close(Closed());
  rounds.Close(Closed());
  commands.Close(Closed());
  for (const auto& connection : connections.All()) connection->FinishAndClose();
  const auto deadline = DeadlineAfter(options.drain_timeout_s);
  connections.AwaitEmpty(deadline);
  if (journal != nullptr) journal->Interrupt();
  if (!jobs.AwaitIdle(deadline)) {
    log.Write(kWarning, "a save, load or shrink did not finish in time and was cancelled");
    dispatcher.CancelJobs();
  }
  jobs.Stop();
  // Connections that owe no reply have already closed themselves.
  if (const std::size_t open = connections.size(); open > 0) {
    log.Write(kWarning,
              std::to_string(open) + " connections did not drain in time and were closed");
    for (const auto& connection : connections.All()) connection->CloseNow();
  }
  if (housekeeper != nullptr) housekeeper->Stop();
  poller->Stop();
  for (auto& thread : threads) thread.join();
  if (journal != nullptr) journal->Stop();  // its callbacks write to connections
  // Stores over the tables may outlive the server.
  tables.SetBirthLog(nullptr);
  served->on_clearing_cut = {};
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { Stop(); }

Result<std::unique_ptr<Server>> Server::Start(ServerOptions options) {
  if (Status s = CheckOptions(options); !s.ok()) return s;
  auto factory = ChannelFactory::Create(options.security);
  if (!factory.ok()) return factory.status();
  auto limits = PlanConnections(options.max_connections, options.max_unproven,
                                options.max_unproven_per_address);
  if (!limits.ok()) return limits.status();
  auto poller = Poller::Create();
  if (!poller.ok()) return poller.status();
  std::unique_ptr<Impl> impl;
  try {
    impl = std::make_unique<Impl>(std::move(options), limits.value(), std::move(factory).value(),
                                  std::move(poller).value());
    impl->ReportLimits();
    for (const auto& [key, value] : impl->options.notes) {
      if (Status noted = impl->coordinator.PutNote(key, value); !noted.ok()) return noted;
    }
    impl->OpenReplicaStore();
    if (Status s = impl->Recover(); !s.ok()) return s;
    Status s = impl->Listen();
    if (!s.ok()) return s;
    impl->StartThreads();
  } catch (const std::system_error& error) {
    if (impl != nullptr) impl->Stop();
    return Status(Code::kIo, std::string("cannot start the server's threads: ") + error.what());
  }
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

std::uint16_t Server::port() const { return impl_->port; }
TableSet& Server::tables() { return impl_->tables; }
std::shared_ptr<Store> Server::TablesAsStore() {
  return std::make_shared<LocalStore>(impl_->served);
}

Result<std::unique_ptr<Command>> Server::NextCommand(double timeout_s) {
  return impl_->commands.Next(timeout_s);
}
void Server::DrainCommands() { impl_->commands.Drain(impl_->Closed()); }

StatMap Server::Stats() const {
  StatMap stats;
  impl_->AddStats(stats);
  AddTableStats(impl_->tables, stats);
  return stats;
}

SpanRing& Server::spans() { return impl_->dispatcher.times().spans; }

bool Server::HasClient(std::string_view name) const { return impl_->sessions.HasNamed(name); }

bool Server::HasSession(std::uint64_t number) const { return impl_->sessions.HasNumber(number); }

std::size_t Server::DropClients(std::string_view name) { return impl_->DropEndedClients(name); }

std::size_t Server::ExpectClients(std::string_view name) {
  return impl_->sessions.ExpectNamed(name, steady_clock::now());
}

bool Server::WaitForShutdownRequest(double timeout_s) {
  MutexLock lock(impl_->shutdown_mutex);
  return impl_->shutdown_changed.WaitUntil(
      impl_->shutdown_mutex, DeadlineAfter(timeout_s),
      [&]() REQUIRES(impl_->shutdown_mutex) { return impl_->shutdown_requested; });
}

void Server::Stop() { impl_->Stop(); }

std::vector<RecoveredCommand> Server::TakeRecoveredCommands() {
  return impl_->durable == nullptr ? std::vector<RecoveredCommand>()
                                   : impl_->durable->TakeCommands();
}

Status Server::AppendCommandState(const std::string& name, std::span<const std::byte> state) {
  return impl_->durable == nullptr ? Status::Ok() : impl_->durable->AppendCommandState(name, state);
}

Status Server::ChangeInBulk(const std::function<Status()>& change) {
  if (impl_->durable == nullptr) return change();
  {
    const auto held = impl_->durable->HoldSnapshots();
    if (Status s = change(); !s.ok()) return s;
  }
  return Snapshot();
}

Status Server::Snapshot() {
  const Status s = impl_->durable == nullptr ? Status::Ok() : impl_->WriteSnapshot();
  // Clients take kDiskFull for a log that cannot be written, and would retry.
  return s.code() == Code::kDiskFull ? Status(Code::kIo, s.message()) : s;
}

Status Server::failure() const {
  MutexLock lock(impl_->failure_mutex);
  return impl_->failure;
}

}  // namespace sparsefleet
