#include "server/server_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <new>
#include <utility>

#include "sync/mutex.h"
#include "transport/socket.h"

namespace sparsefleet {
namespace {

constexpr std::size_t kMaxUnsentBytes = 16u << 20;  // reading pauses beyond this
constexpr std::uint32_t kMaxOwedReplies = 256;      // and beyond this many pending replies
constexpr std::uint64_t kMaxHelloBytes = 4096;
constexpr std::size_t kGatherBuffers = 32;
constexpr std::chrono::seconds kLinger{2};  // without a byte from the peer
constexpr std::chrono::seconds kIdleKeepsMemory{10};

std::string SecondsText(std::chrono::nanoseconds duration) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g s", std::chrono::duration<double>(duration).count());
  return text;
}

}  // namespace

ServerConnection::ServerConnection(ServerConnectionHost& host, std::uint64_t id,
                                   std::unique_ptr<Channel> channel, std::string address,
                                   ServerCounters::Traffic& traffic)
    : host_(host),
      id_(id),
      address_(std::move(address)),
      traffic_(traffic),
      begun_(std::chrono::steady_clock::now()),
      channel_(std::move(channel)),
      last_read_(begun_),
      last_write_(begun_) {}

Status ServerConnection::Start() {
  {
    MutexLock lock(mutex_);
    if (running_ || closed_) return Status::Ok();  // displaced, or the server is stopping
    if (Status s = host_.poller.Add(channel_->fd(), id_); !s.ok()) return s;
    running_ = true;
  }
  Run(true);
  return Status::Ok();
}

template <typename Note>
bool ServerConnection::Acquire(Note note) {
  MutexLock lock(mutex_);
  note();
  if (running_ || closed_) return false;
  running_ = true;
  return true;
}

void ServerConnection::Run(bool receive) {
  do {
    if (receive) Receive();
    receive = false;
    Flush();
    if (ShouldClose()) Close();
  } while (!Release());
}

// Hands the socket back to the poller; false if there is still work to do.
bool ServerConnection::Release() {
  MutexLock lock(mutex_);
  if (!closed_) {
    if (close_now_ || (finishing_ && Quiet())) return false;
    if (!output_.empty() && write_wants_ == Ready::kDone) return false;
    deadline_ = NextDeadline();
    ArmPoller();
  }
  running_ = false;
  return true;
}

bool ServerConnection::ShouldClose() const {
  MutexLock lock(mutex_);
  return !closed_ && (close_wanted_ || close_now_ || (finishing_ && Quiet()));
}

bool ServerConnection::ReadingPaused() const {
  return output_.unsent_bytes() > kMaxUnsentBytes || owed_replies_ >= kMaxOwedReplies;
}

void ServerConnection::ArmPoller() {
  bool read = write_wants_ == Ready::kWantRead;
  bool write = write_wants_ == Ready::kWantWrite;
  if (reader_.in_frame() || !ReadingPaused()) {
    read = read || read_wants_ == Ready::kWantRead;
    write = write || read_wants_ == Ready::kWantWrite;
    // Decrypted bytes do not make a socket readable; a writable one gives us a turn.
    if (phase_ != Phase::kHandshake && channel_->HasBufferedInput()) write = true;
  }
  // A broken socket is reported whatever was asked for, so asking for nothing would spin.
  if (read || write) host_.poller.Arm(channel_->fd(), id_, read, write);
}

ServerConnection::TimePoint ServerConnection::NextDeadline() const {
  if (phase_ == Phase::kLinger) return linger_until_;
  TimePoint next = TimePoint::max();
  if (session_ == nullptr) next = begun_ + host_.handshake_timeout;
  if (reader_.in_frame()) next = std::min(next, last_read_ + host_.frame_timeout);
  if (!output_.empty()) next = std::min(next, last_write_ + host_.frame_timeout);
  return next;
}

void ServerConnection::Queue(const FrameHeader& request, Reply reply) {
  if (output_.empty()) last_write_ = std::chrono::steady_clock::now();
  const FrameHeader header = ReplyHeader(request, reply);
  output_.Push(header, std::move(reply.body));
}

