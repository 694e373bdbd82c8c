// Outgoing frames of a connection. Header only.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "server/reply.h"

namespace sparsefleet {

// Not thread-safe, but buffers from Gather() and frames from Unmade() stay valid while other
// threads Push().
class OutputQueue {
 public:
  struct Frame {
    std::array<std::byte, kFrameHeaderBytes> header;
    ReplyBody body;
    std::span<const std::byte> made;      // for a body with reads: header and body, once built
    std::unique_ptr<std::byte[]> memory;  // holds `made`, unless it lies in the channel
    std::size_t size() const { return header.size() + body.size(); }

    // Builds the bytes, in `room` if that is large enough; false if out of memory.
    // REQUIRES: a body with reads; room aligned to 8.
    bool Make(std::span<std::byte> room) {
      if (room.size() < size()) {
        memory.reset(new (std::nothrow) std::byte[size()]);
        if (memory == nullptr) return false;
        room = {memory.get(), size()};
      }
      std::memcpy(room.data(), header.data(), header.size());
      body.WriteTo(room.subspan(header.size(), body.size()));
      made = room.first(size());
      return true;
    }
  };

  void Push(const FrameHeader& header, ReplyBody body) {
    Frame& frame = frames_.emplace_back();
    EncodeFrameHeader(header, frame.header);
    frame.body = std::move(body);
    unsent_bytes_ += frame.size();
  }

  // The front frame if its bytes must be built before it can be gathered.
  Frame* Unmade() {
    if (frames_.empty() || !frames_.front().body.has_reads()) return nullptr;
    return frames_.front().made.empty() ? &frames_.front() : nullptr;
  }

  // The unsent bytes from the front, as far as they are built and fit into `out`; returns the
  // number of buffers used.
  std::size_t Gather(std::span<iovec> out) const {
    std::size_t used = 0;
    std::size_t skip = sent_of_front_;
    for (const Frame& frame : frames_) {
      if (used + 2 > out.size()) break;
      if (frame.body.has_reads() && frame.made.empty()) break;
      std::array<std::span<const std::byte>, 2> parts = {frame.header, frame.body.bytes()};
      if (!frame.made.empty()) parts = {frame.made, {}};
      for (std::span<const std::byte> part : parts) {
        const std::size_t skipped = std::min(skip, part.size());
        skip -= skipped;
        part = part.subspan(skipped);
        if (part.empty()) continue;
        out[used++] = {const_cast<std::byte*>(part.data()), part.size()};
      }
    }
    return used;
  }

  void Consume(std::size_t bytes) {
    unsent_bytes_ -= bytes;
    sent_of_front_ += bytes;
    while (!frames_.empty() && sent_of_front_ >= frames_.front().size()) {
      sent_of_front_ -= frames_.front().size();
      frames_.pop_front();
    }
  }

  void Clear() {
    frames_.clear();
    unsent_bytes_ = 0;
    sent_of_front_ = 0;
  }

  bool empty() const { return frames_.empty(); }
  std::size_t unsent_bytes() const { return unsent_bytes_; }

 private:
  std::deque<Frame> frames_;
  std::size_t sent_of_front_ = 0;
  std::size_t unsent_bytes_ = 0;
};

}  // namespace sparsefleet
