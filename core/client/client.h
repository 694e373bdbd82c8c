// The store whose tables live on servers.
//
// OwnerOf() assigns keys to servers; a call sends its requests to all servers before it waits for
// the first reply, and replies land in the caller's buffer.
// Thread-safe: concurrent calls use separate connections.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "status/status.h"
#include "store/store.h"
#include "transport/security.h"
#include "transport/socket.h"

namespace sparsefleet {

struct ClientCore;
struct GatheredBody;
enum class MessageType : std::uint8_t;

// The numbers of pulls and pushes on the network. Tables and callers always have float32.
enum class WireDtype : std::uint8_t {
  kFloat32 = 0,
  // Gradients and added values are rounded at random, without bias; rows and values are rounded to
  // the nearest. The host lane does not need this and moves float32.
  kBf16 = 1,
};

struct ClientOptions {
  // "host:port", "[v6]:port" or "/path" of a file with one of these, in server order.
  std::vector<std::string> endpoints;
  SecurityOptions security;
  std::string name = "client";  // this client's name in server messages, e.g. "worker-0"

  // To the servers, clients with the same session text are one client: a process that replaces
  // another continues its sequences and finds out which data was applied. Empty: a new session.
  std::string session;

  // Behaviour.
  // Connect(): servers may still be starting. failover_wait_s, if that is longer.
  double connect_timeout_s = 30.0;
  double try_timeout_s = 10.0;        // per try of a call; a lost connection is noticed sooner
  double heartbeat_interval_s = 2.0;  // to each server, on a separate connection
  double peer_timeout_s = 10.0;       // a server silent for this long is considered lost
  // How long an unreachable server may take to return with its tables, and one with a full disk to
  // get space. Until then it is not lost, and calls to it are retried: this time does not count
  // against their timeout_s. 0: it is lost at once.
  double failover_wait_s = 0;
  // Where a launcher on this machine leaves notes about servers that it is restarting. While it
  // does, calls keep waiting for such a server, for up to ten more minutes. Empty: there are no
  // notes.
  std::string restart_notes;
  double first_backoff_s = 0.05;  // doubles with every try
  double max_backoff_s = 2.0;
  std::uint64_t max_frame_bytes = 256ull << 20;
  WireDtype wire_dtype = WireDtype::kFloat32;

  // Receives retries and lost or returned servers, on any thread; it may block. Severity as in
  // ServerOptions.
  std::function<void(int severity, const std::string& message)> log;
};

class Client final : public Store {
 public:
  // Resolves the endpoints, and resolves them again when a server cannot be reached, since a
  // durable server may come back at a different address. Connects to every server, proves the key,
  // and compares the protocol version and the number of servers. kDeadlineExceeded or kAuthFailed
  // naming the first endpoint that failed.
  static Result<std::unique_ptr<Client>> Connect(ClientOptions options);
  ~Client() override;

  // Store, see store/store.h.
  std::uint32_t num_servers() const override;
  Status Define(const SparseSpec& spec, double timeout_s) override;
  Status Define(const DenseSpec& spec, double timeout_s) override;
  Result<TableInfo> Info(std::string_view table, double timeout_s) override;
  Status Pull(std::span<const PullSection> sections, PullMode mode, std::uint64_t step,
              double timeout_s) override;
  Result<PushResult> Push(std::span<const PushSection> sections, std::uint64_t step,
                          double timeout_s) override;
  Status WriteDense(std::string_view table, std::span<const float> values,
                    double timeout_s) override;
  Status SetLearningRate(std::string_view table, double learning_rate,
                         std::optional<std::uint64_t> at, double timeout_s) override;
  Result<PushResult> PushRound(const RoundMember& member, std::uint64_t round,
                               std::span<const PushSection> sections, std::uint64_t step,
                               double timeout_s) override;
  Result<std::uint64_t> AdvanceClock(const RoundMember& member, std::uint64_t clock,
                                     std::optional<std::uint64_t> bound, double timeout_s) override;
  Status LeaveGroup(const RoundMember& member, double timeout_s) override;
  Result<std::uint64_t> Version(std::string_view table, double timeout_s) override;
  Status WaitVersion(std::string_view table, std::uint64_t at_least, double timeout_s) override;
  Status Barrier(std::string_view name, std::uint32_t members, double timeout_s) override;
  Status PutNote(std::string_view key, std::string_view value, double timeout_s) override;
  Result<std::string> GetNote(std::string_view key, bool wait, double timeout_s) override;
  Result<std::vector<std::optional<std::string>>> GetNotes(std::span<const std::string_view> keys,
                                                           double timeout_s) override;
  Status DeleteNote(std::string_view key, double timeout_s) override;
  Result<std::vector<StatMap>> Stats(double timeout_s) override;
  Result<std::uint64_t> Shrink(std::string_view table, std::uint64_t step,
                               double timeout_s) override;
  Result<std::uint64_t> Erase(std::string_view table, std::span<const Key> keys,
                              double timeout_s) override;
  Result<std::unique_ptr<StoreCut>> OpenCut(std::string_view table, bool only_dirty,
                                            bool clear_dirty, double timeout_s) override;
  Status Import(std::string_view table, const RowBatch& rows, double timeout_s) override;
  Status WatchChanges(std::string_view table, double timeout_s) override;
  Result<std::unique_ptr<StoreCut>> TakeChanges(std::string_view table, double timeout_s) override;
  Result<std::vector<std::byte>> Command(std::uint32_t server, std::string_view name,
                                         std::span<const std::byte> body,
                                         double timeout_s) override;
  void KeepSession(bool keeps) override;
  Status Shutdown(double timeout_s) override;

  // Sends a request of this type, which must not be a recorded one, to the first server; returns
  // the body of its reply.
  Result<std::vector<std::byte>> Ask(MessageType type, GatheredBody body, double timeout_s);

  // Returns, by server, the data of the pushes applied in this session, in order of stream.
  Result<std::vector<std::vector<DataMark>>> AppliedData(double timeout_s) override;
  // Sent as pushes without gradients.
  Status AdoptData(std::span<const std::vector<DataMark>> by_server, double timeout_s) override;

 private:
  explicit Client(std::shared_ptr<ClientCore> core);
  const std::shared_ptr<ClientCore> core_;  // shared with open cuts
};

}  // namespace sparsefleet
