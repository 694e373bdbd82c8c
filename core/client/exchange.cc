#include "client/exchange.h"

#include <poll.h>

#include <algorithm>
#include <string>

namespace sparsefleet {
namespace {

constexpr std::uint32_t kMaxErrorBytes = 128 << 10;

Status Broken(const FrameHeader& header, std::string_view why) {
  return {Code::kProtocol,
          "reply to " + std::string(MessageName(header.type)) + ": " + std::string(why)};
}

// Reads until `room` past `filled` is full (true) or the channel has no more now (false).
Result<bool> Fill(Channel& channel, std::span<std::byte> room, std::size_t& filled) {
  while (filled < room.size()) {
    auto progress = channel.Read(room.subspan(filled));
    if (!progress.ok()) return progress.status();
    if (progress.value().ready != Ready::kDone) return false;
    if (progress.value().bytes == 0) {
      return Status(Code::kPeerLost, "the server closed the connection");
    }
    filled += progress.value().bytes;
  }
  return true;
}

}  // namespace

void Exchange::Begin(const FrameHeader& header, TimePoint reply_by, std::span<const iovec> body,
                     ReplyBuffer& reply) {
  active_ = true;
  header_ = header;
  reply_by_ = reply_by;
  has_begun_ = false;
  send_wants_ = Ready::kWantWrite;
  std::uint64_t body_bytes = 0;
  for (const auto& buffer : body) body_bytes += buffer.iov_len;
  header_.body_bytes = static_cast<std::uint32_t>(body_bytes);
  unsent_.clear();
  unsent_.push_back({head_.data(), head_.size()});
  unsent_.insert(unsent_.end(), body.begin(), body.end());
  reply_ = &reply;
  head_read_ = 0;
  reply_header_.reset();
  error_body_.clear();
  part_ = 0;
  read_ = 0;
  outcome_ = Status::Ok();
}

short Exchange::wanted_events() const {
  const bool can_write = !unsent_.empty() && send_wants_ != Ready::kWantRead;
  return static_cast<short>(POLLIN | (can_write ? POLLOUT : 0));
}

Result<bool> Exchange::Step(Channel& channel, std::uint64_t max_reply_bytes) {
  // Reading comes first, as it may unblock the write.
  do {
    if (has_begun_) {
      auto received = Receive(channel, max_reply_bytes);
      if (!received.ok() || received.value() || unsent_.empty()) return received;
    }
    if (Status sent = Send(channel); !sent.ok()) {
      // A server that rejects a request answers before reading all of it, and closes the
      // connection.
      auto received = Receive(channel, max_reply_bytes);
      return received.ok() && received.value() ? received : sent;
    }
    // The server needs a while to reply: an immediate read would find nothing.
  } while (channel.HasBufferedInput());
  return false;
}

Status Exchange::Send(Channel& channel) {
  if (!has_begun_) {
    has_begun_ = true;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        reply_by_ - std::chrono::steady_clock::now());
    header_.timeout_ms =
        static_cast<std::uint32_t>(std::clamp<std::int64_t>(left.count(), 1, UINT32_MAX));
    EncodeFrameHeader(header_, head_);
  }
  std::span<iovec> left(unsent_);
  while (!left.empty()) {
    auto progress = channel.Write(left);
    if (!progress.ok()) return progress.status();
    std::size_t bytes = progress.value().bytes;
    while (!left.empty() && bytes >= left.front().iov_len) {
      bytes -= left.front().iov_len;
      left = left.subspan(1);
    }
    if (!left.empty()) {
      left.front().iov_base = static_cast<std::byte*>(left.front().iov_base) + bytes;
      left.front().iov_len -= bytes;
    }
    send_wants_ = progress.value().ready;
    if (send_wants_ != Ready::kDone) break;
  }
  unsent_.erase(unsent_.begin(), unsent_.end() - static_cast<std::ptrdiff_t>(left.size()));
  return Status::Ok();
}

Result<bool> Exchange::Receive(Channel& channel, std::uint64_t max_reply_bytes) {
  if (!reply_header_) {
    auto whole = Fill(channel, reply_head_, head_read_);
    if (!whole.ok() || !whole.value()) return whole;
    if (Status s = TakeHead(max_reply_bytes); !s.ok()) return s;
  }
  for (auto missing = Missing(); !missing.empty(); missing = Missing()) {
    auto whole = Fill(channel, missing, read_);
    if (!whole.ok() || !whole.value()) return whole;
  }
  active_ = false;
  if ((reply_header_->flags & kFlagError) != 0) outcome_ = DecodeError(error_body_);
  return true;
}

Status Exchange::TakeHead(std::uint64_t max_reply_bytes) {
  auto decoded = DecodeFrameHeader(reply_head_, max_reply_bytes);
  if (!decoded.ok()) return decoded.status();
  const FrameHeader& header = decoded.value();
  const bool is_error = (header.flags & kFlagError) != 0;
  if ((header.flags & kFlagReply) == 0) return Broken(header_, "got a request instead");
  // A server that could not decode the request cannot name it in its error.
  const bool is_nameless = is_error && header.request_id == 0;
  if (!is_nameless && (header.request_id != header_.request_id || header.type != header_.type)) {
    return Broken(header_, "got the reply to another request instead");
  }
  if (is_error) {
    if (header.body_bytes > kMaxErrorBytes) return Broken(header_, "the error is too long");
    error_body_.resize(header.body_bytes);
  } else if (!reply_->in_parts) {
    reply_->body.resize(header.body_bytes);
  } else {
    std::uint64_t wanted = 0;
    for (const auto& part : reply_->parts) wanted += part.size();
    if (header.body_bytes != wanted) {
      return Broken(header_, "it has " + std::to_string(header.body_bytes) + " bytes, expected " +
                                 std::to_string(wanted));
    }
  }
  reply_header_ = header;
  return Status::Ok();
}

std::span<std::byte> Exchange::Missing() {
  const auto rest = [this](std::span<std::byte> whole) {
    return read_ < whole.size() ? whole : std::span<std::byte>();
  };
  if ((reply_header_->flags & kFlagError) != 0) return rest(error_body_);
  if (!reply_->in_parts) return rest(reply_->body);
  while (part_ < reply_->parts.size()) {
    const auto found = rest(reply_->parts[part_]);
    if (!found.empty()) return found;
    ++part_;
    read_ = 0;
  }
  return {};
}

}  // namespace sparsefleet
