// Puts frames together from the bytes of a channel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "status/status.h"
#include "transport/channel.h"
#include "transport/frame.h"

namespace sparsefleet {

// Memory for a body is taken as its bytes arrive, so that a header that lies about its length
// costs its sender more than us. Not thread-safe.
class FrameReader {
 public:
  enum class Outcome : std::uint8_t {
    kFrame,     // header() and body() are whole; call Next() when done with them
    kBlocked,   // `wants` says what the socket must become ready for
    kYield,     // much was read and there is more: give other connections a turn
    kEnd,       // the peer closed
    kBroken,    // `status`: the connection failed
    kBadFrame,  // `status`: the bytes are no frame; header() has what could be made out
  };
  struct Step {
    Outcome outcome = Outcome::kBlocked;
    Ready wants = Ready::kWantRead;
    Status status;
  };

  Step Read(Channel& channel, std::uint64_t max_frame_bytes);
  void Next();
  // The memory of body(), which stays where it is. REQUIRES: a whole frame.
  std::unique_ptr<std::byte[]> TakeBody();
  // Gives back memory kept for the next frame. REQUIRES: !in_frame().
  void Trim();

  const FrameHeader& header() const { return header_; }
  std::span<const std::byte> body() const { return {body_.get(), header_.body_bytes}; }
  // Some bytes of a frame are here, others are not.
  bool in_frame() const { return have_ > 0; }
  std::uint64_t bytes_read() const { return bytes_read_; }  // since the start
  std::size_t memory_bytes() const { return capacity_; }

 private:
  Step ReadInto(Channel& channel, std::span<std::byte> out);
  void SalvageHeader();
  void Grow();

  std::array<std::byte, kFrameHeaderBytes> header_bytes_{};
  FrameHeader header_;
  std::size_t have_ = 0;  // bytes of this frame, header included
  std::unique_ptr<std::byte[]> body_;
  std::size_t capacity_ = 0;
  std::uint64_t bytes_read_ = 0;
};

}  // namespace sparsefleet
