// Turns a request into its reply: decodes it, checks it, acts on the tables, answers.
// Independent of sockets, so that a test can feed it any bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <stop_token>
#include <string>

#include "replica/replica_store.h"
#include "server/command_queue.h"
#include "server/journal.h"
#include "server/reply.h"
#include "server/request_times.h"
#include "server/server_counters.h"
#include "server/session_table.h"
#include "store/coordinator.h"
#include "store/rounds.h"
#include "sync/mutex.h"
#include "table/table_set.h"
#include "transport/frame.h"

namespace sparsefleet {

struct DispatcherOptions {
  std::uint32_t index = 0;
  std::uint32_t num_servers = 1;
  std::uint64_t incarnation = 0;
  std::uint64_t max_frame_bytes = 256ull << 20;
  std::uint64_t max_dense_bytes = UINT64_MAX;  // all dense tables with their optimizer state
  double peer_timeout_s = 10.0;
  // Commands whose names start with this are logged with their replies.
  std::vector<std::string> logged_commands;
};

// Callbacks into the server. All must be set.
struct DispatcherHooks {
  std::function<void(std::function<void()>)> run_job;   // runs long work off the request threads
  std::function<void(Coordinator::TimePoint)> on_wait;  // a wait with this deadline has started
  std::function<void()> on_shutdown_request;
  std::function<void(StatMap&)> add_stats;  // adds the server's own counters
  std::function<void(int severity, const std::string&)> log;
};

// Thread-safe.
class Dispatcher {
 public:
  Dispatcher(DispatcherOptions options, DispatcherHooks hooks, TableSet& tables,
             Coordinator& coordinator, Rounds& rounds, CommandQueue& commands,
             SessionTable& sessions);

  // Handles the first request of a connection. Returns the client's session and the reply body.
  struct Greeting {
    std::shared_ptr<Session> session;
    ReplyBody body;
  };
  Result<Greeting> Hello(std::span<const std::byte> body, const std::string& address);

  // Handles any later request. The reply goes to `to`, before or after the return. `body` is not
  // used after the return; REQUIRES: aligned to 8 bytes. Returns kProtocol if the peer violates the
  // protocol: close the connection after the error reply. `take_body`, if set, transfers ownership
  // of the memory of `body`, for requests that keep it.
  using TakeBody = std::function<std::unique_ptr<std::byte[]>()>;
  Status Handle(const std::shared_ptr<Session>& session, std::span<const std::byte> body,
                const ReplyTo& to, const TakeBody& take_body = {});

  // From now on every change of state is logged, and replies wait until it is durable. Not
  // thread-safe: call before the first request.
  void SetJournal(Journal* journal);
  // Requests to a replica go there. Not thread-safe: before the first request.
  void SetReplicaStore(ReplicaStore* replicas) { replicas_ = replicas; }
  std::uint64_t incarnation() const { return incarnation_; }
  std::pair<std::uint32_t, std::uint32_t> place() const {  // index and number of servers
    return {options_.index, options_.num_servers};
  }

  RequestTimes& times() const { return times_; }

  // Rejects new work with kShuttingDown from now on.
  void Drain() { draining_ = true; }
  // Ends running and queued jobs soon, with kShuttingDown.
  void CancelJobs() { cancel_jobs_.request_stop(); }

 private:
  struct Call {
    const std::shared_ptr<Session>& session;
    std::span<const std::byte> body;
    const ReplyTo& to;
    const TakeBody& take_body;
    RequestTimes::TimePoint begun;
  };
  // Empty if the reply comes later, through Finisher().
  using Answer = std::optional<Result<ReplyBody>>;
  using Handler = Answer (Dispatcher::*)(const Call&);
  using Finish = std::function<void(Result<ReplyBody>)>;

