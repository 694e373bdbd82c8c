// The state that a durable server writes to its log and recovers from it: tables, sessions, groups,
// notes, watches, and the effects of commands.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/dispatcher.h"
#include "server/journal.h"
#include "server/row_loader.h"
#include "server/session_table.h"
#include "store/coordinator.h"
#include "store/round_log.h"
#include "store/rounds.h"
#include "sync/mutex.h"
#include "table/table_set.h"

namespace sparsefleet {

// A recovered command that the server's program answered, or a state that it wrote.
struct RecoveredCommand {
  bool is_state = false;
  std::string name;
  std::string client;
  std::uint64_t session = 0;
  std::string body;   // of the command, or the state
  std::string reply;  // of the command
};

// Thread-safe after Recover().
class DurableState final : public RoundLog {
 public:
  struct Parts {
    TableSet& tables;
    Coordinator& coordinator;
    Rounds& rounds;
    SessionTable& sessions;
    Dispatcher& dispatcher;
  };
  DurableState(Journal& journal, Parts parts) : journal_(journal), parts_(parts) {}

  // Restores the contents of the directory, then makes all parts log their changes.
  Status Recover(std::uint64_t incarnation);
  std::vector<RecoveredCommand> TakeCommands() { return std::exchange(commands_, {}); }

  // Writes a snapshot and removes the log before it. `write_commands` must append the state of the
  // server's program, unless it is empty. One call at a time.
  Status Snapshot(const std::function<Status()>& write_commands);
  // No snapshot starts while this is held, because the tables are partly changed.
  std::unique_lock<std::mutex> HoldSnapshots() { return std::unique_lock(snapshot_mutex_); }

  Status AppendCommandState(const std::string& name, std::span<const std::byte> state);
  Status OnClearingCut(const std::vector<std::string>& tables);

  // The request with which the calling thread changes a group: logged with the first change.
  class Cause {
   public:
    explicit Cause(const RequestHead& head) { current_ = &head; }
    ~Cause() { current_ = nullptr; }
    Cause(const Cause&) = delete;
    static const RequestHead* Take() { return std::exchange(current_, nullptr); }

   private:
    static inline thread_local const RequestHead* current_ = nullptr;
  };

  // RoundLog.
  void OnMember(const GroupMember& member) override;
  void OnGroupGone(const std::string& group) override;
  Status OnBarrier(std::span<const std::pair<std::uint64_t, std::uint64_t>> members) override;
  Result<PushResult> Apply(const std::string& group, std::uint64_t round,
                           std::span<const Contribution* const> contributions,
                           std::span<const PushSection> merged, std::uint64_t step) override;

 private:
  // durable_recovery.cc
  Status Visit(const Record& record);
  Status Replay(const RequestHead& head, std::span<const std::byte> body);
  Status ReplayPush(std::span<const std::byte> payload);
  Status ReplayRound(std::span<const std::byte> payload);
  Status ReplayBirths(std::span<const std::byte> payload);
  Status ReplayErased(std::span<const std::byte> payload);
  Status ReplayShrunk(std::span<const std::byte> payload);
  Status ReplayMember(std::span<const std::byte> payload);
  Status ReplayCommand(std::span<const std::byte> payload, bool is_state);
  Status RestoreSession(std::span<const std::byte> payload);
  Status RestoreSparse(std::span<const std::byte> payload);
  Status RestoreRows(std::span<const std::byte> payload);
  Status RestoreWords(std::span<const std::byte> payload);
  Status RestoreDense(std::span<const std::byte> payload);
  Status RestoreWatch(std::span<const std::byte> payload);
  void MarkAnswered(const RequestHead& head, Reply reply);
  // durable_snapshot.cc
  Status WriteTables(SnapshotWriter& to, std::map<std::string, AnyCut>& cuts,
                     const std::map<std::string, TableSet::Meta>& metas);
  Status WriteSparse(SnapshotWriter& to, const std::string& name, TableCut& cut,
                     const TableSet::Meta& meta);

  Journal& journal_;
  const Parts parts_;
  std::mutex snapshot_mutex_;
  Mutex rounds_mutex_;
  std::map<std::string, std::uint64_t> applied_rounds_;  // the last of each group
  std::vector<RecoveredCommand> commands_;
  RowLoader* loader_ = nullptr;  // during Recover()
};

// Bodies of records; docs/log_format.md.
Body EncodeSession(Session& session, bool with_replies);
// Logs that the keys removed from a table are kept from now on, and has it keep them: a snapshot
// then knows of it too.
Status LogRemovals(Journal& journal, SparseTable& table);
Body EncodeMember(const GroupMember& member, const RequestHead* cause);

}  // namespace sparsefleet
