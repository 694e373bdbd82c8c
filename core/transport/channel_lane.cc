// The channel between two processes on one host: the bytes are in shared memory, the socket reports
// where and that the other end is alive. Format: docs/wire_format.md, "Host lane".

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "transport/channel.h"
#include "transport/channel_kinds.h"
#include "transport/lane_memory.h"
#include "transport/lane_socket.h"
#include "transport/stream_io.h"

namespace sparsefleet {
namespace {

// Format: docs/wire_format.md.
struct Record {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;  // 0: room was freed
};
struct MemoryMessage {
  std::array<char, 8> preamble = {'S', 'P', 'L', 'M', 1, 0, 0, 0};
  std::uint64_t capacity = 0;
};
static_assert(sizeof(Record) == 16 && sizeof(MemoryMessage) == 16);

// A peer that follows the protocol has far fewer in flight.
constexpr std::size_t kMaxRecords = 4096;

class LaneChannel final : public Channel {
 public:
  LaneChannel(std::unique_ptr<Channel> plain, Side side, std::size_t capacity)
      : plain_(std::move(plain)), side_(side), capacity_(capacity) {}

  Result<Ready> Handshake() override;
  bool HasAnswered() const override { return plain_->HasAnswered(); }
  Result<Progress> Read(std::span<std::byte> out) override;
  Result<Progress> Write(std::span<const iovec> buffers) override;
  std::span<std::byte> Reserve(std::size_t size) override;
  bool HasBufferedInput() const override { return reading_.bytes > 0 || !records_.empty(); }
  int fd() const override { return plain_->fd(); }

 private:
  Result<Ready> HandOver();
  Result<Ready> TakeOver();
  void Begin();

  // Receives the records that have arrived; kPeerLost if the socket broke.
  Status Pump(bool until_empty);
  Status TakeRecord(const Record& record);
  // Sends the remaining records; true when none is left.
  Result<bool> SendRecords();
  void QueueRecord(const Record& record);
  // Where the next bytes go, contiguous; empty if there is no room.
  std::span<std::byte> Room();

  std::unique_ptr<Channel> plain_;  // proves the key, owns the socket
  const Side side_;
  const std::size_t capacity_;  // of memory created here
  LaneMemory memory_;
  bool is_open_ = false;

  LaneRing in_;
  Record reading_;  // the rest of the current record
  std::deque<Record> records_;
  std::array<std::byte, 16 * sizeof(Record)> received_;
  std::size_t received_bytes_ = 0;  // of an incomplete record
  bool has_ended_ = false;

