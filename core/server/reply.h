// Replies of the server: their bytes, and the place they go to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "status/status.h"
#include "transport/frame.h"
#include "transport/messages.h"

namespace sparsefleet {

// The bytes of a reply, shared by the queue that sends them and the memory that keeps them
// for a retry. Immutable once made.
class ReplyBody {
 public:
  ReplyBody() = default;
  ReplyBody(Body body) {  // NOLINT: implicit by design
    auto owner = std::make_shared<const Body>(std::move(body));
    bytes_ = *owner;
    owner_ = std::move(owner);
  }

  // A body whose bytes are the caller's to write through `out` before it is sent; not
  // zeroed first, because a pull overwrites all of it. Aligned to 8.
  static ReplyBody Uninitialized(std::size_t size, std::span<std::byte>& out) {
    std::shared_ptr<std::byte[]> owner = std::make_unique_for_overwrite<std::byte[]>(size);
    out = {owner.get(), size};
    ReplyBody body;
    body.bytes_ = out;
    body.owner_ = std::move(owner);
    return body;
  }

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
};

struct Reply {
  bool error = false;
  ReplyBody body;

  static Reply From(const Result<ReplyBody>& result) {
    if (result.ok()) return {false, result.value()};
    return {true, EncodeError(result.status())};
  }
};

// Takes replies. Implemented by ServerConnection, and by tests without a socket.
// Thread-safe; never blocks.
class ReplySink {
 public:
  virtual ~ReplySink() = default;
  // For each request handed to the dispatcher exactly one of the two is called.
  virtual void Send(const FrameHeader& request, Reply reply) = 0;
  virtual void Abandon() = 0;  // the reply goes to a retry of the request instead
};

// Where the reply of one request goes. The connection may be gone by then.
struct ReplyTo {
  std::weak_ptr<ReplySink> sink;
  FrameHeader request;

  void Send(Reply reply) const {
    if (auto to = sink.lock()) to->Send(request, std::move(reply));
  }
  void Abandon() const {
    if (auto to = sink.lock()) to->Abandon();
  }
};

// The header of the reply to `request`.
inline FrameHeader ReplyHeader(const FrameHeader& request, const Reply& reply) {
  FrameHeader header;
  header.type = request.type;
  header.flags = reply.error ? kFlagReply | kFlagError : kFlagReply;
  header.request_id = request.request_id;
  header.sequence = request.sequence;
  header.body_bytes = static_cast<std::uint32_t>(reply.body.bytes().size());
  return header;
}

}  // namespace sparsefleet
