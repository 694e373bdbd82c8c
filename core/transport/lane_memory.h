// The memory that the two ends of a host lane share. Format: docs/wire_format.md, "Host lane".
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "status/status.h"
#include "transport/socket.h"

namespace sparsefleet {

// One direction: a ring of bytes, and the state its reader and writer share.
struct LaneRing {
  std::span<std::byte> bytes;
  std::uint64_t* consumed = nullptr;  // written by the reader
  std::uint32_t* waits = nullptr;     // set by a writer that waits for room, cleared by the reader

  std::uint64_t Consumed() const { return std::atomic_ref(*consumed).load(); }
  void SetConsumed(std::uint64_t position) const { std::atomic_ref(*consumed).store(position); }
  void SetWaits() const { std::atomic_ref(*waits).store(1); }
  bool TakeWaits() const { return std::atomic_ref(*waits).exchange(0) != 0; }
};

// Two rings in an anonymous memory file, mapped for the lifetime of this object.
class LaneMemory {
 public:
  static constexpr std::size_t kDefaultCapacity = 4u << 20;

  LaneMemory() = default;
  LaneMemory(LaneMemory&& other) noexcept;
  LaneMemory& operator=(LaneMemory&& other) noexcept;
  ~LaneMemory();

  // New memory; send fd() to the peer. kIo where the system has no such files.
  static Result<LaneMemory> Create(std::size_t capacity = kDefaultCapacity);
  // The peer's memory. kProtocol unless sealed as the format requires: its size could change under
  // us.
  static Result<LaneMemory> Open(OwnedSocket fd, std::uint64_t capacity);

  int fd() const { return fd_.fd(); }
  void CloseFd() { fd_ = OwnedSocket(); }  // the mapping stays
  std::size_t capacity() const { return capacity_; }
  LaneRing up() const { return Ring(0); }    // client to server
  LaneRing down() const { return Ring(1); }  // server to client

 private:
  static Result<LaneMemory> Map(OwnedSocket fd, std::size_t capacity);
  LaneRing Ring(std::size_t index) const;

  OwnedSocket fd_;
  std::byte* base_ = nullptr;
  std::size_t capacity_ = 0;
};

}  // namespace sparsefleet
