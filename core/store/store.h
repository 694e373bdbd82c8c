// The tables as a training process sees them. There are two implementations: LocalStore (this
// process) and Client (servers). tests/parity checks that they behave the same.
//
// Thread-safe: any thread may call any function at any time.
// Every call ends within `timeout_s`, or fails with kDeadlineExceeded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "status/status.h"
#include "store/round_member.h"
#include "table/table_set.h"

namespace sparsefleet {

// Numbers by name, e.g. "table.ads.rows" -> 12; one map per server.
using StatMap = std::map<std::string, double>;

// Rows as of one moment per server, returned server by server. A cut that clears dirty bits does so
// when Next() has reported the end of the last server's rows; closed before that, it clears none.
class StoreCut {
 public:
  virtual ~StoreCut() = default;
  // See TableCut::Next. After an error the cut is closed.
  virtual Result<bool> Next(std::size_t max_rows, RowBatch& out) = 0;
  // See TableCut::Removed; kInvalidArgument if the table is on servers.
  virtual Result<std::vector<Key>> Removed() {
    return Status(Code::kInvalidArgument,
                  "removed keys are only known on the server that holds the table");
  }
  // See TableCut::Commit, for a cut opened with CutCommit::kExplicit; may be called again.
  // kInvalidArgument before the cut's end, and for other cuts.
  virtual Status Commit() {
    return {Code::kInvalidArgument, "this cut commits automatically at its end"};
  }
};

// When a cut clears dirty bits.
enum class CutCommit : std::uint8_t {
  kAtEnd,     // when Next() has reported the end
  kExplicit,  // on StoreCut::Commit(), once what was read is safe
};

// The shape of a table.
struct TableInfo {
  bool dense = false;
  std::uint64_t size = 0;  // dense: elements; sparse: rows now
  std::uint32_t dim = 0;   // sparse
  std::uint32_t state_dim = 0;
  std::uint32_t counter_dim = 0;  // sparse
  NonFinitePolicy non_finite = NonFinitePolicy::kRejectRow;
  std::uint64_t min_block_size = 0;  // dense
};

class Store {
 public:
  virtual ~Store() = default;

  virtual std::uint32_t num_servers() const = 0;  // LocalStore: 1

  virtual Status Define(const SparseSpec& spec, double timeout_s) = 0;
  virtual Status Define(const DenseSpec& spec, double timeout_s) = 0;
  virtual Result<TableInfo> Info(std::string_view table, double timeout_s) = 0;

  // Sends one request per server with all sections. Dense sections refer to the whole array,
  // however it is divided among servers.
  virtual Status Pull(std::span<const PullSection> sections, PullMode mode, std::uint64_t step,
                      double timeout_s) = 0;
  // Returns once every server has applied its part. Applied exactly once, even if the call was
  // retried.
  virtual Result<PushResult> Push(std::span<const PushSection> sections, std::uint64_t step,
                                  double timeout_s) = 0;
  virtual Status WriteDense(std::string_view table, std::span<const float> values,
                            double timeout_s) = 0;
  // `at` is a count: a server that already has a rate with a larger count ignores this one.
  virtual Status SetLearningRate(std::string_view table, double learning_rate,
                                 std::optional<std::uint64_t> at, double timeout_s) = 0;

  // Like Push, but the gradients wait for those of the other members for this round. Their sum in
  // order of rank, divided by the number of members that sent some, is applied as one push, and all
  // members get its result. Errors: see Rounds in store/rounds.h. A server that some members did
  // not reach in time has not applied the round; other servers may have.
  virtual Result<PushResult> PushRound(const RoundMember& member, std::uint64_t round,
                                       std::span<const PushSection> sections, std::uint64_t step,
                                       double timeout_s) = 0;
  // Reports a member's count; returns the sum over all members. With `bound`, first waits until no
  // member that has not left is below clock - bound. A clock of 0 without bound joins the group:
  // from then on every server knows the member and notices its loss, even before its first round.
  virtual Result<std::uint64_t> AdvanceClock(const RoundMember& member, std::uint64_t clock,
                                             std::optional<std::uint64_t> bound,
                                             double timeout_s) = 0;
  // The member takes part in no later round or clock. Calling it again, with no round or clock of
  // this store in between, does nothing. When all have left, the group may start over.
  virtual Status LeaveGroup(const RoundMember& member, double timeout_s) = 0;