void ServerConnection::OnReady() {
  if (Acquire([] {})) Run(true);
}

void ServerConnection::Send(const FrameHeader& request, Reply reply) {
  const auto note = [&] {
    mutex_.AssertHeld();
    --owed_replies_;
    if (!closed_) Queue(request, std::move(reply));
  };
  if (Acquire(note)) Run(false);
}

void ServerConnection::Abandon() {
  if (Acquire([&] {
        mutex_.AssertHeld();
        --owed_replies_;
      }))
    Run(false);
}

void ServerConnection::FinishAndClose() {
  if (Acquire([&] {
        mutex_.AssertHeld();
        finishing_ = true;
      }))
    Run(false);
}

void ServerConnection::CloseNow() {
  if (Acquire([&] {
        mutex_.AssertHeld();
        close_now_ = true;
      }))
    Run(false);
}

void ServerConnection::Tick(TimePoint now) {
  {
    MutexLock lock(mutex_);
    if (running_ || closed_) return;
    if (now < deadline_) {
      const bool idle = !reader_.in_frame() && now - last_read_ > kIdleKeepsMemory;
      if (idle && reader_.memory_bytes() > 0) reader_.Trim();
      return;
    }
    running_ = true;
  }
  TimeOut();
  Run(false);
}

bool ServerConnection::BelongsTo(const Session& session) const {
  MutexLock lock(mutex_);
  return session_.get() == &session;
}

void ServerConnection::Receive() {
  write_wants_ = Ready::kDone;
  if (phase_ == Phase::kHandshake && !ContinueHandshake()) return;
  if (phase_ == Phase::kOpen) {
    try {
      ReceiveFrames();
    } catch (const std::bad_alloc&) {
      FailOutOfMemory();
    }
    const std::uint64_t total = reader_.bytes_read();
    const std::uint64_t read = total - std::exchange(bytes_counted_, total);
    if (read > 0) {
      last_read_ = std::chrono::steady_clock::now();
      traffic_.bytes_in.fetch_add(read, std::memory_order_relaxed);
    }
  }
  if (phase_ == Phase::kLinger) Discard();
}

bool ServerConnection::ContinueHandshake() {
  auto ready = channel_->Handshake();
  if (!ready.ok()) {
    // A peer that hangs up without trying (a port scan, a health check) is not counted as refused.
    const Code code = ready.status().code();
    if (code == Code::kInternal) {
      host_.log.WriteRateLimited(kError, address_ + ": " + ready.status().message());
    } else if (code != Code::kPeerLost) {
      RefuseStranger(ready.status().message());
    }
    close_wanted_ = true;
    return false;
  }
  read_wants_ = ready.value();
  if (read_wants_ != Ready::kDone) {
    if (!is_answered_ && channel_->HasAnswered()) {
      is_answered_ = true;
      host_.on_answered(id_);
    }
    return false;
  }
  const ProvenPlace place = host_.on_proven(id_);
  if (place == ProvenPlace::kDisplaced) {
    close_wanted_ = true;
    return false;
  }
  has_place_ = place == ProvenPlace::kTaken;
  phase_ = Phase::kOpen;
  read_wants_ = Ready::kWantRead;
  return true;
}

void ServerConnection::ReceiveFrames() {
  const auto paused = [&] {
    MutexLock lock(mutex_);
    return !reader_.in_frame() && ReadingPaused();
  };
  do {
    if (paused()) return;
    const auto step =
        reader_.Read(*channel_, session_ == nullptr ? kMaxHelloBytes : host_.max_frame_bytes);
    write_wants_ = Ready::kDone;  // reading may have unblocked the write
    switch (step.outcome) {
      case FrameReader::Outcome::kFrame:
        HandleFrame();
        reader_.Next();
        Flush();
        break;
      case FrameReader::Outcome::kBlocked:
        read_wants_ = step.wants;
        return;
      case FrameReader::Outcome::kYield:
        read_wants_ = Ready::kWantRead;
        return;
      case FrameReader::Outcome::kBadFrame:
        return Fail(step.status);
      case FrameReader::Outcome::kEnd:
      case FrameReader::Outcome::kBroken:
        close_wanted_ = true;
        return;
    }
    // Without such bytes the next read would most likely return nothing.
  } while (phase_ == Phase::kOpen && !close_wanted_ && channel_->HasBufferedInput());
  read_wants_ = Ready::kWantRead;
}

