// From a request to its reply: decodes, checks, acts on the tables, answers.
// Knows no sockets, so that a test can feed it any bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

#include "server/command_queue.h"
#include "server/reply.h"
#include "server/server_counters.h"
#include "server/session_table.h"
#include "store/coordinator.h"
#include "store/rounds.h"
#include "table/table_set.h"
#include "transport/frame.h"

namespace sparsefleet {

struct DispatcherOptions {
  std::uint32_t index = 0;
  std::uint32_t num_servers = 1;
  std::uint64_t incarnation = 0;
  std::uint64_t max_frame_bytes = 256ull << 20;
  std::uint64_t max_dense_bytes = UINT64_MAX;  // of all dense tables with their state
  double peer_timeout_s = 10.0;
};

// What the dispatcher asks of the server around it. All must be set.
struct DispatcherHooks {
  std::function<void(std::function<void()>)> run_job;   // for what may take long
  std::function<void(Coordinator::TimePoint)> on_wait;  // a wait with this deadline began
  std::function<void()> on_shutdown_request;
  std::function<void(StatMap&)> add_stats;  // the server's own figures
  std::function<void(int severity, const std::string&)> log;
};

// Thread-safe.
class Dispatcher {
 public:
  Dispatcher(DispatcherOptions options, DispatcherHooks hooks, TableSet& tables,
             Coordinator& coordinator, Rounds& rounds, CommandQueue& commands,
             SessionTable& sessions);

  // The first request of a connection. On success the reply's body and the client's session.
  struct Greeting {
    std::shared_ptr<Session> session;
    ReplyBody body;
  };
  Result<Greeting> Hello(std::span<const std::byte> body, const std::string& address);

  // Any later request. The reply goes to `to`, before the return or later. `body` is not used
  // after the return; REQUIRES: aligned to 8 bytes.
  // Not ok (kProtocol) if the peer does not keep to the protocol: the connection is to
  // be closed after the (error) reply.
  // `take_body`, if there is one, hands over the memory of `body`: for what is kept for long.
  using TakeBody = std::function<std::unique_ptr<std::byte[]>()>;
  Status Handle(const std::shared_ptr<Session>& session, std::span<const std::byte> body,
                const ReplyTo& to, const TakeBody& take_body = {});

  // From now on new work is refused with kShuttingDown.
  void Drain() { draining_ = true; }
  // Jobs under way and those that wait end soon, with kShuttingDown.
  void GiveUpJobs() { give_up_jobs_.request_stop(); }

 private:
  struct Call {
    const std::shared_ptr<Session>& session;
    std::span<const std::byte> body;
    const ReplyTo& to;
    const TakeBody& take_body;
  };
  // Nothing: the reply comes later, through Finisher().
  using Answer = std::optional<Result<ReplyBody>>;
  using Handler = Answer (Dispatcher::*)(const Call&);
  using Finish = std::function<void(Result<ReplyBody>)>;

  static Handler HandlerOf(MessageType type);
  Answer Run(const Call& call);
  Finish Finisher(const Call& call) const;
  // To the newest try of the request, and into the memory of replies. Neither takes memory before
  // the request is finished there: else it would be in progress for ever.
  static void SendReply(Session& session, const ReplyTo& to, const Reply& reply);
  void SendAnswer(Session& session, const ReplyTo& to, const Result<ReplyBody>& result) const;
  // Runs `work` as a job and answers with what it returns.
  Answer RunAsJob(const Call& call, std::function<Result<ReplyBody>()> work);
  Coordinator::TimePoint BeginWait(const Call& call) const;
  Rounds::Caller CallerOf(const Call& call) const;
  // The body, to be kept beyond the return of Handle(): at another place or the same.
  static std::unique_ptr<std::byte[]> KeepBody(const Call& call);
  // The sections of a push that bring values, whose rows are as wide as the tables'.
  Result<std::vector<PushSection>> CheckedSections(const PushRequest& request) const;
  // What is wanted after a push: the reply, but for the numbers that begin it and the rows.
  struct PushAnswer {
    ReplyBody body;
    std::span<std::byte> head;
    std::vector<PullSection> rows;  // their place in the body
    DenseReads values;
  };
  Result<PushAnswer> BeginPushAnswer(const PushRequest& request) const;
  // After the push. REQUIRES: the keys of the request are still there.
  Result<ReplyBody> FinishPushAnswer(PushAnswer& answer, const PushResult& result,
                                     std::uint64_t step) const;

  // dispatcher.cc
  Answer Heartbeat(const Call& call);
  Answer Goodbye(const Call& call);
  Answer Stats(const Call& call);
  Answer Shutdown(const Call& call);
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
  TableSet& tables_;
  Coordinator& coordinator_;
  Rounds& rounds_;
  CommandQueue& commands_;
  SessionTable& sessions_;
  const Reply out_of_memory_;  // made while there is some
  std::atomic<bool> draining_{false};
  std::mutex define_dense_mutex_;
  std::stop_source give_up_jobs_;
};

}  // namespace sparsefleet
