#include "client/heartbeat.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <system_error>

#include "client/seconds.h"

namespace sparsefleet {
namespace {

// A server that a launcher keeps restarting is lost after this time all the same.
constexpr auto kMostRestartWait = std::chrono::minutes(11);
constexpr auto kGoodbyeTime = std::chrono::seconds(1);
// A loop that wakes this much too late was suspended together with the process.
constexpr auto kOverslept = std::chrono::seconds(1);
// A beat unanswered for this fraction of peer_timeout_s is sent again over a new connection: the
// old one may have died silently, which says nothing about the server.
constexpr double kPatience = 0.5;

}  // namespace

Result<std::unique_ptr<Heartbeat>> Heartbeat::Start(
    HeartbeatOptions options, std::span<const std::unique_ptr<ServerLink>> links) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) {
    return Status(Code::kIo, "cannot open a pipe: " + ErrnoText(errno));
  }
  OwnedSocket wake_read(ends[0]);
  OwnedSocket wake_write(ends[1]);
  for (const int fd : ends) {
    if (Status s = PrepareSocket(fd); !s.ok()) return s;
  }
  std::unique_ptr<Heartbeat> made(
      new Heartbeat(std::move(options), links, std::move(wake_read), std::move(wake_write)));
  try {
    made->thread_ = std::thread([self = made.get()] { self->Run(); });
  } catch (const std::system_error& error) {
    return Status(Code::kIo, std::string("cannot start the heartbeat thread: ") + error.what());
  }
  return made;
}

Heartbeat::Heartbeat(HeartbeatOptions options, std::span<const std::unique_ptr<ServerLink>> links,
                     OwnedSocket wake_read, OwnedSocket wake_write)
    : options_(std::move(options)),
      wake_read_(std::move(wake_read)),
      wake_write_(std::move(wake_write)) {
  const TimePoint now = SteadyClock::now();
  for (const auto& link : links) {
    Beat beat;
    beat.link = link.get();
    beat.link->Heard();  // all have answered; some have waited long for the last
    beat.next = now;
    beats_.push_back(std::move(beat));
  }
}

Heartbeat::~Heartbeat() {
  stopping_ = true;
  const char byte = 0;
  // A full pipe wakes the thread too.
  [[maybe_unused]] const auto written = ::write(wake_write_.fd(), &byte, 1);
  if (thread_.joinable()) thread_.join();
}

void Heartbeat::Log(int severity, const std::string& message) const {
  if (options_.log && !expects_end_) options_.log(severity, message);
}

void Heartbeat::Run() {
  do {
    const TimePoint now = SteadyClock::now();
    for (auto& beat : beats_) Advance(beat, now);
    for (auto& beat : beats_) Judge(beat);
  } while (Await());
  if (!keeps_session_) SayGoodbye();
}

void Heartbeat::Begin(Beat& beat, MessageType type, TimePoint now) {
  FrameHeader header;
  header.type = type;
  if (type == MessageType::kHeartbeat) header.acked_below = options_.acked_below();
  beat.began = now;
  // Two beats may be lost before an impatient server gives up on this client.
  beat.next = now + ToDuration(std::min(options_.interval_s, beat.link->server_patience_s() / 3));
  beat.is_runnable = true;
  beat.connection->Begin(header, now + ToDuration(options_.peer_timeout_s), {}, beat.reply);
}

void Heartbeat::Advance(Beat& beat, TimePoint now) {
  if (!beat.connection || !beat.connection->is_active()) {
    if (now < beat.next) return;
    if (!beat.connection) beat.connection = beat.link->OpenNew(true);
    Begin(beat, MessageType::kHeartbeat, now);
  }
  if (beat.is_runnable) {
    beat.is_runnable = false;
    auto whole = beat.connection->Step();
    if (!whole.ok()) {
      Failed(beat, whole.status(), now);
      return;
    }
    if (whole.value()) {
      beat.link->Heard();
      return;
    }
  }
  if (now - beat.began >= ToDuration(options_.peer_timeout_s * kPatience)) {
    Failed(beat, Status(Code::kDeadlineExceeded, "no answer to a heartbeat"), now);
  }
}

