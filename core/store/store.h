// Where tables live, seen from a training process. Two kinds: LocalStore (this process)
// and Client (servers). Both behave alike; tests/parity holds them to it.
//
// Thread-safe: any thread may call any function at any time.
// Every call ends: after `timeout_s` at the latest, with kDeadlineExceeded.
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

// Numbers by name, e.g. "table.ads.rows" -> 12; one map a server.
using StatMap = std::map<std::string, double>;

// Rows as of one moment a server, handed out server by server. A cut that clears dirty bits does
// so as Next() says that the last server's rows are at their end; closed before, it clears none.
class StoreCut {
 public:
  virtual ~StoreCut() = default;
  // As TableCut::Next. After an error the cut is closed.
  virtual Result<bool> Next(std::size_t max_rows, RowBatch& out) = 0;
  // As TableCut::Removed; kInvalidArgument where the table is on servers.
  virtual Result<std::vector<Key>> Removed() {
    return Status(Code::kInvalidArgument, "removed keys are known where the table is, not here");
  }
  // As TableCut::Commit, of a cut opened with CutCommit::kExplicit; may be called again.
  // kInvalidArgument before its end, and for another cut.
  virtual Status Commit() {
    return {Code::kInvalidArgument, "this cut commits by itself, at its end"};
  }
};

// When a cut that clears does so.
enum class CutCommit : std::uint8_t {
  kAtEnd,     // when Next() has said that there are no more rows
  kExplicit,  // with StoreCut::Commit(), when what was read is safe
};

// What a table looks like from outside.
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

  // One request a server, all sections in it. Dense sections speak of the whole array,
  // however it is dealt over servers.
  virtual Status Pull(std::span<const PullSection> sections, PullMode mode, std::uint64_t step,
                      double timeout_s) = 0;
  // Finished when every server has applied its part. Applied exactly once, also where
  // the call had to be retried.
  virtual Result<PushResult> Push(std::span<const PushSection> sections, std::uint64_t step,
                                  double timeout_s) = 0;
  virtual Status WriteDense(std::string_view table, std::span<const float> values,
                            double timeout_s) = 0;
  // With `at`, a count: ignored by a server that has taken a rate with a larger one.
  virtual Status SetLearningRate(std::string_view table, double learning_rate,
                                 std::optional<std::uint64_t> at, double timeout_s) = 0;

  // As Push, but the gradients wait for those of the other members for this round; what is
  // applied is their sum in order of rank, times one over the number of members that brought some,
  // as one push. All members get its result. Errors: see Rounds in store/rounds.h. A server
  // that was not reached by all in time has not applied the round; others may have.
  virtual Result<PushResult> PushRound(const RoundMember& member, std::uint64_t round,
                                       std::span<const PushSection> sections, std::uint64_t step,
                                       double timeout_s) = 0;
  // Reports a member's count; returns the sum over all members. With `bound`, first waits until
  // no member that has not left is below clock - bound. A clock of 0 without bound lets the member
  // join: from then on every server knows it, and so notices its loss before its first round.
  virtual Result<std::uint64_t> AdvanceClock(const RoundMember& member, std::uint64_t clock,
                                             std::optional<std::uint64_t> bound,
                                             double timeout_s) = 0;
  // The member takes part in no later round or clock. A second time, with no round or clock of
  // this store's between, does nothing. When all have left, the group may begin anew.
  virtual Status LeaveGroup(const RoundMember& member, double timeout_s) = 0;

  // The lowest version of the table over the servers: pushes applied so far.
  virtual Result<std::uint64_t> Version(std::string_view table, double timeout_s) = 0;
  // Returns when every server's version of the table is >= at_least.
  virtual Status WaitVersion(std::string_view table, std::uint64_t at_least, double timeout_s) = 0;

  // Returns when `members` calls with this name have arrived; then the name is free again.
  // A deadline tells how many arrived and who; the others' waits go on without this member.
  virtual Status Barrier(std::string_view name, std::uint32_t members, double timeout_s) = 0;

  // Small notes for rendezvous, kept by the first server. Value up to 64 KiB.
  virtual Status PutNote(std::string_view key, std::string_view value, double timeout_s) = 0;
  // `wait`: until the note is there, or the deadline; else kNotFound at once.
  virtual Result<std::string> GetNote(std::string_view key, bool wait, double timeout_s) = 0;
  virtual Status DeleteNote(std::string_view key, double timeout_s) = 0;

  virtual Result<std::vector<StatMap>> Stats(double timeout_s) = 0;

  virtual Result<std::uint64_t> Shrink(std::string_view table, std::uint64_t step,
                                       double timeout_s) = 0;
  virtual Result<std::uint64_t> Erase(std::string_view table, std::span<const Key> keys,
                                      double timeout_s) = 0;
  virtual Result<std::unique_ptr<StoreCut>> OpenCut(std::string_view table, bool only_dirty,
                                                    bool clear_dirty, double timeout_s) = 0;
  virtual Status Import(std::string_view table, const RowBatch& rows, double timeout_s) = 0;

  // From now on the keys that anybody's pushes and imports change are kept for this store. Again:
  // nothing happens.
  virtual Status WatchChanges(std::string_view table, double timeout_s) = 0;
  // Those that have changed until now and were not handed out since, with their values as they are
  // read; without those of removed rows. Values only: state and counters are empty. Each call of
  // Next() has `timeout_s`; what a failed one should have handed out comes with the next
  // taking, as does what one given up halfway has left.
  virtual Result<std::unique_ptr<StoreCut>> TakeChanges(std::string_view table,
                                                        double timeout_s) = 0;

  // Hands `name` (1 to 255 bytes) and `body` to the program around a server, exactly once, also
  // where the call had to be retried, and returns its answer; its errors come back as they are.
  virtual Result<std::vector<std::byte>> Command(std::uint32_t server, std::string_view name,
                                                 std::span<const std::byte> body,
                                                 double timeout_s) = 0;

  // Asks the servers to drain and end. LocalStore: nothing to do.
  virtual Status Shutdown(double timeout_s) = 0;
};

}  // namespace sparsefleet
