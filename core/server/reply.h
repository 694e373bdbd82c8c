// Server replies: their bytes and their destination.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "status/status.h"
#include "table/dense_table.h"
#include "transport/frame.h"
#include "transport/messages.h"

namespace sparsefleet {

// Elements of a dense table at the end of a reply. They are read when the reply is sent, directly
// into the send buffer; a retry reads them again and gets values at least as new.
struct DenseRead {
  std::shared_ptr<const DenseTable> table;
  std::uint64_t offset = 0;
  std::uint64_t count = 0;  // REQUIRES: elements [offset, offset + count) are in the table
  bool bf16 = false;

  // In a body, zeros follow up to a multiple of 8.
  std::size_t bytes() const { return static_cast<std::size_t>(ValueBytes(count, bf16)); }
  // REQUIRES: room for bytes(), aligned to 8.
  void WriteTo(std::byte* out) const;
};

using DenseReads = std::shared_ptr<const std::vector<DenseRead>>;

// The bytes of a reply, shared by the queue that sends them and the memory that keeps them for a
// retry. Immutable once built; copies do not allocate.
class ReplyBody {
 public:
  ReplyBody() = default;
  ReplyBody(Body body) {  // NOLINT: implicit by design
    auto owner = std::make_shared<const Body>(std::move(body));
    bytes_ = *owner;
    owner_ = std::move(owner);
  }

  // A body that the caller fills through `out` before it is sent; not zeroed first, because a pull
  // overwrites all of it. Aligned to 8.
  static ReplyBody Uninitialized(std::size_t size, std::span<std::byte>& out) {
    std::shared_ptr<std::byte[]> owner = std::make_unique_for_overwrite<std::byte[]>(size);
    out = {owner.get(), size};
    ReplyBody body;
    body.bytes_ = out;
    body.owner_ = std::move(owner);
    return body;
  }

  // REQUIRES: bytes() end at a multiple of 8.
  ReplyBody& Append(DenseReads reads) {
    reads_ = std::move(reads);
    for (const DenseRead& read : *reads_) read_bytes_ += read.bytes();
    return *this;
  }

  std::span<const std::byte> bytes() const { return bytes_; }  // without the deferred reads
  bool has_reads() const { return reads_ != nullptr && !reads_->empty(); }
  std::size_t size() const { return bytes_.size() + read_bytes_; }

  // Writes the whole body. REQUIRES: out.size() == size(), aligned to 8.
  void WriteTo(std::span<std::byte> out) const {
    if (!bytes_.empty()) std::memcpy(out.data(), bytes_.data(), bytes_.size());
    if (reads_ == nullptr) return;
    std::size_t at = bytes_.size();
    for (const DenseRead& read : *reads_) {
      read.WriteTo(out.data() + at);
      at += read.bytes();
    }
  }

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
  DenseReads reads_;
  std::size_t read_bytes_ = 0;
};

struct Reply {
  bool error = false;
  ReplyBody body;

  static Reply From(const Result<ReplyBody>& result) {
    if (result.ok()) return {false, result.value()};
    return {true, EncodeError(result.status())};
  }
};

// Receives replies. Implemented by ServerConnection, and by tests without a socket.
// Thread-safe; never blocks.
class ReplySink {
 public:
  virtual ~ReplySink() = default;
  // Exactly one of these is called for each request given to the dispatcher.
  virtual void Send(const FrameHeader& request, Reply reply) = 0;
  virtual void Abandon() = 0;  // the reply goes to a retry of the request instead
};

// The destination of a request's reply. The connection may be gone by then.
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
  header.body_bytes = static_cast<std::uint32_t>(reply.body.size());
  return header;
}

}  // namespace sparsefleet
