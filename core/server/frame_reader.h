// Assembles frames from the bytes of a channel.
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

// Memory for a body grows as its bytes arrive, so that a header with a false length costs the
// sender more than the server. Not thread-safe.
class FrameReader {
 public:
  enum class Outcome : std::uint8_t {
    kFrame,     // header() and body() are complete; call Next() when done with them
    kBlocked,   // `wants` says what the socket must become ready for
    kYield,     // much was read and more is available: give other connections a turn
    kEnd,       // the peer closed
    kBroken,    // `status`: the connection failed
    kBadFrame,  // `status`: not a valid frame; header() has what could be decoded
  };
  struct Step {
    Outcome outcome = Outcome::kBlocked;
    Ready wants = Ready::kWantRead;
    Status status;
  };

  Step Read(Channel& channel, std::uint64_t max_frame_bytes);
  void Next();
  // Transfers the memory of body(), which stays valid. REQUIRES: a complete frame.
  std::unique_ptr<std::byte[]> TakeBody();
  // Frees memory kept for the next frame. REQUIRES: !in_frame().
  void Trim();

  const FrameHeader& header() const { return header_; }
  std::span<const std::byte> body() const { return {body_.get(), header_.body_bytes}; }
  // Whether a frame has arrived in part.
  bool in_frame() const { return have_ > 0; }
  std::uint64_t bytes_read() const { return bytes_read_; }  // in total
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
