#include "server/server.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <random>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "server/acceptor.h"
#include "server/connection_set.h"
#include "server/dispatcher.h"
#include "server/host_lane.h"
#include "server/housekeeper.h"
#include "server/job_thread.h"
#include "server/server_log.h"
#include "server/session_table.h"
#include "store/coordinator.h"
#include "store/deadline.h"
#include "store/local_store.h"
#include "store/rounds.h"
#include "store/table_views.h"
#include "transport/socket.h"

namespace sparsefleet {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

// What the poller reports.
constexpr std::uint64_t kAcceptor = 0;
constexpr std::uint64_t kLaneAcceptor = 1;
constexpr std::uint64_t kFirstConnection = 2;

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
                                        std::to_string(value) + ", wanted > 0 and <= 1e6"};
  }
  if (options.max_frame_bytes < 4096 || options.max_frame_bytes > UINT32_MAX) {
    return {Code::kInvalidArgument, "ServerOptions.max_frame_bytes is " +
                                        std::to_string(options.max_frame_bytes) +
                                        ", wanted 4096 to " + std::to_string(UINT32_MAX)};
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
  return out;
}

}  // namespace

struct Server::Impl {
  Impl(ServerOptions given, std::unique_ptr<ChannelFactory> channels, std::unique_ptr<Poller> poll);

  DispatcherHooks Hooks();
  void Work();
  void Accept(Acceptor& from, ChannelFactory& channels);
  void Admit(ChannelFactory& channels, OwnedSocket socket, std::string address);
  Status Listen();
  void OpenLane();
  void Tick(steady_clock::time_point now);
  void DropLostClients(steady_clock::time_point now);
  void AddStats(StatMap& stats) const;
  void RequestShutdown();
  Status Closed() const;
  void StartThreads();  // throws std::system_error if the system gives no more
  void Stop();

  const ServerOptions options;
  const std::uint32_t num_threads;
  const steady_clock::time_point begun = steady_clock::now();
  std::unique_ptr<ChannelFactory> factory;
  std::unique_ptr<Poller> poller;
  ServerLog log;
  ServerCounters counters;
  const std::shared_ptr<ServedTables> served;
  TableSet& tables = served->tables;
  Coordinator& coordinator = served->coordinator;
  Rounds rounds;
  CommandQueue commands;
  SessionTable sessions;
  Dispatcher dispatcher;
  ConnectionSet connections;
  ServerConnectionHost host;
  Acceptor acceptor;
  std::uint16_t port = 0;
  // For clients on this host; see TransportKind::kAuto.
  std::unique_ptr<ChannelFactory> lane_factory;
  Acceptor lane_acceptor;
  std::atomic<std::uint64_t> next_connection{kFirstConnection};

  std::mutex shutdown_mutex;
  std::condition_variable shutdown_changed;
  bool shutdown_requested = false;

  std::mutex stop_mutex;  // held by the one who stops
  bool stopped = false;

  JobThread jobs;
  std::unique_ptr<Housekeeper> housekeeper;
  std::vector<std::jthread> threads;
};

Server::Impl::Impl(ServerOptions given, std::unique_ptr<ChannelFactory> channels,
                   std::unique_ptr<Poller> poll)
    : options(std::move(given)),
      num_threads(NumThreads(options.num_threads)),
      factory(std::move(channels)),
      poller(std::move(poll)),
      log(options.log),
      served(std::make_shared<ServedTables>(options.index, options.num_servers)),
      rounds([this](std::span<const PushSection> sections, std::uint64_t step) {
        return ApplyRound(tables, coordinator, sections, step);
      }),
      commands(options.max_frame_bytes),
      sessions(Seconds(options.peer_timeout_s)),
      dispatcher(DispatcherOptionsOf(options), Hooks(), tables, coordinator, rounds, commands,
                 sessions),
      host{*poller,
           dispatcher,
           sessions,
           counters,
           log,
           options.max_frame_bytes,
           Seconds(options.handshake_timeout_s),
           Seconds(options.frame_timeout_s),
           [this](std::uint64_t id) { connections.Remove(id); },
           {}},
      acceptor(*poller, kAcceptor),
      lane_acceptor(*poller, kLaneAcceptor) {}

DispatcherHooks Server::Impl::Hooks() {
  DispatcherHooks hooks;
  hooks.run_job = [this](std::function<void()> job) { jobs.Run(std::move(job)); };
  hooks.on_wait = [this](Coordinator::TimePoint deadline) { housekeeper->WakeBy(deadline); };
  hooks.on_shutdown_request = [this] { RequestShutdown(); };
  hooks.add_stats = [this](StatMap& stats) { AddStats(stats); };
  hooks.log = [this](int severity, const std::string& text) { log.Write(severity, text); };
  return hooks;
}

// A thread of the pool: looks after one ready socket after another.
void Server::Impl::Work() {
  while (const auto token = poller->Wait()) {
    if (*token == kAcceptor) {
      Accept(acceptor, *factory);
    } else if (*token == kLaneAcceptor) {
      Accept(lane_acceptor, *lane_factory);
    } else if (const auto connection = connections.Find(*token)) {
      connection->OnReady();
    }
  }
}

