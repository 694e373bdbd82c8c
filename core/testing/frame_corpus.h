// Valid frames of every type, and deterministic damage to them, for fuzz tests.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "transport/frame.h"
#include "transport/messages.h"

namespace sparsefleet::testing {

using Bytes = std::vector<std::byte>;

inline Bytes FrameOf(MessageType type, const Body& body, std::uint64_t sequence) {
  FrameHeader header;
  header.type = type;
  header.request_id = 1;
  header.sequence = IsRecorded(type) ? sequence : 0;
  header.acked_below = sequence > 4 ? sequence - 4 : 0;
  header.timeout_ms = 1000;
  header.body_bytes = static_cast<std::uint32_t>(body.size());
  Bytes frame(kFrameHeaderBytes);
  EncodeFrameHeader(header, std::span<std::byte, kFrameHeaderBytes>(frame));
  frame.insert(frame.end(), body.begin(), body.end());
  return frame;
}

inline SparseSpec CorpusSparse(std::string name, std::uint32_t dim) {
  SparseSpec spec;
  spec.name = std::move(name);
  spec.dim = dim;
  spec.initializer = {InitializerKind::kUniform, -0.1, 0.1};
  spec.optimizer.kind = OptimizerKind::kAdagrad;
  spec.eviction.min_norm = 1e-6;
  spec.track_step = true;
  spec.track_dirty = true;
  return spec;
}

inline DenseSpec CorpusDense(std::string name, std::uint64_t size) {
  DenseSpec spec;
  spec.name = std::move(name);
  spec.size = size;
  spec.optimizer.kind = OptimizerKind::kAdam;
  return spec;
}

// Tables that the corpus refers to; a target defines them first.
inline std::vector<SparseSpec> CorpusSparseTables() {
  SparseSpec sites = CorpusSparse("sites", 1);
  sites.row_dtype = RowDtype::kInt8;
  SparseSpec shops = CorpusSparse("shops", 4);
  shops.row_dtype = RowDtype::kBf16;
  return {CorpusSparse("ads", 4), sites, shops};
}
inline std::vector<DenseSpec> CorpusDenseTables() { return {CorpusDense("net", 33)}; }

struct CorpusFrame {
  MessageType type;
  Body body;
};

// At least one frame of each type.
inline std::vector<CorpusFrame> CorpusFrames() {
  static const std::vector<Key> keys = {1, 2, 0xffffffffffffffffULL, 0, 2};
  static const std::vector<float> values(5 * 4, 0.25f);
  static const std::vector<float> dense(33, -0.5f);
  PullRequest pull;
  pull.step = 3;
  pull.sections.push_back({"ads", false, 4, keys.size(), 0, keys});
  pull.sections.push_back({"net", true, 1, 33, 0, {}});
  PushRequest push;
  push.step = 3;
  push.sections.push_back({"ads", false, false, false, 4, keys.size(), keys, values});
  push.sections.push_back({"net", true, false, true, 1, 33, {}, dense});
  push.sections.push_back(
      {"sites", false, true, false, 1, 2, std::span(keys).first(2), std::span(values).first(2)});
  PushRequest::Section wants;
  wants.table = "ads";
  wants.dim = 4;
  wants.count = keys.size();
  wants.keys = keys;
  wants.wants_rows = true;
  push.sections.push_back(wants);
  static const std::vector<Bf16> narrow(33, 0xbf00);
  PullRequest narrow_pull = pull;
  narrow_pull.sections.push_back({"shops", false, 4, keys.size(), 0, keys});
  narrow_pull.sections.push_back({"sites", false, 1, keys.size(), 0, keys});
  for (auto& section : narrow_pull.sections) section.bf16 = true;
  PushRequest narrow_push = push;
  narrow_push.sections.push_back({"shops", false, false, false, 4, keys.size(), keys, values});
  for (auto& section : narrow_push.sections) {
    section.bf16 = true;
    section.narrow = std::span(narrow).first(section.values.size());
    section.wants_values = section.dense;
  }
  PushRoundRequest round{{"train", 0, 1, false}, 7, "", push};
  round.push.sections[1].add = false;
  PushRoundRequest narrow_round{{"bits", 0, 1, false}, 3, "", narrow_push};
  narrow_round.push.sections[1].add = false;
  PushRoundRequest waiting = round;
  waiting.member.size = 2;
  waiting.member.group = "pair";
  RowBatch rows;
  rows.keys = {9, 10};
  rows.values.assign(2 * 4, 1.0f);
  rows.state.assign(2 * 4, 0.5f);  // Adagrad's
  rows.counters.assign(2, 3);      // steps
  RowBatch narrow_rows = rows;     // of int8
  narrow_rows.values.assign(2, 0.1f);
  narrow_rows.state.assign(2, 0.5f);
  SparseSpec narrow_spec = CorpusSparse("small", 3);
  narrow_spec.row_dtype = RowDtype::kInt8;
  PushRequest marked = push;
  const DataMark mark{1, 2, 3, 4};
  marked.marks = {&mark, 1};
  HelloRequest hello;
  hello.client_name = "worker-0";
  using T = MessageType;
  const TableRequest ads{"ads", 2, 0.5, 1};
  return {
      {T::kHello, Encode(hello)},
      {T::kHeartbeat, {}},
      {T::kGoodbye, {}},
      {T::kLane, EncodeText("127.0.0.1:9100")},
      {T::kResume, Encode(ResumeRequest{true})},
      {T::kPush, Encode(marked)},
      {T::kDefineSparse, Encode(CorpusSparse("more", 3))},
      {T::kDefineDense, Encode(CorpusDense("flat", 100))},
      {T::kTableInfo, Encode(ads)},
      {T::kPull, Encode(pull)},
      {T::kPush, Encode(push)},
      {T::kPull, Encode(narrow_pull)},
      {T::kPush, Encode(narrow_push)},
      {T::kPushRound, Encode(narrow_round)},
      {T::kWriteDense, Encode(WriteDenseRequest{"net", dense})},
      {T::kSetLearningRate, Encode(ads)},
      {T::kPushRound, Encode(round)},
      {T::kPushRound, Encode(waiting)},
      {T::kPushRound, Encode(PushRoundRequest{{"pair", 1, 2, false}, 7, "not finite", {}})},
      {T::kVersion, Encode(ads)},
      {T::kWaitVersion, Encode(ads)},
      {T::kBarrier, Encode(BarrierRequest{"epoch", 2})},
      {T::kPutNote, Encode(NoteRequest{"rank-0", "10.0.0.1:99", false})},
      {T::kGetNote, Encode(NoteRequest{"rank-0", "", true})},
      {T::kGetNotes, EncodeNoteKeys(std::vector<std::string_view>{"rank-0", "rank-1"})},
      {T::kDeleteNote, Encode(NoteRequest{"rank-0", "", false})},
      {T::kAdvanceClock, Encode(AdvanceClockRequest{{"clocks", 1, 3, true}, 9, 2})},
      {T::kLeaveGroup, Encode(RoundMember{"train", 0, 1, false})},
      {T::kLeaveGroup, Encode(RoundMember{"pair", 1, 2, false})},
      {T::kStats, {}},
      {T::kShrink, Encode(ads)},
      {T::kErase, Encode(EraseRequest{"ads", keys})},
      {T::kOpenCut, Encode(ads)},
      {T::kNextCut, Encode(NextCutRequest{1, 3})},
      {T::kCloseCut, EncodeNumber(1)},
      {T::kImport, EncodeRows("ads", rows)},
      {T::kWatchChanges, Encode(ads)},
      {T::kPush, Encode(push)},
      {T::kTakeChanges, Encode(TableRequest{"ads", 0, 0.0, kFlagBeginTaking})},
      {T::kWatchChanges, Encode(TableRequest{"shops", 0, 0.0, 0})},
      {T::kPush, Encode(narrow_push)},
      {T::kTakeChanges, Encode(TableRequest{"shops", 0, 0.0, kFlagBeginTaking | kFlagTakeBf16})},
      {T::kImport, EncodeRows("shops", rows)},
      {T::kImport, EncodeRows("sites", narrow_rows)},
      {T::kOpenCut, Encode(TableRequest{"sites", 0, 0.0, 0})},
      {T::kNextCut, Encode(NextCutRequest{2, 3})},
      {T::kDefineSparse, Encode(narrow_spec)},
      {T::kShutdown, {}},
      {T::kCommand, Encode(CommandRequest{"ping", std::as_bytes(std::span(keys))})},
      {T::kCommand, Encode(CommandRequest{"", {}})}};
}

// Damaged frames, the same ones for the same seed. Not thread-safe.
class FrameMutator {
 public:
  explicit FrameMutator(std::uint64_t seed) : random_(seed) {}

