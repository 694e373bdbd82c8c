#include "client/client.h"

#include <algorithm>
#include <string>
#include <utility>

#include "client/call.h"
#include "client/client_core.h"
#include "client/resolve.h"
#include "client/restart_note.h"
#include "client/table_lookup.h"
#include "key/key.h"
#include "transport/channel_kinds.h"
#include "transport/key_proof.h"

namespace sparsefleet {
namespace {

constexpr std::size_t kMaxClientNameBytes = 255;

Status CheckOptions(const ClientOptions& options) {
  if (options.endpoints.empty()) return {Code::kInvalidArgument, "no server endpoint was given"};
  if (options.name.size() > kMaxClientNameBytes) {
    return {Code::kInvalidArgument, "client name of " + std::to_string(options.name.size()) +
                                        " bytes, expected at most " +
                                        std::to_string(kMaxClientNameBytes)};
  }
  const std::pair<const char*, double> positive[] = {
      {"connect_timeout_s", options.connect_timeout_s},
      {"try_timeout_s", options.try_timeout_s},
      {"heartbeat_interval_s", options.heartbeat_interval_s},
      {"peer_timeout_s", options.peer_timeout_s},
      {"first_backoff_s", options.first_backoff_s},
      {"max_backoff_s", options.max_backoff_s},
  };
  for (const auto& [name, value] : positive) {
    if (value > 0) continue;
    return {Code::kInvalidArgument,
            std::string(name) + " must be > 0, got " + std::to_string(value)};
  }
  if (options.peer_timeout_s <= options.heartbeat_interval_s) {
    return {Code::kInvalidArgument,
            "peer_timeout_s must be longer than heartbeat_interval_s, got " +
                std::to_string(options.peer_timeout_s) + " and " +
                std::to_string(options.heartbeat_interval_s)};
  }
  return Status::Ok();
}

// FNV-1a, mixed.
std::uint64_t HashOf(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  return Mix64(hash);
}

// The calls of the session's previous process are over; ours follow them.
Status TakeSessionOver(ClientCore& core, double timeout_s) {
  const CallSpec spec{MessageType::kResume, "", "taking the session over at", timeout_s};
  auto replies = CallAll(
      core, spec, Encode(ResumeRequest{true, std::min(core.options.failover_wait_s, kMaxGraceS)}));
  if (!replies.ok()) return replies.status();
  for (const Body& body : replies.value()) {
    auto reply = DecodeResumeReply(body);
    if (!reply.ok()) return reply.status();
    for (std::size_t window = 0; window < kNumWindows; ++window) {
      core.windows[window].BeginAt(reply.value().next_sequence[window]);
    }
  }
  return Status::Ok();
}

}  // namespace

ClientCore::ClientCore(ClientOptions given, std::vector<ResolvedEndpoint> servers,
                       LinkOptions link_options)
    : options(std::move(given)) {
  for (std::uint32_t i = 0; i < servers.size(); ++i) {
    links.push_back(std::make_unique<ServerLink>(i, std::move(servers[i]), link_options));
  }
}

ClientCore::~ClientCore() {
  // Says goodbye, over an idle connection if necessary.
  heartbeat.reset();
  for (const auto& link : links) link->CloseIdle();
}

std::uint64_t ClientCore::NextRoundingSeed(std::uint64_t step) {
  const std::uint64_t number = num_rounded.fetch_add(1, std::memory_order_relaxed);
  return Mix64(Mix64(HashOf(options.name) ^ step) + number);
}

Client::Client(std::shared_ptr<ClientCore> core) : core_(std::move(core)) {}
Client::~Client() = default;

Result<std::unique_ptr<Client>> Client::Connect(ClientOptions options) {
  if (Status s = CheckOptions(options); !s.ok()) return s;
  std::vector<Endpoint> endpoints;
  for (const auto& text : options.endpoints) {
    auto endpoint = ParseEndpoint(text);
    if (!endpoint.ok()) return endpoint.status();
    endpoints.push_back(std::move(endpoint).value());
  }
  auto channels = ChannelFactory::Create(options.security);
  if (!channels.ok()) return channels.status();
  auto client_id = options.session.empty() ? RandomNumber() : Result(HashOf(options.session));
  if (!client_id.ok()) return client_id.status();
  LinkOptions link_options;
  link_options.client_id = client_id.value();
  link_options.client_name = options.name;
  link_options.num_servers = static_cast<std::uint32_t>(endpoints.size());
  link_options.max_frame_bytes = options.max_frame_bytes;
  link_options.channels = std::move(channels).value();
  if (options.security.transport == TransportKind::kAuto) {
    auto lane_channels = MakeLaneFactory(options.security.job_key);
    if (!lane_channels.ok()) return lane_channels.status();
    link_options.lane_channels = std::move(lane_channels).value();
  }
  const double wait_s = std::max(options.connect_timeout_s, options.failover_wait_s);
  const CallClock clock(wait_s);
  auto servers = ResolveAll(endpoints, wait_s);
  if (!servers.ok()) return servers.status();
  auto core = std::make_shared<ClientCore>(std::move(options), std::move(servers).value(),
                                           std::move(link_options));

  // Servers may still be starting: send each a heartbeat, retried until it answers.
  const CallSpec spec{MessageType::kHeartbeat, "", "connecting to", clock.left_s()};
  if (auto reached = CallAll(*core, spec, {}); !reached.ok()) return reached.status();
  if (!core->options.session.empty()) {
    if (Status s = TakeSessionOver(*core, clock.left_s()); !s.ok()) return s;
  }
  HeartbeatOptions beats;
  beats.interval_s = core->options.heartbeat_interval_s;
  beats.peer_timeout_s = core->options.peer_timeout_s;
  beats.lost_after_s = std::max(core->options.peer_timeout_s, core->options.failover_wait_s);
  beats.acked_below = [raw = core.get()] {
    return raw->SequencesOf(MessageType::kHeartbeat).AckedBelow();
  };
  if (core->options.failover_wait_s > 0) {
    beats.is_restarting = [raw = core.get()](std::uint32_t server) {
      return ReadRestartNote(raw->options.restart_notes, server).is_current;
    };
  }
  auto log = LogQueue::Start(core->options.log);
  if (!log.ok()) return log.status();
  core->log_queue = std::move(log).value();
  beats.log = [queue = core->log_queue.get()](int severity, const std::string& message) {
    queue->Add(severity, message);
  };
  auto heartbeat = Heartbeat::Start(std::move(beats), core->links);
  if (!heartbeat.ok()) return heartbeat.status();
  core->heartbeat = std::move(heartbeat).value();
  return std::unique_ptr<Client>(new Client(std::move(core)));
}

std::uint32_t Client::num_servers() const { return core_->num_servers(); }

Result<std::vector<StatMap>> Client::Stats(double timeout_s) {
  auto replies = CallAll(*core_, {MessageType::kStats, "", "statistics of", timeout_s}, {});
  if (!replies.ok()) return replies.status();
  std::vector<StatMap> all;
  for (const auto& reply : replies.value()) {
    auto stats = DecodeStats(reply);
    if (!stats.ok()) return stats.status();
    all.push_back(std::move(stats).value());
  }
  return all;
}

Result<std::vector<std::vector<DataMark>>> Client::AppliedData(double timeout_s) {
  auto replies =
      CallAll(*core_, {MessageType::kResume, "", "asking for applied data at", timeout_s},
              Encode(ResumeRequest{}));
  if (!replies.ok()) return replies.status();
  std::vector<std::vector<DataMark>> all;
  for (const Body& body : replies.value()) {
    auto reply = DecodeResumeReply(body);
    if (!reply.ok()) return reply.status();
    all.push_back(std::move(reply.value().marks));
  }
  return all;
}

Result<std::vector<std::byte>> Client::Ask(MessageType type, GatheredBody body, double timeout_s) {
  ServerPart part(0, std::move(body));
  const CallSpec spec{type, "", std::string(MessageName(type)) + " at", timeout_s};
  if (Status s = RunCall(*core_, spec, {&part, 1}); !s.ok()) return s;
  return std::move(part.reply.body);
}

void Client::KeepSession(bool keeps) {
  core_->heartbeat->KeepSession(keeps && !core_->options.session.empty());
}

Status Client::Shutdown(double timeout_s) {
  core_->heartbeat->ExpectEnd();
  const CallSpec spec{MessageType::kShutdown, "", "shutting down", timeout_s};
  const Status status = CallAll(*core_, spec, {}).status();
  // Another client requested the shutdown first.
  if (status.code() == Code::kShuttingDown) return Status::Ok();
  return status;
}

Result<std::vector<std::byte>> Client::Command(std::uint32_t server, std::string_view name,
                                               std::span<const std::byte> body, double timeout_s) {
  if (name.empty() || name.size() > kMaxCommandNameBytes) {
    return Status(Code::kInvalidArgument, "command name of " + std::to_string(name.size()) +
                                              " bytes, expected 1 to " +
                                              std::to_string(kMaxCommandNameBytes));
  }
  const std::string subject = "command '" + std::string(name) + "': ";
  if (server >= core_->num_servers()) {
    return Status(Code::kInvalidArgument, subject + "there is no server " + std::to_string(server) +
                                              "; the number of servers is " +
                                              std::to_string(core_->num_servers()));
  }
  ServerPart part(server, Gather(CommandRequest{name, body}));
  const CallSpec spec{MessageType::kCommand, subject, "asking", timeout_s, true};
  if (Status s = RunCall(*core_, spec, {&part, 1}); !s.ok()) return s;
  return std::move(part.reply.body);
}

}  // namespace sparsefleet