void ServerConnection::HandleFrame() {
  host_.counters.CountRequest(reader_.header().type);
  if (session_ == nullptr) return Greet();
  if (reader_.header().type == MessageType::kLane) return ReplyWithLane();
  {
    MutexLock lock(mutex_);
    ++owed_replies_;
  }
  const ReplyTo to{weak_from_this(), reader_.header()};
  const Status status =
      host_.dispatcher.Handle(session_, reader_.body(), to, [this] { return reader_.TakeBody(); });
  if (status.ok()) return;
  host_.counters.protocol_errors.fetch_add(1, std::memory_order_relaxed);
  host_.log.WriteRateLimited(kWarning,
                             Describe() + ": " + status.message() + "; connection closed");
  BeginLinger();
}

void ServerConnection::Greet() {
  const FrameHeader& request = reader_.header();
  if (request.type != MessageType::kHello || request.flags != 0) {
    return Fail({Code::kProtocol, std::string("the first frame is a ") + MessageName(request.type) +
                                      ", expected a hello"});
  }
  // Another client may have left since the handshake.
  has_place_ = has_place_ || host_.on_proven(id_) == ProvenPlace::kTaken;
  auto greeting =
      has_place_ ? host_.dispatcher.Hello(reader_.body(), address_) : Status(Code::kIo, host_.full);
  const Reply reply = greeting.ok() ? Reply{false, greeting.value().body}
                                    : Reply{true, EncodeError(greeting.status())};
  {
    MutexLock lock(mutex_);
    if (greeting.ok()) session_ = std::move(greeting.value().session);
    Queue(request, reply);
  }
  if (greeting.ok()) return;
  host_.log.WriteRateLimited(kWarning, Describe() + " was refused: " + greeting.status().message());
  BeginLinger();
}

// Only for a client connected directly to this socket: a proxy in between must not be bypassed.
void ServerConnection::ReplyWithLane() {
  const auto address = DecodeText(reader_.body());
  if (!address.ok() || reader_.header().flags != 0) {
    return Fail({Code::kProtocol, "lane: the request does not carry the address of this server"});
  }
  session_->Touch(std::chrono::steady_clock::now());
  const bool is_direct = address.value() == LocalAddress(channel_->fd());
  const Reply reply{false, EncodeText(is_direct ? host_.lane_name : "")};
  MutexLock lock(mutex_);
  Queue(reader_.header(), reply);
}

void ServerConnection::Flush() {
  if (phase_ == Phase::kHandshake || channel_ == nullptr) return;
  while (write_wants_ == Ready::kDone && !close_wanted_ && MakeFront()) {
    std::array<iovec, kGatherBuffers> buffers;
    std::size_t used = 0;
    {
      MutexLock lock(mutex_);
      used = output_.Gather(buffers);
    }
    if (used == 0) break;
    auto progress = channel_->Write(std::span(buffers).first(used));
    if (!progress.ok()) {
      close_wanted_ = true;
      return;
    }
    write_wants_ = progress.value().ready;
    const std::size_t bytes = progress.value().bytes;
    traffic_.bytes_out.fetch_add(bytes, std::memory_order_relaxed);
    MutexLock lock(mutex_);
    output_.Consume(bytes);
    if (bytes > 0 && !output_.empty()) last_write_ = std::chrono::steady_clock::now();
  }
  if (phase_ == Phase::kLinger && write_wants_ == Ready::kDone && !write_shut_) {
    ::shutdown(channel_->fd(), SHUT_WR);
    write_shut_ = true;
  }
}