  Bytes Next() {
    Bytes frame = Pick();
    for (std::uint64_t count = Below(5); count > 0; --count) Damage(frame);
    // Usually the header is repaired to match the body, so that the code behind it is reached.
    if (frame.size() >= kFrameHeaderBytes && Below(4) != 0) Mend(frame);
    return frame;
  }

 private:
  std::uint64_t Below(std::uint64_t limit) { return random_() % limit; }

  Bytes Pick() {
    const CorpusFrame& frame = corpus_[Below(corpus_.size())];
    return FrameOf(frame.type, frame.body, next_sequence_++);
  }

  template <typename T>
  void Overwrite(Bytes& frame, T value) {
    if (frame.size() < sizeof(T)) return;
    const std::size_t step = Below(2) == 0 ? 1 : 4;
    const std::size_t at = Below((frame.size() - sizeof(T)) / step + 1) * step;
    std::memcpy(frame.data() + at, &value, sizeof(T));
  }

  void Damage(Bytes& frame) {
    static constexpr std::array<std::uint64_t, 10> kOdd = {
        0, 1, 255, 4096, 4097, 0x7fffffff, 0xffffffff, 1ULL << 62, 1ULL << 63, UINT64_MAX};
    switch (Below(9)) {
      case 0:
        if (!frame.empty()) frame[Below(frame.size())] ^= std::byte{1} << Below(8);
        return;
      case 1:
        return Overwrite(frame, static_cast<std::uint8_t>(random_()));
      case 2:
        return Overwrite(frame, static_cast<std::uint32_t>(kOdd[Below(kOdd.size())]));
      case 3:
        return Overwrite(frame, kOdd[Below(kOdd.size())]);
      case 4:
        return Overwrite(frame, static_cast<std::uint32_t>(Below(64)));
      case 5:
        return frame.resize(Below(frame.size() + 1));
      case 6: {
        for (std::uint64_t more = Below(64); more > 0; --more) {
          frame.push_back(static_cast<std::byte>(random_()));
        }
        return;
      }
      case 7: {  // the head of this frame, the tail of another
        const Bytes other = Pick();
        frame.resize(Below(frame.size() + 1));
        const std::size_t from = Below(other.size() + 1);
        frame.insert(frame.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
        return;
      }
      default: {
        if (Below(20) != 0) return;
        for (auto& byte : frame) byte = static_cast<std::byte>(random_());
      }
    }
  }

  void Mend(Bytes& frame) {
    FrameHeader header;
    const auto type = static_cast<MessageType>(frame[5]);
    header.type = IsKnown(type) ? type : corpus_[Below(corpus_.size())].type;
    header.request_id = random_();
    // Occasionally reuse a sequence.
    const std::uint64_t sequence = Below(16) == 0 ? 1 + Below(next_sequence_) : next_sequence_++;
    header.sequence = IsRecorded(header.type) ? sequence : 0;
    header.timeout_ms = static_cast<std::uint32_t>(Below(1000));
    header.body_bytes = static_cast<std::uint32_t>(frame.size() - kFrameHeaderBytes);
    EncodeFrameHeader(header, std::span<std::byte>(frame).first<kFrameHeaderBytes>());
  }

  std::mt19937_64 random_;
  const std::vector<CorpusFrame> corpus_ = CorpusFrames();
  std::uint64_t next_sequence_ = 1;
};

}  // namespace sparsefleet::testing