  static Handler HandlerOf(MessageType type);
  Answer Run(const Call& call);
  Answer RunHandler(const Call& call, Handler handler);
  // Logs the request, then runs it; see Journal.
  Answer RunLogged(const Call& call, std::shared_lock<std::shared_mutex>& logged);
  static RequestHead HeadOf(const Call& call);
  // The reply to a push that was already applied.
  Result<ReplyBody> RebuildPush(const Call& call, const PushResult& result);
  Status LogPush(const Call& call, const PushRequest& request, std::uint32_t seconds);
  Result<ReplyBody> ShrinkLogged(SparseTable& table, std::uint64_t step, RequestHead head);
  Finish CommandFinisher(const Call& call, const CommandRequest& command) const;
  void Deliver(const ReplyTo& to, const Reply& reply) const;
  Finish Finisher(const Call& call) const;
  // Sends to the newest try of the request, and records the reply. Neither allocates before the
  // request is marked finished: otherwise it would stay in progress forever.
  void SendReply(Session& session, const ReplyTo& to, const Reply& reply) const;
  void SendAnswer(Session& session, const ReplyTo& to, const Result<ReplyBody>& result) const;
  // Runs `work` as a job and replies with its result.
  Answer RunAsJob(const Call& call, std::function<Result<ReplyBody>()> work);
  Coordinator::TimePoint BeginWait(const Call& call) const;
  Rounds::Caller CallerOf(const Call& call) const;
  // Keeps the body alive after Handle() returns, at the same address or another.
  static std::unique_ptr<std::byte[]> KeepBody(const Call& call);
  // The sections of a push that carry values; checks that their width matches the tables.
  Result<std::vector<PushSection>> CheckedSections(const PushRequest& request) const;
  // Where the rows of a reply are read to: into its body, or first into `wide` if they are sent in
  // 16 bits.
  struct PlacedRows {
    struct Narrowed {
      std::span<const float> from;
      std::byte* to;
    };
    std::vector<PullSection> sections;
    std::vector<Narrowed> narrowed;
    std::shared_ptr<float[]> wide;
    // Call when the sections have been read.
    void Finish() const;
  };
  static PlacedRows PlaceRows(std::span<const PullRequest::Section> pulled,
                              std::span<std::byte> body);
  // The values requested with a push: the reply, except its leading counts and the rows.
  struct PushAnswer {
    ReplyBody body;
    std::span<std::byte> head;
    PlacedRows rows;
    DenseReads values;
  };
  // Nothing if the push is new, otherwise its reply: its marks show that it was applied before.
  Answer AnswerOfMarks(const Call& call, const PushRequest& request, PushAnswer& answer);
  Result<PushAnswer> BeginPushAnswer(const PushRequest& request) const;
  // Call after the push. REQUIRES: the keys of the request are still valid.
  Result<ReplyBody> FinishPushAnswer(PushAnswer& answer, const PushResult& result,
                                     std::uint64_t step) const;

  // dispatcher.cc
  Answer Heartbeat(const Call& call);
  Answer Goodbye(const Call& call);
  Answer Resume(const Call& call);
  Answer Stats(const Call& call);
  Answer Shutdown(const Call& call);
  Answer Replicate(const Call& call);
  // dispatcher_tables.cc
  Answer DefineSparse(const Call& call);
  Answer DefineDense(const Call& call);
  Answer Info(const Call& call);
  Answer Pull(const Call& call);
  Answer Push(const Call& call);
  Answer WriteDense(const Call& call);
  Answer SetLearningRate(const Call& call);
  // dispatcher_waits.cc
  Answer Version(const Call& call);
  Answer WaitVersion(const Call& call);
  Answer Barrier(const Call& call);
  Answer PutNote(const Call& call);
  Answer GetNote(const Call& call);
  Answer DeleteNote(const Call& call);
  Answer GetNotes(const Call& call);
  Answer TakeCommand(const Call& call);
  // dispatcher_rounds.cc
  Answer PushRound(const Call& call);
  Answer AdvanceClock(const Call& call);
  Answer LeaveGroup(const Call& call);
  // dispatcher_rows.cc
  Answer Shrink(const Call& call);
  Answer Erase(const Call& call);
  Answer OpenCut(const Call& call);
  Answer NextCut(const Call& call);
  Answer CloseCut(const Call& call);
  Answer Import(const Call& call);
  Answer WatchChanges(const Call& call);
  Answer TakeChanges(const Call& call);

  const DispatcherOptions options_;
  const DispatcherHooks hooks_;
  Journal* journal_ = nullptr;
  ReplicaStore* replicas_ = nullptr;
  std::uint64_t incarnation_;
  TableSet& tables_;
  Coordinator& coordinator_;
  Rounds& rounds_;
  CommandQueue& commands_;
  SessionTable& sessions_;
  const Reply out_of_memory_;  // allocated up front
  mutable RequestTimes times_;
  std::atomic<bool> draining_{false};
  Mutex define_dense_mutex_;
  std::stop_source cancel_jobs_;
};

}  // namespace sparsefleet