void Server::Impl::Accept(Acceptor& from, ChannelFactory& channels) {
  const Status status = from.AcceptSome([&](OwnedSocket socket, std::string address) {
    if (&from == &lane_acceptor) {
      counters.lane_connections_total.fetch_add(1, std::memory_order_relaxed);
      address = "a process of this host";
    }
    Admit(channels, std::move(socket), std::move(address));
  });
  if (!status.ok()) log.WriteSeldom(kError, status.message());
}

void Server::Impl::Admit(ChannelFactory& channels, OwnedSocket socket, std::string address) {
  counters.connections_total.fetch_add(1, std::memory_order_relaxed);
  if (Status s = PrepareSocket(socket.fd()); !s.ok()) {
    return log.WriteSeldom(kWarning, "connection from " + address + ": " + s.message());
  }
  auto channel = channels.Accept(socket.Release());
  if (!channel.ok()) {
    return log.WriteSeldom(kWarning,
                           "connection from " + address + ": " + channel.status().message());
  }
  auto connection = std::make_shared<ServerConnection>(host, next_connection.fetch_add(1),
                                                       std::move(channel).value(), address);
  if (!connections.Add(connection, options.max_connections)) {
    return log.WriteSeldom(kWarning, "connection from " + address +
                                         " refused: " + std::to_string(options.max_connections) +
                                         " are open, which is the limit");
  }
  if (Status s = connection->Start(); !s.ok()) {
    log.WriteSeldom(kWarning, "connection from " + address + ": " + s.message());
    connections.Remove(connection->id());
  }
}

void Server::Impl::Tick(steady_clock::time_point now) {
  acceptor.Resume();
  lane_acceptor.Resume();
  for (const auto& connection : connections.All()) connection->Tick(now);
  DropLostClients(now);
}

void Server::Impl::DropLostClients(steady_clock::time_point now) {
  for (const auto& session : sessions.TakeLost(now)) {
    counters.clients_lost.fetch_add(1, std::memory_order_relaxed);
    session->DropHoldings();
    coordinator.ForgetOwner(session->id());
    rounds.ForgetOwner(session->id());
    for (const auto& connection : connections.All()) {
      if (connection->BelongsTo(*session)) connection->CloseNow();
    }
    // Last: who reads it may count on the rest.
    char silent[32];
    std::snprintf(silent, sizeof(silent), "%.3g s", options.peer_timeout_s);
    log.Write(kWarning, session->Describe() + " silent for " + silent + ": counted as lost");
  }
}

void Server::Impl::AddStats(StatMap& stats) const {
  stats["server.uptime_s"] = std::chrono::duration<double>(steady_clock::now() - begun).count();
  stats["server.connections"] = static_cast<double>(connections.size());
  stats["server.clients"] = static_cast<double>(sessions.size());
  stats["server.threads"] = static_cast<double>(num_threads);
  counters.AddTo(stats);
}

void Server::Impl::RequestShutdown() {
  {
    std::lock_guard lock(shutdown_mutex);
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
  if (options.security.transport == TransportKind::kAuto) OpenLane();
  return acceptor.Listen(std::move(listening));
}

// Without it clients of this host come over TCP, like all others.
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
  std::lock_guard stopping(stop_mutex);
  if (std::exchange(stopped, true)) return;
  RequestShutdown();
  dispatcher.Drain();
  acceptor.Close();
  lane_acceptor.Close();
  connections.Seal();
  const Status closed = Closed();
  coordinator.Close(closed);
  rounds.Close(closed);
  commands.Close(closed);
  for (const auto& connection : connections.All()) connection->FinishAndClose();
  const auto deadline = DeadlineAfter(options.drain_timeout_s);
  connections.AwaitEmpty(deadline);
  if (!jobs.AwaitIdle(deadline)) {
    log.Write(kWarning, "a save, load or shrink was not finished in time, it is given up");
    dispatcher.GiveUpJobs();
  }
  jobs.Stop();
  // Connections with nothing left to answer have closed themselves.
  if (const std::size_t open = connections.size(); open > 0) {
    log.Write(kWarning,
              std::to_string(open) + " connections were not drained in time, they are closed");
    for (const auto& connection : connections.All()) connection->CloseNow();
  }
  if (housekeeper != nullptr) housekeeper->Stop();
  poller->Stop();
  for (auto& thread : threads) thread.join();
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { Stop(); }

Result<std::unique_ptr<Server>> Server::Start(ServerOptions options) {
  if (Status s = CheckOptions(options); !s.ok()) return s;
  auto factory = ChannelFactory::Create(options.security);
  if (!factory.ok()) return factory.status();
  auto poller = Poller::Create();
  if (!poller.ok()) return poller.status();
  std::unique_ptr<Impl> impl;
  try {
    impl = std::make_unique<Impl>(std::move(options), std::move(factory).value(),
                                  std::move(poller).value());
    for (const auto& [key, value] : impl->options.notes) {
      if (Status noted = impl->coordinator.PutNote(key, value); !noted.ok()) return noted;
    }
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

bool Server::HasClient(std::string_view name) const { return impl_->sessions.HasNamed(name); }

bool Server::WaitForShutdownRequest(double timeout_s) {
  std::unique_lock lock(impl_->shutdown_mutex);
  return impl_->shutdown_changed.wait_until(lock, DeadlineAfter(timeout_s),
                                            [&] { return impl_->shutdown_requested; });
}

void Server::Stop() { impl_->Stop(); }

}  // namespace sparsefleet