  // The lowest version of the table among the servers: the number of pushes applied.
  virtual Result<std::uint64_t> Version(std::string_view table, double timeout_s) = 0;
  // Returns when every server's version of the table is >= at_least.
  virtual Status WaitVersion(std::string_view table, std::uint64_t at_least, double timeout_s) = 0;

  // Returns when `members` calls with this name have arrived; then the name is free again. A
  // timeout reports how many arrived and who; the others keep waiting.
  virtual Status Barrier(std::string_view name, std::uint32_t members, double timeout_s) = 0;

  // Small notes for rendezvous, kept by the first server. Values up to 64 KiB.
  virtual Status PutNote(std::string_view key, std::string_view value, double timeout_s) = 0;
  // `wait`: until the note exists or the deadline passes; otherwise kNotFound immediately.
  virtual Result<std::string> GetNote(std::string_view key, bool wait, double timeout_s) = 0;
  // Returns the notes among these that exist, with one request.
  virtual Result<std::vector<std::optional<std::string>>> GetNotes(
      std::span<const std::string_view> keys, double timeout_s) = 0;
  virtual Status DeleteNote(std::string_view key, double timeout_s) = 0;

  virtual Result<std::vector<StatMap>> Stats(double timeout_s) = 0;

  virtual Result<std::uint64_t> Shrink(std::string_view table, std::uint64_t step,
                                       double timeout_s) = 0;
  virtual Result<std::uint64_t> Erase(std::string_view table, std::span<const Key> keys,
                                      double timeout_s) = 0;
  virtual Result<std::unique_ptr<StoreCut>> OpenCut(std::string_view table, bool only_dirty,
                                                    bool clear_dirty, double timeout_s) = 0;
  virtual Status Import(std::string_view table, const RowBatch& rows, double timeout_s) = 0;

  // From now on the keys changed by anyone's pushes and imports are recorded for this store.
  // Idempotent.
  virtual Status WatchChanges(std::string_view table, double timeout_s) = 0;
  // Returns the rows that have changed and were not returned since, with their current values;
  // removed rows are omitted. Values only: state and counters are empty. Each call of Next() has
  // `timeout_s`; rows lost to a failed or abandoned call are returned by the next TakeChanges().
  virtual Result<std::unique_ptr<StoreCut>> TakeChanges(std::string_view table,
                                                        double timeout_s) = 0;

  // Passes `name` (1 to 255 bytes) and `body` to the program running a server, exactly once, even
  // if the call was retried, and returns its answer or its error.
  virtual Result<std::vector<std::byte>> Command(std::uint32_t server, std::string_view name,
                                                 std::span<const std::byte> body,
                                                 double timeout_s) = 0;

  // Returns, by server, the data of the pushes applied for this client's session, in order of
  // stream.
  virtual Result<std::vector<std::vector<DataMark>>> AppliedData(double /*timeout_s*/) {
    return std::vector<std::vector<DataMark>>{};
  }

  // Records data that was applied in sessions of others as applied in this client's session, by
  // server: a push of the same data is then applied only where it is missing. REQUIRES: the session
  // has none of it recorded.
  virtual Status AdoptData(std::span<const std::vector<DataMark>> /*by_server*/,
                           double /*timeout_s*/) {
    return {Code::kInvalidArgument, "a store without servers does not track applied data"};
  }

  // Sets whether the session outlives this client, as if its process were killed, so that another
  // process may continue it. Ignored without a named session. Any thread.
  virtual void KeepSession(bool /*keeps*/) {}

  // Asks the servers to drain and shut down. LocalStore: does nothing.
  virtual Status Shutdown(double timeout_s) = 0;
};

}  // namespace sparsefleet
