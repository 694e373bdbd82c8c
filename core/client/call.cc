#include "client/call.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>

#include "client/restart_note.h"
#include "client/seconds.h"
#include "key/key.h"
#include "store/interrupt.h"

namespace sparsefleet {
namespace {

using TimePoint = SteadyClock::time_point;

// Servers that are restarting are contacted at least this often.
constexpr double kFailoverBackoffS = 0.2;
// How often a call checks whether the heartbeat has declared a server lost.
constexpr auto kLostCheckInterval = std::chrono::milliseconds(200);
// A long call that hears nothing for this many try_timeout_s is sent again over a new connection:
// the old one may have died silently, and the server sends the reply to the newest.
constexpr double kTriesToRenew = 2.0;
// A call that runs out of time while a launcher restarts its server waits on, a pause at a time.
constexpr auto kRestartPause = std::chrono::seconds(1);
constexpr auto kMostRestartWait = std::chrono::minutes(10);
constexpr auto kReplyMargin = std::chrono::milliseconds(200);
// A server that shuts down closes connections just like one with another key: ask again.
constexpr int kMaxAuthFailures = 4;
constexpr auto kQuietStart = std::chrono::seconds(5);
// A cause that repeats is logged this often.
constexpr auto kLogInterval = std::chrono::seconds(5);

thread_local SteadyClock::duration away_time{0};

// The state of one server's part.
struct PartState {
  ServerPart* part = nullptr;
  ServerLink* link = nullptr;
  std::unique_ptr<Connection> connection;
  bool is_reused = false;
  bool is_runnable = true;  // the socket is ready for what the connection waits for
  bool is_done = false;
  int tries = 0;
  int auth_failures = 0;
  std::uint64_t session = 0;  // that a recorded request may have reached
  TimePoint next_try;
  TimePoint began;                      // when this try started or was renewed
  std::optional<TimePoint> away_since;  // the server is unreachable, or its disk is full
  SteadyClock::duration away_before{0};
  bool may_have_run = false;  // it was sent, and the server did not reject it
  TimePoint logged;
  Status last;
};

class Call {
 public:
  Call(ClientCore& core, const CallSpec& spec, std::span<ServerPart> parts)
      : core_(core), spec_(spec), begun_(SteadyClock::now()) {
    for (auto& part : parts) {
      PartState state;
      state.part = &part;
      state.link = core.links[part.server].get();
      states_.push_back(std::move(state));
    }
    if (IsRecorded(spec.type)) sequence_ = core.SequencesOf(spec.type).Open();
  }
  ~Call() {
    away_time += Away(SteadyClock::now());
    if (sequence_ > 0) core_.SequencesOf(spec_.type).Close(sequence_);
  }
  Call(const Call&) = delete;

  Status Run();

 private:
  Status CheckSizes() const;
  void Advance(PartState& state, TimePoint now);
  void Renew(PartState& state, TimePoint now);
  void BeginTry(PartState& state, TimePoint now);
  void Send(PartState& state, TimePoint now);
  void Finish(PartState& state, TimePoint now);
  void Retry(PartState& state, const Status& cause, TimePoint now);
  void GiveUp(PartState& state, Status status);
  bool MayRetry(const PartState& state, Code code) const;
  bool Await();
  void NoteAway(PartState& state, TimePoint since) const;
  void NoteBack(PartState& state, TimePoint now) const;
  SteadyClock::duration Away(TimePoint now) const;
  TimePoint Deadline(TimePoint now) const;
  TimePoint TryDeadline(const PartState& state) const;

  std::string Where(const PartState& state) const {
    return spec_.subject + spec_.action + " " + state.link->Describe();
  }
  bool WaitsForRestart();
  std::string Restart(const PartState& state) const;
  Status TimedOut(const PartState& state) const;
  Status Lost(const PartState& state) const;
  Status Forgotten(const PartState& state) const;
  TimePoint ReplyBy(TimePoint now) const;