void Heartbeat::Failed(Beat& beat, const Status& cause, TimePoint now) {
  beat.connection.reset();
  beat.link->LookUpAgain();
  beat.last = cause;
  // Sooner than the interval at first: usually a connection broke and the server is still there.
  beat.next = std::min(beat.began + ToDuration(options_.interval_s),
                       now + ToDuration(options_.peer_timeout_s / 20));
  if (cause.code() == Code::kServerRestarted && !beat.told_restart) {
    beat.told_restart = true;
    Log(2, beat.link->Describe() + ": " + cause.message());
  }
}

void Heartbeat::Judge(Beat& beat) {
  ServerLink& link = *beat.link;
  const auto silence = link.Silence();
  const bool is_silent = silence > ToDuration(options_.lost_after_s);
  if (is_silent == link.is_lost()) return;
  if (is_silent && SteadyClock::now() < judges_from_) return;
  if (is_silent && options_.is_restarting && silence < kMostRestartWait &&
      options_.is_restarting(link.index())) {
    judges_from_ = SteadyClock::now() + ToDuration(options_.interval_s);
    return;
  }
  link.SetLost(is_silent);
  if (!is_silent) {
    Log(0, link.Describe() + " is back");
    return;
  }
  link.CloseIdle();
  Log(2, link.Describe() + " is lost: silent for " + ShowSeconds(ToSeconds(silence)) +
             (beat.last.ok() ? "" : ": " + beat.last.message()));
}

bool Heartbeat::Await() {
  TimePoint until = SteadyClock::now() + ToDuration(options_.interval_s);
  for (const auto& beat : beats_) {
    const bool is_active = beat.connection && beat.connection->is_active();
    const TimePoint silent_at = SteadyClock::now() + ToDuration(options_.lost_after_s) -
                                beat.link->Silence() + std::chrono::milliseconds(1);
    const TimePoint patient_until = beat.began + ToDuration(options_.peer_timeout_s * kPatience);
    until = std::min(until, is_active ? patient_until : beat.next);
    if (!beat.link->is_lost()) until = std::min(until, std::max(silent_at, judges_from_));
  }
  PollUntil(until);
  if (SteadyClock::now() > until + kOverslept) {
    judges_from_ = SteadyClock::now() + ToDuration(options_.interval_s);
  }
  return !stopping_;
}

void Heartbeat::PollUntil(TimePoint until) {
  std::vector<pollfd> polled = {{wake_read_.fd(), POLLIN, 0}};
  for (const auto& beat : beats_) {
    const bool is_active = beat.connection && beat.connection->is_active();
    polled.push_back({is_active ? beat.connection->fd() : -1,
                      is_active ? beat.connection->wanted_events() : short{0}, 0});
  }
  if (stopping_) polled[0].fd = -1;  // its byte stays unread
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(until - SteadyClock::now()).count();
  const int count = ::poll(polled.data(), polled.size(),
                           static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
  for (std::size_t i = 0; count > 0 && i < beats_.size(); ++i) {
    if (polled[i + 1].revents != 0) beats_[i].is_runnable = true;
  }
}

// A beat in progress gets its answer first: a connection carries one exchange at a time.
void Heartbeat::SayGoodbye() {
  const TimePoint until = SteadyClock::now() + kGoodbyeTime;
  std::vector<bool> said(beats_.size(), false);
  std::size_t left = beats_.size();
  const auto end = [&left](Beat& beat) {
    beat.connection.reset();
    --left;
  };
  // Wait for a connection being made: its greeting, arriving after a goodbye sent another way,
  // would register the client again.
  for (auto& beat : beats_) {
    if (!beat.connection) beat.connection = beat.link->TakeIdle();
    if (!beat.connection || beat.link->is_lost()) end(beat);
  }
  while (left > 0 && SteadyClock::now() < until) {
    for (std::size_t i = 0; i < beats_.size(); ++i) {
      Beat& beat = beats_[i];
      if (!beat.connection) continue;
      if (beat.connection->is_active() && beat.is_runnable) {
        beat.is_runnable = false;
        const bool is_broken = !beat.connection->Step().ok();
        if (is_broken && !said[i]) beat.connection = beat.link->TakeIdle();
        if (is_broken && (said[i] || !beat.connection)) end(beat);
      }
      if (!beat.connection || beat.connection->is_active()) continue;
      if (said[i]) {
        end(beat);
      } else {
        said[i] = true;
        Begin(beat, MessageType::kGoodbye, SteadyClock::now());
      }
    }
    if (left > 0) PollUntil(std::ranges::any_of(beats_, &Beat::is_runnable) ? TimePoint() : until);
  }
}

}  // namespace sparsefleet