// Builds the bytes of the front frame if that was deferred, inside the channel if it has room.
// No other thread takes frames off the queue, so the front one stays put.
bool ServerConnection::MakeFront() {
  OutputQueue::Frame* frame = nullptr;
  {
    MutexLock lock(mutex_);
    frame = output_.Unmade();
  }
  if (frame == nullptr || frame->Make(channel_->Reserve(frame->size()))) return true;
  host_.log.WriteRateLimited(kError,
                             Describe() + ": out of memory for its reply; connection closed");
  close_wanted_ = true;
  return false;
}

// Reads and discards until the peer closes: closing a socket with unread bytes resets it, and a
// reset may destroy the error reply before the peer has read it. Whoever still sends after kLinger
// gets more time, up to the limit of a frame.
void ServerConnection::Discard() {
  linger_until_ = std::min(std::chrono::steady_clock::now() + kLinger, linger_end_);
  std::array<std::byte, 16384> scratch;
  for (int i = 0; i < 64; ++i) {
    auto progress = channel_->Read(scratch);
    if (!progress.ok() || (progress.value().ready == Ready::kDone && progress.value().bytes == 0)) {
      close_wanted_ = true;
      return;
    }
    read_wants_ = progress.value().ready;
    if (read_wants_ != Ready::kDone) return;
  }
  read_wants_ = Ready::kWantRead;
}

void ServerConnection::Fail(const Status& status) {
  host_.counters.protocol_errors.fetch_add(1, std::memory_order_relaxed);
  host_.log.WriteRateLimited(kWarning,
                             Describe() + ": " + status.message() + "; connection closed");
  {
    const Reply reply{true, EncodeError(status)};
    MutexLock lock(mutex_);
    Queue(reader_.header(), reply);
  }
  BeginLinger();
}

// Answers before the connection closes, so that the client learns the reason instead of finding a
// broken pipe again and again.
void ServerConnection::FailOutOfMemory() {
  try {
    const FrameHeader& request = reader_.header();
    Fail({Code::kTooLarge, std::string(MessageName(request.type)) +
                               ": the server is out of memory for a request of " +
                               std::to_string(request.body_bytes) + " bytes"});
  } catch (const std::bad_alloc&) {
    host_.log.WriteRateLimited(kError,
                               "out of memory for the frames of a connection; it is closed");
    close_wanted_ = true;
  }
}

void ServerConnection::BeginLinger() {
  phase_ = Phase::kLinger;
  linger_until_ = std::chrono::steady_clock::now() + kLinger;
  linger_end_ = std::max(linger_until_, linger_until_ - kLinger + host_.frame_timeout);
}

void ServerConnection::TimeOut() {
  close_wanted_ = true;
  if (phase_ == Phase::kHandshake) {
    RefuseStranger("it did not prove the job key within " + SecondsText(host_.handshake_timeout));
  } else if (phase_ == Phase::kOpen && session_ == nullptr) {
    host_.log.WriteRateLimited(kWarning, Describe() + ": sent no hello within " +
                                             SecondsText(host_.handshake_timeout) +
                                             "; connection closed");
  } else if (phase_ == Phase::kOpen) {
    const char* what = reader_.in_frame() ? " stopped in the middle of a frame for "
                                          : " read none of its replies for ";
    host_.log.WriteRateLimited(
        kWarning, Describe() + what + SecondsText(host_.frame_timeout) + "; connection closed");
  }
}

void ServerConnection::RefuseStranger(const std::string& why) {
  host_.counters.strangers_refused.fetch_add(1, std::memory_order_relaxed);
  host_.log.WriteRateLimited(kWarning, "refused " + address_ + ": " + why);
}

void ServerConnection::Close() {
  host_.poller.Remove(channel_->fd());
  channel_.reset();
  reader_.Trim();
  {
    MutexLock lock(mutex_);
    closed_ = true;
    output_.Clear();
  }
  if (session_ != nullptr) host_.sessions.Leave(*session_, std::chrono::steady_clock::now());
  host_.on_closed(id_);
}

std::string ServerConnection::Describe() const {
  return session_ != nullptr ? session_->Describe() : "connection from " + address_;
}

}  // namespace sparsefleet
