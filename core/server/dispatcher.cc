#include "server/dispatcher.h"

#include <cstring>
#include <new>
#include <utility>

#include "server/durable_state.h"
#include "store/table_views.h"
#include "table/pinned_seconds.h"

namespace sparsefleet {
namespace {

// A body up to this size is copied if it must be kept: its buffer may be much larger, and the
// connection reuses it.
constexpr std::size_t kCopiedBytes = 64 << 10;

// Sequences that a process skips when it takes a session over: requests of the process before that
// are still on their way are below the first of its own, and are refused.
constexpr std::uint64_t kTakeOverGap = 65536;

Status CheckEmpty(std::span<const std::byte> body, const char* what) {
  return BodyReader(body).Finish(what);
}

// Requests that change state immediately, on their own, and the same way when replayed: they are
// logged verbatim.
bool IsLoggedWhole(MessageType type) {
  switch (type) {
    case MessageType::kDefineSparse:
    case MessageType::kDefineDense:
    case MessageType::kWriteDense:
    case MessageType::kSetLearningRate:
    case MessageType::kPutNote:
    case MessageType::kDeleteNote:
    case MessageType::kErase:
    case MessageType::kImport:
    case MessageType::kWatchChanges:
      return true;
    default:
      return false;
  }
}

// Requests that would add to the log. Pulls decide by their mode.
bool IsRefusedWhenFull(MessageType type) {
  return IsRecorded(type) || type == MessageType::kResume;
}

}  // namespace

Dispatcher::Dispatcher(DispatcherOptions options, DispatcherHooks hooks, TableSet& tables,
                       Coordinator& coordinator, Rounds& rounds, CommandQueue& commands,
                       SessionTable& sessions)
    : options_(std::move(options)),
      hooks_(std::move(hooks)),
      incarnation_(options_.incarnation),
      tables_(tables),
      coordinator_(coordinator),
      rounds_(rounds),
      commands_(commands),
      sessions_(sessions),
      out_of_memory_(Reply::From(Status(Code::kTooLarge, "the server is out of memory"))) {}

Result<Dispatcher::Greeting> Dispatcher::Hello(std::span<const std::byte> body,
                                               const std::string& address) {
  auto hello = DecodeHelloRequest(body);
  if (!hello.ok()) return hello.status();
  const HelloRequest& request = hello.value();
  const std::string self = "this is server " + std::to_string(options_.index) + " of " +
                           std::to_string(options_.num_servers);
  if (request.num_servers != options_.num_servers) {
    return Status(
        Code::kInvalidArgument,
        "the client expects " + std::to_string(request.num_servers) + " servers, but " + self);
  }
  if (request.server_index != options_.index) {
    return Status(
        Code::kInvalidArgument,
        "the client expects server " + std::to_string(request.server_index) + ", but " + self);
  }
  if (draining_) return Status(Code::kShuttingDown, self + " and it is shutting down");
  auto joined = sessions_.Join(request, address, std::chrono::steady_clock::now());
  if (joined.is_new && journal_ != nullptr) {
    Status s = journal_->Append(LogRecord::kSession, EncodeSession(*joined.session, false));
    if (!s.ok()) return s;
  }
  if (joined.was_lost) hooks_.log(0, joined.session->Describe() + " is back");
  HelloReply reply;
  reply.incarnation = incarnation_;
  reply.max_frame_bytes = options_.max_frame_bytes;
  reply.peer_timeout_s = options_.peer_timeout_s;
  reply.session = joined.session->number();
  return Greeting{std::move(joined.session), Encode(reply)};
}

Status Dispatcher::Handle(const std::shared_ptr<Session>& session, std::span<const std::byte> body,
                          const ReplyTo& to, const TakeBody& take_body) {
  const FrameHeader& request = to.request;
  const auto begun = std::chrono::steady_clock::now();
  const RequestTimes::Busy busy(times_);
  session->Touch(begun);
  if (request.flags != 0) {
    const Status status(Code::kProtocol, std::string(MessageName(request.type)) +
                                             ": got a reply, expected a request");
    to.Send(Reply::From(status));
    return status;
  }
  if (request.acked_below > 0) {
    session->replies(request.type).Acknowledge(request.acked_below);
    if (WindowOf(request.type) == Window::kMeeting) {
      coordinator_.Withdraw(session->id(), request.acked_below);
      rounds_.Withdraw(session->id(), request.acked_below);
    }
  }
  // Before it is recorded: a retry runs once there is space.
  if (IsRefusedWhenFull(request.type) && journal_ != nullptr && journal_->is_full()) {
    to.Send(Reply::From(journal_->FullStatus()));
    return Status::Ok();
  }
  if (IsRecorded(request.type)) {
    const auto verdict = session->replies(request.type).Begin(to);
    switch (verdict.kind) {
      case ReplyMemory::Verdict::Kind::kInProgress:
        return Status::Ok();
      case ReplyMemory::Verdict::Kind::kAnswered:
        if (journal_ != nullptr) journal_->duplicates_dropped.fetch_add(1);
        Deliver(to, verdict.reply);
        return Status::Ok();
      case ReplyMemory::Verdict::Kind::kRebuild:
        if (journal_ != nullptr) journal_->duplicates_dropped.fetch_add(1);
        Deliver(to,
                Reply::From(RebuildPush({session, body, to, take_body, begun}, verdict.pushed)));
        return Status::Ok();
      case ReplyMemory::Verdict::Kind::kRefused:
        to.Send(Reply::From(verdict.status));
        return verdict.status.code() == Code::kProtocol ? verdict.status : Status::Ok();
      case ReplyMemory::Verdict::Kind::kRun:
        break;
    }
  }
  const Call call{session, body, to, take_body, begun};
  std::shared_lock<std::shared_mutex> logged;  // until the reply is remembered
  Answer answer;
  try {
    answer = journal_ != nullptr && IsLoggedWhole(request.type) && !draining_
                 ? RunLogged(call, logged)
                 : Run(call);
  } catch (const std::bad_alloc&) {
    SendReply(*session, to, out_of_memory_);
    return Status::Ok();
  }
  if (!answer) return Status::Ok();
  SendAnswer(*session, to, *answer);
  times_.Record(request.type, begun);
  return answer->status().code() == Code::kProtocol ? answer->status() : Status::Ok();
}

void Dispatcher::SetJournal(Journal* journal) {
  journal_ = journal;
  if (journal != nullptr) incarnation_ = journal->incarnation();
}

RequestHead Dispatcher::HeadOf(const Call& call) {
  RequestHead head;
  head.client_id = call.session->id();
  head.sequence = call.to.request.sequence;
  head.acked_below = call.to.request.acked_below;
  head.seconds = PinnedSeconds::Now();
  head.type = static_cast<std::uint8_t>(call.to.request.type);
  return head;
}

Dispatcher::Answer Dispatcher::RunLogged(const Call& call,
                                         std::shared_lock<std::shared_mutex>& logged) {
  logged = journal_->Enter();
  const RequestHead head = HeadOf(call);
  const PinnedSeconds pinned(head.seconds);
  const iovec body{const_cast<std::byte*>(call.body.data()), call.body.size()};
  if (Status s = journal_->Append(LogRecord::kRequest, head, {&body, 1}); !s.ok()) return s;
  return RunHandler(call, HandlerOf(call.to.request.type));
}

void Dispatcher::Deliver(const ReplyTo& to, const Reply& reply) const {
  // A process that takes over skips data that is reported as applied, so that must be durable.
  const bool waits = to.request.sequence > 0 || to.request.type == MessageType::kResume;
  if (journal_ == nullptr || !waits) return to.Send(reply);
  journal_->WhenDurable([to, reply] { to.Send(reply); });
}

void Dispatcher::SendReply(Session& session, const ReplyTo& to, const Reply& reply) const {
  if (to.request.sequence > 0) {
    Deliver(session.replies(to.request.type).Finish(to.request.sequence, reply), reply);
  } else {
    Deliver(to, reply);
  }
}

void Dispatcher::SendAnswer(Session& session, const ReplyTo& to,
                            const Result<ReplyBody>& result) const {
  Reply reply;
  try {
    reply = Reply::From(result);
  } catch (const std::bad_alloc&) {
    reply = out_of_memory_;
  }
  SendReply(session, to, reply);
}

Dispatcher::Answer Dispatcher::Run(const Call& call) {
  const MessageType type = call.to.request.type;
  if (draining_ && type != MessageType::kHeartbeat && type != MessageType::kGoodbye) {
    return Status(Code::kShuttingDown,
                  std::string(MessageName(type)) + ": the server is shutting down");
  }
  const Handler handler = HandlerOf(type);
  if (handler == nullptr) {
    return Status(Code::kProtocol,
                  std::string(MessageName(type)) + ": unexpected on this connection");
  }
  return RunHandler(call, handler);
}

Dispatcher::Answer Dispatcher::RunHandler(const Call& call, Handler handler) {
  const MessageType type = call.to.request.type;
  // The boundary where a failing request is contained, so that it does not bring down the server.
  try {
    return (this->*handler)(call);
  } catch (const std::bad_alloc&) {
    return Status(Code::kTooLarge,
                  std::string(MessageName(type)) + ": the server is out of memory");
  } catch (const std::exception& error) {
    return Status(Code::kInternal, std::string(MessageName(type)) + ": " + error.what());
  }
}

Dispatcher::Finish Dispatcher::Finisher(const Call& call) const {
  return [this, session = call.session, to = call.to,
          begun = call.begun](const Result<ReplyBody>& result) {
    SendAnswer(*session, to, result);
    times_.Record(to.request.type, begun);
  };
}

Dispatcher::Answer Dispatcher::RunAsJob(const Call& call, std::function<Result<ReplyBody>()> work) {
  hooks_.run_job(
      [finish = Finisher(call), work = std::move(work), stop = cancel_jobs_.get_token()] {
        try {
          if (stop.stop_requested()) {
            return finish(Status(Code::kShuttingDown, "the server is shutting down"));
          }
          finish(work());
        } catch (const std::bad_alloc&) {
          finish(Status(Code::kTooLarge, "out of memory"));  // short enough to need no allocation
        } catch (const std::exception& error) {
          finish(Status(Code::kInternal, error.what()));
        }
      });
  return std::nullopt;
}

Coordinator::TimePoint Dispatcher::BeginWait(const Call& call) const {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(call.to.request.timeout_ms);
}

std::unique_ptr<std::byte[]> Dispatcher::KeepBody(const Call& call) {
  if (call.take_body && call.body.size() > kCopiedBytes) return call.take_body();
  auto memory = std::make_unique_for_overwrite<std::byte[]>(call.body.size());
  if (!call.body.empty()) std::memcpy(memory.get(), call.body.data(), call.body.size());
  return memory;
}

Rounds::Caller Dispatcher::CallerOf(const Call& call) const {
  return {call.session->owner(), call.to.request.sequence, BeginWait(call), call.session->began()};
}

Dispatcher::Handler Dispatcher::HandlerOf(MessageType type) {
  switch (type) {
    case MessageType::kHello:
    case MessageType::kLane:  // handled by the connection
      return nullptr;
    case MessageType::kHeartbeat:
      return &Dispatcher::Heartbeat;
    case MessageType::kGoodbye:
      return &Dispatcher::Goodbye;
    case MessageType::kResume:
      return &Dispatcher::Resume;
    case MessageType::kDefineSparse:
      return &Dispatcher::DefineSparse;
    case MessageType::kDefineDense:
      return &Dispatcher::DefineDense;
    case MessageType::kTableInfo:
      return &Dispatcher::Info;
    case MessageType::kPull:
      return &Dispatcher::Pull;
    case MessageType::kPush:
      return &Dispatcher::Push;
    case MessageType::kWriteDense:
      return &Dispatcher::WriteDense;
    case MessageType::kSetLearningRate:
      return &Dispatcher::SetLearningRate;
    case MessageType::kPushRound:
      return &Dispatcher::PushRound;
    case MessageType::kVersion:
      return &Dispatcher::Version;
    case MessageType::kWaitVersion:
      return &Dispatcher::WaitVersion;
    case MessageType::kBarrier:
      return &Dispatcher::Barrier;
    case MessageType::kPutNote:
      return &Dispatcher::PutNote;
    case MessageType::kGetNote:
      return &Dispatcher::GetNote;
    case MessageType::kDeleteNote:
      return &Dispatcher::DeleteNote;
    case MessageType::kGetNotes:
      return &Dispatcher::GetNotes;
    case MessageType::kAdvanceClock:
      return &Dispatcher::AdvanceClock;
    case MessageType::kLeaveGroup:
      return &Dispatcher::LeaveGroup;
    case MessageType::kStats:
      return &Dispatcher::Stats;
    case MessageType::kShrink:
      return &Dispatcher::Shrink;
    case MessageType::kErase:
      return &Dispatcher::Erase;
    case MessageType::kOpenCut:
      return &Dispatcher::OpenCut;
    case MessageType::kNextCut:
      return &Dispatcher::NextCut;
    case MessageType::kCloseCut:
      return &Dispatcher::CloseCut;
    case MessageType::kImport:
      return &Dispatcher::Import;
    case MessageType::kWatchChanges:
      return &Dispatcher::WatchChanges;
    case MessageType::kTakeChanges:
      return &Dispatcher::TakeChanges;
    case MessageType::kShutdown:
      return &Dispatcher::Shutdown;
    case MessageType::kCommand:
      return &Dispatcher::TakeCommand;
    case MessageType::kReplicaOpen:
    case MessageType::kReplicaAppend:
    case MessageType::kReplicaSnapshot:
    case MessageType::kReplicaRead:
      return &Dispatcher::Replicate;
  }
  return nullptr;
}

Dispatcher::Answer Dispatcher::Heartbeat(const Call& call) {
  if (Status s = CheckEmpty(call.body, "heartbeat"); !s.ok()) return s;
  return ReplyBody();
}

Dispatcher::Answer Dispatcher::Goodbye(const Call& call) {
  if (Status s = CheckEmpty(call.body, "goodbye"); !s.ok()) return s;
  sessions_.End(*call.session);
  if (journal_ != nullptr) {
    Status s = journal_->Append(LogRecord::kSessionEnd, EncodeNumber(call.session->id()));
    if (!s.ok()) return s;
  }
  call.session->DropHoldings();
  coordinator_.ForgetOwner(call.session->id());
  rounds_.ForgetOwner(call.session->id());
  return ReplyBody();
}

Dispatcher::Answer Dispatcher::Resume(const Call& call) {
  auto request = DecodeResumeRequest(call.body);
  if (!request.ok()) return request.status();
  Session& session = *call.session;
  ResumeReply reply;
  const std::uint64_t gap = request.value().take_over ? kTakeOverGap : 0;
  for (std::size_t window = 0; window < kNumWindows; ++window) {
    reply.next_sequence[window] =
        session.replies(static_cast<Window>(window)).next_sequence() + gap;
  }
  reply.marks = session.Marks();
  if (request.value().take_over) {
    for (std::size_t window = 0; window < kNumWindows; ++window) {
      session.replies(static_cast<Window>(window)).Acknowledge(reply.next_sequence[window]);
    }
    const auto next = reply.next_sequence[static_cast<std::size_t>(Window::kMeeting)];
    coordinator_.Withdraw(session.id(), next);
    rounds_.Withdraw(session.id(), next);
    session.DropHoldings();
    session.SetGrace(request.value().grace_s);
    if (journal_ != nullptr) {
      Status s = journal_->Append(LogRecord::kSession, EncodeSession(session, false));
      if (!s.ok()) return s;
    }
  }
  return ReplyBody(Encode(reply));
}

Dispatcher::Answer Dispatcher::Stats(const Call& call) {
  if (Status s = CheckEmpty(call.body, "stats"); !s.ok()) return s;
  StatMap stats;
  hooks_.add_stats(stats);
  AddTableStats(tables_, stats);
  return ReplyBody(Encode(stats));
}

Dispatcher::Answer Dispatcher::Shutdown(const Call& call) {
  if (Status s = CheckEmpty(call.body, "shutdown"); !s.ok()) return s;
  hooks_.log(0, call.session->Describe() + " requested shutdown");
  hooks_.on_shutdown_request();
  return ReplyBody();
}

Dispatcher::Answer Dispatcher::Replicate(const Call& call) {
  if (replicas_ == nullptr) {
    return Status(Code::kInvalidArgument,
                  "this server holds no replicas: start one with `sparsefleet replica`");
  }
  auto reply = replicas_->Handle(call.to.request.type, call.body);
  if (!reply.ok()) return reply.status();
  return ReplyBody(std::move(reply).value());
}

}  // namespace sparsefleet
