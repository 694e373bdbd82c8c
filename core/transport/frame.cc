#include "transport/frame.h"

#include <cstring>
#include <string>

namespace sparsefleet {
namespace {

struct TypeRow {
  MessageType type;
  const char* name;
  bool recorded;
};

constexpr TypeRow kTypes[] = {
    {MessageType::kHello, "hello", false},
    {MessageType::kHeartbeat, "heartbeat", false},
    {MessageType::kGoodbye, "goodbye", false},
    {MessageType::kLane, "lane", false},
    {MessageType::kResume, "resume", false},
    {MessageType::kDefineSparse, "define sparse table", true},
    {MessageType::kDefineDense, "define dense table", true},
    {MessageType::kTableInfo, "table info", false},
    {MessageType::kPull, "pull", false},
    {MessageType::kPush, "push", true},
    {MessageType::kWriteDense, "write dense", true},
    {MessageType::kSetLearningRate, "set learning rate", true},
    {MessageType::kPushRound, "push round", true},
    {MessageType::kVersion, "version", false},
    {MessageType::kWaitVersion, "wait for version", false},
    {MessageType::kBarrier, "barrier", true},
    {MessageType::kPutNote, "put note", true},
    {MessageType::kGetNote, "get note", false},
    {MessageType::kDeleteNote, "delete note", true},
    {MessageType::kAdvanceClock, "advance clock", true},
    {MessageType::kLeaveGroup, "leave group", true},
    {MessageType::kGetNotes, "get notes", false},
    {MessageType::kStats, "stats", false},
    {MessageType::kShrink, "shrink", true},
    {MessageType::kErase, "erase", true},
    {MessageType::kOpenCut, "open cut", true},
    {MessageType::kNextCut, "next of cut", true},
    {MessageType::kCloseCut, "close cut", true},
    {MessageType::kImport, "import rows", true},
    {MessageType::kWatchChanges, "watch changes", true},
    {MessageType::kTakeChanges, "take changes", true},
    {MessageType::kShutdown, "shutdown", false},
    {MessageType::kCommand, "command", true},
    {MessageType::kReplicaOpen, "replica open", false},
    {MessageType::kReplicaAppend, "replica append", false},
    {MessageType::kReplicaSnapshot, "replica snapshot", false},
    {MessageType::kReplicaRead, "replica read", false},
};

const TypeRow* FindType(MessageType type) {
  for (const auto& row : kTypes) {
    if (row.type == type) return &row;
  }
  return nullptr;
}

template <typename T>
void Store(std::byte* at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    at[i] = static_cast<std::byte>(value >> (8 * i));
  }
}

template <typename T>
T Load(const std::byte* at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value =
        static_cast<T>(value | (static_cast<T>(std::to_integer<std::uint8_t>(at[i])) << (8 * i)));
  }
  return value;
}

}  // namespace

bool IsKnown(MessageType type) { return FindType(type) != nullptr; }

Window WindowOf(MessageType type) {
  switch (type) {
    case MessageType::kShrink:
      return Window::kJob;
    // Heartbeats report abandoned waits before the client starts another.
    case MessageType::kHeartbeat:
    case MessageType::kBarrier:
    case MessageType::kPushRound:
    case MessageType::kAdvanceClock:
    case MessageType::kLeaveGroup:
      return Window::kMeeting;
    case MessageType::kCommand:
      return Window::kCommand;
    default:
      return Window::kQuick;
  }
}

bool IsRecorded(MessageType type) {
  const TypeRow* row = FindType(type);
  return row != nullptr && row->recorded;
}

const char* MessageName(MessageType type) {
  const TypeRow* row = FindType(type);
  return row == nullptr ? "unknown" : row->name;
}

void EncodeFrameHeader(const FrameHeader& header, std::span<std::byte, kFrameHeaderBytes> out) {
  Store<std::uint32_t>(&out[0], kFrameMagic);
  Store<std::uint8_t>(&out[4], header.version);
  Store<std::uint8_t>(&out[5], static_cast<std::uint8_t>(header.type));
  Store<std::uint16_t>(&out[6], header.flags);
  Store<std::uint64_t>(&out[8], header.request_id);
  Store<std::uint64_t>(&out[16], header.sequence);
  Store<std::uint64_t>(&out[24], header.acked_below);
  Store<std::uint32_t>(&out[32], header.timeout_ms);
  Store<std::uint32_t>(&out[36], header.body_bytes);
}

Result<FrameHeader> DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> in,
                                      std::uint64_t max_frame_bytes) {
  const auto magic = Load<std::uint32_t>(&in[0]);
  if (magic != kFrameMagic) {
    return Status(Code::kProtocol,
                  "frame does not start with SPFL: the peer is not a sparsefleet "
                  "server or client, or the stream is out of step");
  }
  FrameHeader header;
  header.version = Load<std::uint8_t>(&in[4]);
  if (header.version != kProtocolVersion) {
    return Status(Code::kVersionMismatch,
                  "peer speaks protocol version " + std::to_string(header.version) +
                      ", this side speaks " + std::to_string(kProtocolVersion) +
                      ": install the same sparsefleet version on both");
  }
  header.type = static_cast<MessageType>(Load<std::uint8_t>(&in[5]));
  if (!IsKnown(header.type)) {
    return Status(Code::kProtocol,
                  "frame of unknown type " + std::to_string(static_cast<unsigned>(header.type)));
  }
  header.flags = Load<std::uint16_t>(&in[6]);
  if ((header.flags & ~(kFlagReply | kFlagError)) != 0) {
    return Status(Code::kProtocol, "frame with unknown flags " + std::to_string(header.flags));
  }
  header.request_id = Load<std::uint64_t>(&in[8]);
  header.sequence = Load<std::uint64_t>(&in[16]);
  header.acked_below = Load<std::uint64_t>(&in[24]);
  header.timeout_ms = Load<std::uint32_t>(&in[32]);
  header.body_bytes = Load<std::uint32_t>(&in[36]);
  if (header.body_bytes > max_frame_bytes) {
    return Status(Code::kTooLarge, std::string(MessageName(header.type)) + " frame has a body of " +
                                       std::to_string(header.body_bytes) +
                                       " bytes, but the limit is " +
                                       std::to_string(max_frame_bytes));
  }
  if ((header.flags & kFlagReply) == 0 && IsRecorded(header.type) != (header.sequence > 0)) {
    return Status(Code::kProtocol, std::string(MessageName(header.type)) +
                                       " request with sequence " + std::to_string(header.sequence));
  }
  return header;
}

}  // namespace sparsefleet