  ClientCore& core_;
  const CallSpec& spec_;
  const TimePoint begun_;
  std::uint64_t sequence_ = 0;
  std::vector<PartState> states_;
  std::vector<pollfd> polled_;
  Status failure_;  // the first one
  SteadyClock::duration restart_wait_{0};
};

Status Call::CheckSizes() const {
  for (const auto& state : states_) {
    const auto limit = state.link->frame_limit();
    const bool is_reply = state.part->reply_bytes > limit.bytes;
    if (!is_reply && state.part->request.bytes <= limit.bytes) continue;
    const std::uint64_t bytes = is_reply ? state.part->reply_bytes : state.part->request.bytes;
    return {Code::kTooLarge, Where(state) + ": the " + (is_reply ? "reply" : "request") +
                                 " needs " + std::to_string(bytes) + " bytes, but the " +
                                 (limit.by_server ? "server's" : "client's") +
                                 " max_frame_bytes is " + std::to_string(limit.bytes) +
                                 ": use smaller batches or raise it"};
  }
  return Status::Ok();
}

Status Call::Run() {
  if (Status s = CheckSizes(); !s.ok()) return s;
  for (;;) {
    const TimePoint now = SteadyClock::now();
    bool all_done = true;
    for (auto& state : states_) {
      if (!state.is_done) Advance(state, now);
      all_done = all_done && state.is_done;
    }
    // Requests to other servers are not abandoned halfway, unless they may take long. A round that
    // one server rejects ends on all of them: left halfway, it would block the next one.
    const bool may_leave = spec_.is_long && failure_.code() != Code::kNonFinite;
    if (all_done || (may_leave && !failure_.ok())) return failure_;
    if (Await()) {
      if (!ScopedInterrupt::IsDue()) continue;
      const auto open = std::ranges::find(states_, false, &PartState::is_done);
      return {Code::kDeadlineExceeded, Where(*open) + ": the call was interrupted"};
    }
    if (!failure_.ok()) return failure_;
    if (WaitsForRestart()) continue;
    const auto late = std::ranges::find(states_, false, &PartState::is_done);
    return TimedOut(*late);
  }
}

void Call::Advance(PartState& state, TimePoint now) {
  if (state.link->is_lost()) {
    GiveUp(state, Lost(state));
    return;
  }
  if (!state.connection) {
    if (now < state.next_try) return;
    BeginTry(state, now);
  }
  if (state.is_runnable) {
    state.is_runnable = false;
    auto whole = state.connection->Step();
    if (state.connection->is_other_session()) {
      GiveUp(state, Forgotten(state));
      return;
    }
    if (sequence_ > 0 && state.connection->is_greeted()) {
      state.session = state.connection->session();
    }
    if (state.connection->is_greeted() && state.last.code() != Code::kDiskFull) {
      NoteBack(state, now);
    }
    if (!whole.ok()) {
      Retry(state, whole.status(), now);
      return;
    }
    if (whole.value()) {
      Finish(state, now);
      return;
    }
  }
  if (now < TryDeadline(state)) return;
  if (spec_.is_long && state.connection->is_greeted()) {
    Renew(state, now);
  } else {
    Retry(state,
          Status(Code::kDeadlineExceeded,
                 "no answer within try_timeout_s = " + ShowSeconds(core_.options.try_timeout_s)),
          now);
  }
}

TimePoint Call::TryDeadline(const PartState& state) const {
  const bool waits = spec_.is_long && state.connection->is_greeted();
  return state.began + ToDuration(core_.options.try_timeout_s * (waits ? kTriesToRenew : 1.0));
}

void Call::BeginTry(PartState& state, TimePoint now) {
  state.connection = state.link->TakeIdle();
  state.is_reused = state.connection != nullptr;
  if (!state.is_reused) state.connection = state.link->OpenNew();
  ++state.tries;
  Send(state, now);
}

// The try continues over a new connection.
void Call::Renew(PartState& state, TimePoint now) {
  state.connection = state.link->OpenNew();
  state.is_reused = false;
  Send(state, now);
}

void Call::Send(PartState& state, TimePoint now) {
  state.is_runnable = true;
  state.began = now;
  FrameHeader header;
  header.type = spec_.type;
  header.request_id = core_.next_request_id.fetch_add(1, std::memory_order_relaxed);
  header.sequence = sequence_;
  header.acked_below = core_.SequencesOf(spec_.type).AckedBelow();
  state.connection->Begin(header, ReplyBy(now), state.part->request.pieces, state.part->reply,
                          state.session);
}

TimePoint Call::ReplyBy(TimePoint now) const {
  const TimePoint deadline = Deadline(now);
  if (!spec_.is_long) return deadline;
  // A server whose wait times out reports who is missing; leave time for that reply to arrive.
  return deadline - std::min<SteadyClock::duration>((deadline - now) / 10, kReplyMargin);
}

void Call::NoteAway(PartState& state, TimePoint since) const {
  // A server that never answered is not waited for: connecting has its own time limit.
  const bool counts = core_.options.failover_wait_s > 0 && state.link->was_greeted();
  if (counts && !state.away_since) state.away_since = since;
}

void Call::NoteBack(PartState& state, TimePoint now) const {
  if (!state.away_since) return;
  state.away_before += now - *state.away_since;
  state.away_since.reset();
}

SteadyClock::duration Call::Away(TimePoint now) const {
  SteadyClock::duration away{0};
  for (const auto& state : states_) {
    const auto current = state.away_since ? now - *state.away_since : SteadyClock::duration{0};
    away = std::max(away, state.away_before + current);
  }
  return std::min(away, ToDuration(core_.options.failover_wait_s));
}

TimePoint Call::Deadline(TimePoint now) const {
  return begun_ + ToDuration(spec_.timeout_s) + Away(now) + restart_wait_;
}

void Call::Finish(PartState& state, TimePoint now) {
  state.link->Heard();
  const Status outcome = state.connection->outcome();
  if (outcome.code() == Code::kDiskFull) {
    state.link->GiveBack(std::move(state.connection));
    NoteAway(state, now);
    const double wait_s = core_.options.failover_wait_s;
    if (state.away_since && now - *state.away_since < ToDuration(wait_s)) {
      Retry(state, outcome, now);
      return;
    }
    // The server executes what it had begun when its disk filled up, but answers only once that is
    // in the log.
    std::string text = Where(state) + ": " + outcome.message();
    if (wait_s > 0) text += "; waited for failover_wait_s = " + ShowSeconds(wait_s);
    text += state.may_have_run ? "; the request may or may not have run" : "; nothing was changed";
    GiveUp(state, {state.may_have_run ? Code::kDeadlineExceeded : Code::kDiskFull, text});
    return;
  }
  state.is_done = true;
  // The server closes the connection after these.
  const bool hangs_up = outcome.code() == Code::kProtocol || outcome.code() == Code::kTooLarge;
  if (!hangs_up) state.link->GiveBack(std::move(state.connection));
  state.connection.reset();
  if (outcome.code() == Code::kAnswerLost && spec_.may_lose_answers) {
    state.part->is_answer_lost = true;
    core_.Log(1, Where(state) + ": " + outcome.message());
    return;
  }
  if (!outcome.ok()) GiveUp(state, outcome.WithPrefix(Where(state) + ": "));
}

bool Call::MayRetry(const PartState& state, Code code) const {
  if (!failure_.ok()) return false;
  if (code == Code::kAuthFailed) {
    return state.link->was_greeted() || state.auth_failures < kMaxAuthFailures;
  }
  return code == Code::kPeerLost || code == Code::kDeadlineExceeded || code == Code::kIo ||
         code == Code::kDiskFull;
}

void Call::Retry(PartState& state, const Status& cause, TimePoint now) {
  state.connection.reset();
  if (state.is_reused && cause.code() == Code::kPeerLost) {
    // It broke while idle, and the other idle ones probably did too: this does not count as a try.
    state.link->CloseIdle();
    --state.tries;
    state.next_try = now;
    return;
  }
  const bool is_new = state.last.code() != cause.code();
  state.last = cause;
  if (cause.code() != Code::kDiskFull) {
    state.may_have_run = state.may_have_run || state.session != 0;
    state.link->LookUpAgain();
    NoteAway(state, cause.code() == Code::kDeadlineExceeded ? state.began : now);
  }
  if (cause.code() == Code::kAuthFailed) ++state.auth_failures;
  if (!MayRetry(state, cause.code())) {
    GiveUp(state, cause.WithPrefix(Where(state) + ": "));
    return;
  }
  const ClientOptions& options = core_.options;
  const double longest =
      std::min(options.failover_wait_s > 0 ? std::min(kFailoverBackoffS, options.max_backoff_s)
                                           : options.max_backoff_s,
               options.first_backoff_s * static_cast<double>(1u << std::min(state.tries - 1, 30)));
  // Half of it is random, so that clients cut off together do not come back together.
  const double chance = static_cast<double>(Mix64(core_.next_request_id++) >> 11) * 0x1p-53;
  const double pause = longest * (0.5 + 0.5 * chance);
  state.next_try = now + ToDuration(pause);
  // A server that has never answered is most likely still starting, which is no reason for alarm.
  const bool is_starting = !state.link->was_greeted() && now - begun_ < kQuietStart;
  if (!is_new && now - state.logged < kLogInterval) return;
  state.logged = now;
  core_.Log(is_starting ? 0 : 1, Where(state) + ": try " + std::to_string(state.tries) +
                                     " failed: " + cause.message() + "; retrying in " +
                                     ShowSeconds(pause));
}

void Call::GiveUp(PartState& state, Status status) {
  state.connection.reset();
  state.is_done = true;
  if (failure_.ok()) failure_ = std::move(status);
}

// Waits until a part can proceed; false once the call has timed out.
bool Call::Await() {
  const TimePoint now = SteadyClock::now();
  const TimePoint deadline = Deadline(now);
  if (now >= deadline) return false;
  TimePoint until = std::min(deadline, now + kLostCheckInterval);
  if (ScopedInterrupt::is_set()) until = std::min(until, now + kInterruptInterval);
  polled_.clear();
  for (const auto& state : states_) {
    const bool is_open = !state.is_done && state.connection;
    polled_.push_back({is_open ? state.connection->fd() : -1,
                       is_open ? state.connection->wanted_events() : short{0}, 0});
    if (is_open) until = std::min(until, std::max(now, TryDeadline(state)));
    if (is_open && state.is_runnable) until = now;  // a new connection has no socket yet
    if (!state.is_done && !state.connection) until = std::min(until, state.next_try);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
  const int count =
      ::poll(polled_.data(), polled_.size(), static_cast<int>(std::max<std::int64_t>(left, 0)));
  for (std::size_t i = 0; count > 0 && i < states_.size(); ++i) {
    if (polled_[i].revents != 0) states_[i].is_runnable = true;
  }
  return true;
}

// Out of time: whether a launcher is restarting a server that has not answered, so that there is
// more time.
bool Call::WaitsForRestart() {
  if (core_.options.failover_wait_s <= 0 || restart_wait_ >= kMostRestartWait) return false;
  const bool waits = std::ranges::any_of(states_, [&](const PartState& state) {
    return !state.is_done &&
           ReadRestartNote(core_.options.restart_notes, state.link->index()).is_current;
  });
  if (waits) restart_wait_ += kRestartPause;
  return waits;
}

// What the launcher does about a server that does not answer.
std::string Call::Restart(const PartState& state) const {
  const std::string& notes = core_.options.restart_notes;
  if (notes.empty() || core_.options.failover_wait_s <= 0) return "";
  const RestartNote note = ReadRestartNote(notes, state.link->index());
  if (note.text.empty()) return "; no launcher on this machine is restarting it";
  return "; " + note.text + (note.is_current ? "" : ", but has not reported that recently");
}

Status Call::TimedOut(const PartState& state) const {
  std::string cause = state.last.message();
  if (cause.empty()) cause = "no answer yet";
  const auto away = Away(SteadyClock::now());
  std::string after = ShowSeconds(spec_.timeout_s);
  if (away > SteadyClock::duration{0}) after += " and " + ShowSeconds(ToSeconds(away)) + " away";
  return {Code::kDeadlineExceeded, Where(state) + " timed out after " + after + ", " +
                                       std::to_string(state.tries) +
                                       (state.tries == 1 ? " try: " : " tries: ") + cause +
                                       (state.last.ok() ? "" : Restart(state))};
}

Status Call::Lost(const PartState& state) const {
  std::string text = Where(state) + ": the server is lost; it has been silent for " +
                     ShowSeconds(ToSeconds(state.link->Silence())) + " (peer_timeout_s is " +
                     ShowSeconds(core_.options.peer_timeout_s) + ")";
  if (!state.last.ok()) text += ": " + state.last.message();
  return {Code::kPeerLost, text + Restart(state)};
}

Status Call::Forgotten(const PartState& state) const {
  return {Code::kPeerLost,
          Where(state) +
              ": the request was sent, but the server has since forgotten this "
              "client, which was silent for too long: the request may or may not have run"};
}

}  // namespace

SteadyClock::duration AwayTime() { return away_time; }

Status RunCall(ClientCore& core, const CallSpec& spec, std::span<ServerPart> parts) {
  if (parts.empty()) return Status::Ok();
  return Call(core, spec, parts).Run();
}

Result<std::vector<Body>> CallAll(ClientCore& core, const CallSpec& spec, const Body& body) {
  std::vector<ServerPart> parts;
  for (std::uint32_t i = 0; i < core.num_servers(); ++i) parts.emplace_back(i, body);
  if (Status s = RunCall(core, spec, parts); !s.ok()) return s;
  std::vector<Body> replies;
  for (auto& part : parts) replies.push_back(std::move(part.reply.body));
  return replies;
}

Result<Body> CallOne(ClientCore& core, const CallSpec& spec, std::uint32_t server, Body body) {
  ServerPart part(server, std::move(body));
  if (Status s = RunCall(core, spec, {&part, 1}); !s.ok()) return s;
  return std::move(part.reply.body);
}

}  // namespace sparsefleet
