// The bodies of the frames, one struct each, with their encoding. Format: docs/wire_format.md.
//
// Decode functions return kProtocol for a body that is not exactly one legal message. Views
// (string_view, span) point into the body given: keep it alive. REQUIRES: body aligned to 8 bytes.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "status/status.h"
#include "store/round_member.h"
#include "store/store.h"
#include "table/table_set.h"
#include "table/table_spec.h"
#include "transport/bf16.h"
#include "transport/body.h"

namespace sparsefleet {

using Body = std::vector<std::byte>;

inline constexpr std::uint32_t kMaxSections = 4096;  // of a pull or push

// A body whose arrays are sent from where they are stored; `pieces` in order, some within `heads`.
struct GatheredBody {
  GatheredBody() = default;
  GatheredBody(GatheredBody&&) = default;  // pieces keep pointing to heads
  GatheredBody& operator=(GatheredBody&&) = default;

  Body heads;
  std::vector<iovec> pieces;
  std::uint64_t bytes = 0;
};

// Error reply: the status. Code u16 | message.
Body EncodeError(const Status& status);
Status DecodeError(std::span<const std::byte> body);  // never ok: kProtocol if malformed

// First frame of a connection, after the key is proven.
struct HelloRequest {
  std::uint64_t client_id = 0;  // random, the same for all connections of a client
  std::uint32_t server_index = 0;
  std::uint32_t num_servers = 1;
  bool control = false;  // the heartbeat connection
  std::string client_name;
};
struct HelloReply {
  std::uint64_t incarnation = 0;  // random; changes when the server restarts
  std::uint64_t max_frame_bytes = 0;
  double peer_timeout_s = 0;
  std::uint64_t session = 0;  // changes once the server has forgotten the client's replies
};
Body Encode(const HelloRequest& message);
Body Encode(const HelloReply& message);
Result<HelloRequest> DecodeHelloRequest(std::span<const std::byte> body);
Result<HelloReply> DecodeHelloReply(std::span<const std::byte> body);

Body Encode(const SparseSpec& spec);
Body Encode(const DenseSpec& spec);  // size of the whole array, not of one server's part
Result<SparseSpec> DecodeSparseSpec(std::span<const std::byte> body);
Result<DenseSpec> DecodeDenseSpec(std::span<const std::byte> body);

// A request with a table name and up to two numbers and flags: version, wait for version, table
// info, learning rate, shrink, open cut. The type determines the meaning of the fields.
struct TableRequest {
  std::string_view table;
  // wait: at_least; shrink: step; learning rate: its count; take changes: chunks received
  std::uint64_t number = 0;
  double real = 0;  // learning rate
  // open cut: 1 only dirty, 2 clear dirty; learning rate: 1 it has a count; take changes: 1 begin,
  // 2 rows in 16 bits
  std::uint32_t flags = 0;
};
inline constexpr std::uint32_t kFlagHasCount = 1;
inline constexpr std::uint32_t kFlagBeginTaking = 1;
inline constexpr std::uint32_t kFlagTakeBf16 = 2;
Body Encode(const TableRequest& message);
Result<TableRequest> DecodeTableRequest(std::span<const std::byte> body);

Body Encode(const TableInfo& info);
Result<TableInfo> DecodeTableInfo(std::span<const std::byte> body);

// Pull. Each section's head, name, then its keys. The reply is the values of the sections in order,
// each padded to 8 bytes.
struct PullRequest {
  std::uint64_t step = 0;
  PullMode mode = PullMode::kTrain;
  struct Section {
    std::string_view table;
    bool dense = false;
    std::uint32_t dim = 0;      // the width the client expects; dense: 1
    std::uint64_t count = 0;    // keys, or elements of a dense part
    std::uint64_t offset = 0;   // dense: first element, counted in this server's part
    std::span<const Key> keys;  // sparse
    bool bf16 = false;          // the reply brings the values in 16 bits
  };
  std::vector<Section> sections;
};
Body Encode(const PullRequest& message);
GatheredBody Gather(const PullRequest& message);  // the same bytes
Result<PullRequest> DecodePullRequest(std::span<const std::byte> body);
// Bytes of the reply's body; the values of a section start at a multiple of 8.
std::uint64_t PullReplyBytes(const PullRequest& message);
// Bytes of `count` values in a reply, with the zeros that follow them. REQUIRES: no overflow.
constexpr std::uint64_t ValueBytes(std::uint64_t count, bool bf16) {
  return (count * (bf16 ? sizeof(Bf16) : sizeof(float)) + 7) & ~std::uint64_t{7};
}

// Push. Each section's head, name, its keys, its values.
struct PushRequest {
  std::uint64_t step = 0;
  struct Section {
    std::string_view table;
    bool dense = false;
    bool keys_are_unique = false;
    bool add = false;
    std::uint32_t dim = 0;
    std::uint64_t count = 0;
    std::span<const Key> keys;
    std::span<const float> values;  // count * dim; dense: count
    bool wants_values = false;      // dense: reply with the values after the push
    // Dense, not decoded: further values, if they are not contiguous.
    std::vector<std::span<const float>> more_values = {};
    bool wants_rows = false;  // sparse: no values; reply with the rows after the push
    // `narrow` replaces `values`, and the reply brings values and rows in 16 bits.
    bool bf16 = false;
    std::span<const Bf16> narrow = {};
  };
  std::vector<Section> sections;
  std::span<const DataMark> marks = {};  // of the data that the push comes from
};
Body Encode(const PushRequest& message);
GatheredBody Gather(const PushRequest& message);
Result<PushRequest> DecodePushRequest(std::span<const std::byte> body);
// Sets `values` of the decoded sections that have `narrow` ones; returns their memory, which must
// outlive the message, or null if there are none.
std::unique_ptr<float[]> WidenValues(PushRequest& message);
// The reply to a push; the requested rows, then the values follow it as in the reply to a pull.
inline constexpr std::size_t kPushResultBytes = 24;
Body Encode(const PushResult& result);
Result<PushResult> DecodePushResult(std::span<const std::byte> body);

inline constexpr std::size_t kMaxMarks = 1024;  // of a push
inline constexpr double kMaxGraceS = 1e6;

// A client continues a session: what its servers have applied. With `take_over`, calls left open by
// a predecessor are over, and sequences continue after its last.
struct ResumeRequest {
  bool take_over = false;
  // How long the client may be silent before it is lost, if that is longer than the peer timeout:
  // another process may take its place.
  double grace_s = 0;
};
struct ResumeReply {
  std::array<std::uint64_t, 4> next_sequence{};  // by window
  std::vector<DataMark> marks;                   // applied, in order of stream
};
Body Encode(const ResumeRequest& message);
Body Encode(const ResumeReply& message);
Result<ResumeRequest> DecodeResumeRequest(std::span<const std::byte> body);
Result<ResumeReply> DecodeResumeReply(std::span<const std::byte> body);

// Push round: a member's part of a round. With a refusal the push is empty.
struct PushRoundRequest {
  RoundMember member;
  std::uint64_t round = 0;
  std::string_view refusal;
  PushRequest push;
};
Body Encode(const PushRoundRequest& message);
GatheredBody Gather(const PushRoundRequest& message);
Result<PushRoundRequest> DecodePushRound(std::span<const std::byte> body);

struct AdvanceClockRequest {
  RoundMember member;
  std::uint64_t clock = 0;
  std::optional<std::uint64_t> bound;
};
Body Encode(const AdvanceClockRequest& message);
Result<AdvanceClockRequest> DecodeAdvanceClock(std::span<const std::byte> body);

Body Encode(const RoundMember& member);  // leave group
Result<RoundMember> DecodeMember(std::span<const std::byte> body);

struct WriteDenseRequest {
  std::string_view table;
  std::span<const float> values;  // this server's complete part
};
Body Encode(const WriteDenseRequest& message);
Result<WriteDenseRequest> DecodeWriteDense(std::span<const std::byte> body);

// Replies that are one number: version, shrink, erase, open cut (its id), advance clock (the sum),
// watch changes (chunks taken so far).
Body EncodeNumber(std::uint64_t number);
Result<std::uint64_t> DecodeNumber(std::span<const std::byte> body);

struct BarrierRequest {
  std::string_view name;
  std::uint32_t members = 0;
};
Body Encode(const BarrierRequest& message);
Result<BarrierRequest> DecodeBarrier(std::span<const std::byte> body);

// Put: key and value. Get: key, `wait`. Delete: key. Reply of get: EncodeText(value).
struct NoteRequest {
  std::string_view key;
  std::string_view value;
  bool wait = false;
};
Body Encode(const NoteRequest& message);
Result<NoteRequest> DecodeNote(std::span<const std::byte> body);

// Several notes at once: their keys, and a reply with the values of those that exist.
Body EncodeNoteKeys(std::span<const std::string_view> keys);
Result<std::vector<std::string_view>> DecodeNoteKeys(std::span<const std::byte> body);
using NoteValues = std::vector<std::optional<std::string>>;
Body EncodeNoteValues(const NoteValues& values);
Result<NoteValues> DecodeNoteValues(std::span<const std::byte> body);

// A single text: the directory of save and load, the value of a note.
Body EncodeText(std::string_view text);
Result<std::string_view> DecodeText(std::span<const std::byte> body);

Body Encode(const StatMap& stats);
Result<StatMap> DecodeStats(std::span<const std::byte> body);

struct EraseRequest {
  std::string_view table;
  std::span<const Key> keys;
};
Body Encode(const EraseRequest& message);
Result<EraseRequest> DecodeErase(std::span<const std::byte> body);

struct NextCutRequest {
  std::uint64_t cut = 0;
  std::uint64_t max_rows = 0;
};
Body Encode(const NextCutRequest& message);
Result<NextCutRequest> DecodeNextCut(std::span<const std::byte> body);

// For the program running the server. The reply's body is the program's answer.
struct CommandRequest {
  std::string_view name;
  std::span<const std::byte> body;
};
inline constexpr std::size_t kMaxCommandNameBytes = 255;
Body Encode(const CommandRequest& message);
GatheredBody Gather(const CommandRequest& message);
Result<CommandRequest> DecodeCommand(std::span<const std::byte> body);

// Rows with a table name (import), or an empty one (reply to next; no rows: the end). `bf16`: their
// values in 16 bits (reply to take changes).
Body EncodeRows(std::string_view table, const RowBatch& rows, bool bf16 = false);
struct NamedRows {
  std::string table;
  RowBatch rows;
};
Result<NamedRows> DecodeRows(std::span<const std::byte> body, bool bf16 = false);

}  // namespace sparsefleet