  LaneRing out_;
  std::uint64_t head_ = 0;         // position of the next byte
  std::uint64_t floor_ = 0;        // everything before it has been read
  std::span<std::byte> reserved_;  // for the next bytes
  std::size_t unreported_ = 0;     // bytes in memory whose record has not been sent
  std::vector<std::byte> unsent_;  // records not yet sent
};

Result<Ready> LaneChannel::Handshake() {
  if (is_open_) return Ready::kDone;
  auto proven = plain_->Handshake();
  if (!proven.ok() || proven.value() != Ready::kDone) return proven;
  return side_ == Side::kServer ? HandOver() : TakeOver();
}

Result<Ready> LaneChannel::HandOver() {
  if (memory_.fd() < 0) {
    auto made = LaneMemory::Create(capacity_);
    if (!made.ok()) return made.status();
    memory_ = std::move(made).value();
  }
  MemoryMessage message;
  message.capacity = memory_.capacity();
  auto sent = SendWithDescriptor(fd(), std::as_bytes(std::span(&message, 1)), memory_.fd());
  if (!sent.ok()) return sent.status();
  if (!sent.value()) return Ready::kWantWrite;
  Begin();
  return Ready::kDone;
}

Result<Ready> LaneChannel::TakeOver() {
  MemoryMessage message;
  auto received = ReceiveWithDescriptor(fd(), std::as_writable_bytes(std::span(&message, 1)));
  if (!received.ok()) return received.status();
  if (!received.value()) return Ready::kWantRead;
  if (message.preamble != MemoryMessage().preamble) {
    return Status(Code::kProtocol, "the server's shared memory has another version");
  }
  auto opened = LaneMemory::Open(std::move(*received.value()), message.capacity);
  if (!opened.ok()) return opened.status();
  memory_ = std::move(opened).value();
  Begin();
  return Ready::kDone;
}

void LaneChannel::Begin() {
  memory_.CloseFd();
  in_ = side_ == Side::kServer ? memory_.up() : memory_.down();
  out_ = side_ == Side::kServer ? memory_.down() : memory_.up();
  is_open_ = true;
}

Status LaneChannel::TakeRecord(const Record& record) {
  if (record.bytes == 0) return Status::Ok();
  const std::size_t capacity = memory_.capacity();
  if (record.bytes > capacity - record.begin % capacity || records_.size() >= kMaxRecords) {
    return {Code::kPeerLost, "the peer violated the host lane protocol"};
  }
  records_.push_back(record);
  return Status::Ok();
}

Status LaneChannel::Pump(bool until_empty) {
  do {
    const IoResult io = ReceiveSome(fd(), std::span(received_).subspan(received_bytes_));
    if (io.outcome == IoOutcome::kNotReady) return Status::Ok();
    if (io.outcome == IoOutcome::kBroken) {
      return {Code::kPeerLost, "connection broke while reading: " + ErrnoText(io.error)};
    }
    if (io.outcome == IoOutcome::kEnd) {
      has_ended_ = true;
      return Status::Ok();
    }
    received_bytes_ += io.bytes;
    std::size_t at = 0;
    for (; at + sizeof(Record) <= received_bytes_; at += sizeof(Record)) {
      Record record;
      std::memcpy(&record, received_.data() + at, sizeof(record));
      if (Status s = TakeRecord(record); !s.ok()) return s;
    }
    received_bytes_ -= at;
    std::memmove(received_.data(), received_.data() + at, received_bytes_);
  } while (until_empty);
  return Status::Ok();
}

Result<Progress> LaneChannel::Read(std::span<std::byte> out) {
  if (out.empty()) return Progress{};
  if (reading_.bytes == 0 && records_.empty()) {
    if (Status s = Pump(false); !s.ok()) return s;
  }
  if (reading_.bytes == 0 && !records_.empty()) {
    reading_ = records_.front();
    records_.pop_front();
  }
  // A peer that is gone waits for no record, and what it wrote before can still be read.
  const auto all_sent = SendRecords();
  if (reading_.bytes == 0) {
    if (has_ended_) return Progress{Ready::kDone, 0};
    const bool sends_later = all_sent.ok() && !all_sent.value();
    return Progress{sends_later ? Ready::kWantWrite : Ready::kWantRead, 0};
  }
  const std::size_t count = std::min<std::size_t>(out.size(), reading_.bytes);
  std::memcpy(out.data(), in_.bytes.data() + reading_.begin % in_.bytes.size(), count);
  reading_.begin += count;
  reading_.bytes -= count;
  in_.SetConsumed(reading_.begin);
  if (in_.TakeWaits()) {
    QueueRecord({});
    (void)SendRecords();
  }
  return Progress{Ready::kDone, count};
}

void LaneChannel::QueueRecord(const Record& record) {
  const auto bytes = std::as_bytes(std::span(&record, 1));
  unsent_.insert(unsent_.end(), bytes.begin(), bytes.end());
}

Result<bool> LaneChannel::SendRecords() {
  while (!unsent_.empty()) {
    const iovec rest{unsent_.data(), unsent_.size()};
    const IoResult io = SendSome(fd(), {&rest, 1});
    if (io.outcome == IoOutcome::kNotReady) return false;
    if (io.outcome != IoOutcome::kMoved) {
      return Status(Code::kPeerLost, "connection broke while writing: " + ErrnoText(io.error));
    }
    unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<std::ptrdiff_t>(io.bytes));
  }
  return true;
}

std::span<std::byte> LaneChannel::Room() {
  const std::size_t capacity = out_.bytes.size();
  // The peer's claim counts only as far as it is possible.
  const std::uint64_t read = std::clamp(out_.Consumed(), floor_, head_);
  if (read == head_) {
    head_ = (head_ + capacity - 1) / capacity * capacity;
    floor_ = head_;
  }
  const std::size_t at = head_ % capacity;
  const std::size_t free = capacity - (head_ - std::max(read, floor_));
  return out_.bytes.subspan(at, std::min(free, capacity - at));
}

std::span<std::byte> LaneChannel::Reserve(std::size_t size) {
  if (!is_open_ || !unsent_.empty() || unreported_ > 0) return {};
  const std::span<std::byte> room = Room();
  if (room.size() < size || reinterpret_cast<std::uintptr_t>(room.data()) % 8 != 0) return {};
  reserved_ = room.first(size);
  return reserved_;
}

Result<Progress> LaneChannel::Write(std::span<const iovec> buffers) {
  auto all_sent = SendRecords();
  if (!all_sent.ok()) return all_sent.status();
  if (!all_sent.value()) return Progress{Ready::kWantWrite, 0};
  if (unreported_ > 0) return Progress{Ready::kDone, std::exchange(unreported_, 0)};
  if (std::ranges::all_of(buffers, [](const iovec& buffer) { return buffer.iov_len == 0; })) {
    return Progress{};
  }
  // The peer may have read more since bytes were placed there: they stay where they are.
  std::span<std::byte> room = std::exchange(reserved_, {});
  if (room.empty() || buffers.front().iov_base != room.data()) room = Room();
  if (room.empty()) {
    out_.SetWaits();
    // The peer may have read more before it could see the flag; and the pending wake-up must be
    // consumed.
    if (Status s = Pump(true); !s.ok()) return s;
    room = Room();
    if (room.empty() && has_ended_) {
      return Status(Code::kPeerLost, "the peer closed the connection before reading everything");
    }
    if (room.empty()) return Progress{Ready::kWantRead, 0};
  }
  std::size_t count = 0;
  for (const iovec& buffer : buffers) {
    const std::size_t length = std::min(buffer.iov_len, room.size() - count);
    std::byte* const to = room.data() + count;
    if (length > 0 && to != buffer.iov_base) std::memcpy(to, buffer.iov_base, length);
    count += length;
  }
  QueueRecord({head_, count});
  head_ += count;
  all_sent = SendRecords();
  if (!all_sent.ok()) return all_sent.status();
  if (all_sent.value()) return Progress{Ready::kDone, count};
  unreported_ = count;
  return Progress{Ready::kWantWrite, 0};
}

class LaneFactory final : public ChannelFactory {
 public:
  LaneFactory(std::unique_ptr<ChannelFactory> plain, std::size_t capacity)
      : plain_(std::move(plain)), capacity_(capacity) {}

  Result<std::unique_ptr<Channel>> Accept(int fd) override { return Make(fd, Side::kServer); }
  Result<std::unique_ptr<Channel>> Connect(int fd) override { return Make(fd, Side::kClient); }

 private:
  Result<std::unique_ptr<Channel>> Make(int fd, Side side) {
    OwnedSocket socket(fd);
    if (Status s = CheckSameUser(fd); !s.ok()) return s;
    auto plain = side == Side::kServer ? plain_->Accept(socket.Release())
                                       : plain_->Connect(socket.Release());
    if (!plain.ok()) return plain.status();
    return std::unique_ptr<Channel>(
        std::make_unique<LaneChannel>(std::move(plain).value(), side, capacity_));
  }

  const std::unique_ptr<ChannelFactory> plain_;
  const std::size_t capacity_;
};

}  // namespace

Result<std::unique_ptr<ChannelFactory>> MakeLaneFactory(const std::string& job_key,
                                                        std::size_t capacity) {
  auto plain = MakePlainFactory(job_key);
  if (!plain.ok()) return plain.status();
  return std::unique_ptr<ChannelFactory>(
      std::make_unique<LaneFactory>(std::move(plain).value(), capacity));
}

}  // namespace sparsefleet
