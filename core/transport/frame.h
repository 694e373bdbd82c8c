// The frame header that every message on a connection starts with, after the handshake.
// Format: docs/wire_format.md. All numbers little-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "status/status.h"

namespace sparsefleet {

inline constexpr std::uint32_t kFrameMagic = 0x4c465053;  // the bytes "SPFL"
inline constexpr std::uint8_t kProtocolVersion = 1;
inline constexpr std::size_t kFrameHeaderBytes = 40;

// Format: append only.
enum class MessageType : std::uint8_t {
  kHello = 1,
  kHeartbeat = 2,
  kGoodbye = 3,
  kLane = 4,
  kResume = 5,
  kDefineSparse = 10,
  kDefineDense = 11,
  kTableInfo = 12,
  kPull = 20,
  kPush = 21,
  kWriteDense = 22,
  kSetLearningRate = 23,
  kPushRound = 24,
  kVersion = 30,
  kWaitVersion = 31,
  kBarrier = 32,
  kPutNote = 33,
  kGetNote = 34,
  kDeleteNote = 35,
  kAdvanceClock = 36,
  kLeaveGroup = 37,
  kGetNotes = 38,
  kStats = 40,
  kShrink = 50,
  kErase = 51,
  kOpenCut = 52,
  kNextCut = 53,
  kCloseCut = 54,
  kImport = 55,
  kWatchChanges = 56,
  kTakeChanges = 57,
  // 60 and 61 saved and loaded tables in a former format: do not reuse them.
  kShutdown = 70,
  kCommand = 80,
  kReplicaOpen = 90,
  kReplicaAppend = 91,
  kReplicaSnapshot = 92,
  kReplicaRead = 93,
};

// True for types whose effect must not happen twice: their requests carry a sequence > 0 and the
// server remembers the reply until the client acknowledges it.
bool IsRecorded(MessageType type);
bool IsKnown(MessageType type);

// Sequences are counted and acknowledged in separate windows, so that a call that stays open for
// minutes does not keep the server from forgetting the replies of all others.
enum class Window : std::uint8_t { kQuick, kJob, kMeeting, kCommand };
inline constexpr std::size_t kNumWindows = 4;
// The window that `sequence` and `acked_below` of a frame of this type belong to.
Window WindowOf(MessageType type);

const char* MessageName(MessageType type);  // "pull", "push", ...; "unknown"

// The header counts a body in 32 bits.
inline constexpr std::uint64_t kMaxBodyBytes = UINT32_MAX;

inline constexpr std::uint16_t kFlagReply = 1;  // server to client
inline constexpr std::uint16_t kFlagError = 2;  // with kFlagReply: the body is an ErrorBody

struct FrameHeader {
  std::uint8_t version = kProtocolVersion;
  MessageType type = MessageType::kHello;
  std::uint16_t flags = 0;
  std::uint64_t request_id = 0;   // chosen by the client, echoed by the server
  std::uint64_t sequence = 0;     // in its window; > 0 exactly for recorded types
  std::uint64_t acked_below = 0;  // calls of the window with lower sequences are over
  std::uint32_t timeout_ms = 0;   // how long the client waits for the reply
  std::uint32_t body_bytes = 0;
};

void EncodeFrameHeader(const FrameHeader& header, std::span<std::byte, kFrameHeaderBytes> out);

// kProtocol for a wrong magic, an unknown type or flag; kVersionMismatch naming both versions;
// kTooLarge naming both sizes.
Result<FrameHeader> DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> in,
                                      std::uint64_t max_frame_bytes);

}  // namespace sparsefleet
