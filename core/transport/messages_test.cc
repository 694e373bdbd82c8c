#include "transport/messages.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "testing/check.h"

namespace sparsefleet::testing {
namespace {

const std::vector<Key> kKeys = {1, 0, ~Key{0}, 42, 7};
const std::vector<float> kValues = {0.5f, -1.0f, 3e38f, 1e-40f, 0.0f, 1.0f, 2.0f, 3.0f, 4.0f, 5.0f};

SparseSpec ExampleSparse() {
  SparseSpec spec;
  spec.name = "ads";
  spec.dim = 10;
  spec.seed = 0x123456789abcdef0;
  spec.initializer = {InitializerKind::kTruncatedNormal, 0.1, 0.2};
  spec.optimizer.kind = OptimizerKind::kFtrl;
  spec.optimizer.nesterov = true;
  spec.optimizer.centered = true;
  double next = 0.001;
  for (double* field :
       {&spec.optimizer.learning_rate, &spec.optimizer.momentum, &spec.optimizer.beta1,
        &spec.optimizer.beta2, &spec.optimizer.epsilon, &spec.optimizer.decay,
        &spec.optimizer.initial_accumulator, &spec.optimizer.learning_rate_power,
        &spec.optimizer.ftrl_l1, &spec.optimizer.ftrl_l2, &spec.optimizer.l1, &spec.optimizer.l2}) {
    *field = next;
    next += 0.001;
  }
  spec.admission = {AdmissionKind::kProbability, 3, 0.25};
  spec.eviction = {11, 12, 13, 0.5};
  spec.non_finite = NonFinitePolicy::kRaise;
  spec.track_count = spec.track_step = spec.track_seconds = spec.track_dirty = true;
  return spec;
}

DenseSpec ExampleDense() {
  DenseSpec spec;
  spec.name = "tower";
  spec.size = 1 << 20;
  spec.optimizer = ExampleSparse().optimizer;
  spec.non_finite = NonFinitePolicy::kRejectRow;
  spec.min_block_size = 77;
  return spec;
}

PullRequest ExamplePull() {
  PullRequest m;
  m.step = 9;
  m.mode = PullMode::kInferInitial;
  m.sections.push_back({"ads", false, 10, kKeys.size(), 0, kKeys});
  m.sections.push_back({"tower", true, 1, 1001, 17, {}});
  m.sections.push_back({"", false, 4096, 0, 0, {}});
  return m;
}

PushRequest ExamplePush() {
  PushRequest m;
  m.step = 10;
  m.sections.push_back({"ads", false, true, false, 2, kKeys.size(), kKeys, kValues});
  m.sections.push_back({"tower", true, false, true, 1, 10, {}, kValues});
  return m;
}

PullRequest NarrowPull() {
  PullRequest m = ExamplePull();
  m.sections[0].bf16 = m.sections[1].bf16 = true;
  return m;
}

const std::vector<Bf16> kNarrow = {0x3f00, 0xbf80, 0x7f61, 0, 0x4000};

// 16-bit values of odd length, then 32-bit ones.
PushRequest NarrowPush() {
  PushRequest m = ExamplePush();
  PushRequest::Section section;
  section.table = "narrow";
  section.dim = 1;
  section.count = kKeys.size();
  section.keys = kKeys;
  section.bf16 = true;
  section.narrow = kNarrow;
  m.sections.insert(m.sections.begin(), section);
  section.narrow = {};
  section.wants_rows = true;
  m.sections.push_back(section);
  return m;
}

PushRoundRequest ExampleRound() { return {{"train", 1, 3, true}, 77, "nan", ExamplePush()}; }

RowBatch ExampleRows() { return {{1, 2, 3}, {1, 2, 3, 4, 5, 6}, {7, 8, 9}, {1, 2, 3, 4, 5, 6}}; }

// A kind of body: an example of it, and its decoder's verdict.
struct BodyKind {
  const char* name;
  Body example;
  std::function<Status(std::span<const std::byte>)> decode;
};

template <typename F>
std::function<Status(std::span<const std::byte>)> StatusOf(F decode) {
  return [decode](std::span<const std::byte> body) { return decode(body).status(); };
}

std::vector<BodyKind> AllKinds() {
  return {
      {"hello", Encode(HelloRequest{1, 2, 3, true, "worker-0"}), StatusOf(DecodeHelloRequest)},
      {"hello reply", Encode(HelloReply{5, 6, 7.5, 8}), StatusOf(DecodeHelloReply)},
      {"sparse spec", Encode(ExampleSparse()), StatusOf(DecodeSparseSpec)},
      {"dense spec", Encode(ExampleDense()), StatusOf(DecodeDenseSpec)},
      {"table request", Encode(TableRequest{"ads", 5, 0.5, 3}), StatusOf(DecodeTableRequest)},
      {"table info", Encode(TableInfo{true, 8, 9, 10, 11, NonFinitePolicy::kRaise, 12}),
       StatusOf(DecodeTableInfo)},
      {"pull", Encode(ExamplePull()), StatusOf(DecodePullRequest)},
      {"push", Encode(ExamplePush()), StatusOf(DecodePushRequest)},
      {"push round", Encode(ExampleRound()), StatusOf(DecodePushRound)},
      {"advance clock", Encode(AdvanceClockRequest{{"g", 1, 2, true}, 9, 3}),
       StatusOf(DecodeAdvanceClock)},
      {"member", Encode(RoundMember{"g", 1, 2, true}), StatusOf(DecodeMember)},
      {"push result", Encode(PushResult{1, 2, 3}), StatusOf(DecodePushResult)},
      {"write dense", Encode(WriteDenseRequest{"tower", kValues}), StatusOf(DecodeWriteDense)},
      {"number", EncodeNumber(77), StatusOf(DecodeNumber)},
      {"barrier", Encode(BarrierRequest{"epoch", 4}), StatusOf(DecodeBarrier)},
      {"note", Encode(NoteRequest{"key", "value", true}), StatusOf(DecodeNote)},
      {"text", EncodeText("some text"), StatusOf(DecodeText)},
      {"stats", Encode(StatMap{{"a", 1.0}, {"b", 2.0}}), StatusOf(DecodeStats)},
      {"erase", Encode(EraseRequest{"ads", kKeys}), StatusOf(DecodeErase)},
      {"next cut", Encode(NextCutRequest{3, 4}), StatusOf(DecodeNextCut)},
      {"command", Encode(CommandRequest{"save", std::as_bytes(std::span(kKeys))}),
       StatusOf(DecodeCommand)},
      {"rows", EncodeRows("ads", ExampleRows()),
       [](auto body) { return DecodeRows(body).status(); }},
      {"rows in 16 bits", EncodeRows("ads", ExampleRows(), true),
       [](auto body) { return DecodeRows(body, true).status(); }},
      {"pull in 16 bits", Encode(NarrowPull()), StatusOf(DecodePullRequest)},
      {"push in 16 bits", Encode(NarrowPush()), StatusOf(DecodePushRequest)},
  };
}

const Test kNarrowPush("16-bit sections mix with others, and their flag survives widening", [] {
  const Body body = Encode(NarrowPush());
  const GatheredBody gathered = Gather(NarrowPush());
  Body joined;
  for (const iovec& piece : gathered.pieces) {
    const auto* bytes = static_cast<const std::byte*>(piece.iov_base);
    joined.insert(joined.end(), bytes, bytes + piece.iov_len);
  }
  Expect(joined == body, "gathered in the same bytes");
  PushRequest m = RequireOk(DecodePushRequest(body));
  const auto memory = WidenValues(m);
  Require(m.sections.size() == 4 && m.sections[0].values.size() == kNarrow.size());
  for (std::size_t i = 0; i < kNarrow.size(); ++i) {
    ExpectEqual(std::bit_cast<std::uint32_t>(m.sections[0].values[i]),
                static_cast<std::uint32_t>(kNarrow[i]) << 16);
  }
  Expect(m.sections[0].bf16 && m.sections[3].bf16 && m.sections[3].wants_rows);
  Expect(!m.sections[1].bf16 && std::ranges::equal(m.sections[1].values, kValues));
  PushRequest plain = ExamplePush();
  Expect(WidenValues(plain) == nullptr, "nothing to widen");
});

const Test kBadFlags("unknown section flags are named in the error", [] {
  Body body = Encode(NarrowPull());
  body[16 + 20] = std::byte{128};
  const Status pull = DecodePullRequest(body).status();
  ExpectCode(pull, Code::kProtocol);
  Expect(pull.message().find("unknown flags 128") != std::string::npos, pull.message());
  body = Encode(NarrowPush());
  body[16 + 20] = std::byte{64 | 32};  // marks have no values
  const Status push = DecodePushRequest(body).status();
  ExpectCode(push, Code::kProtocol);
  Expect(push.message().find("unknown flags 96") != std::string::npos, push.message());
});

const Test kReplyBytes("the reply to a pull counts 2 bytes for each 16-bit value", [] {
  // 5 rows of 10 and 1001 elements, each padded to 8 bytes.
  ExpectEqual(PullReplyBytes(ExamplePull()), 200U + 4008U);
  ExpectEqual(PullReplyBytes(NarrowPull()), 104U + 2008U);
});

const Test kTruncated("every body truncated at any byte or extended by one is kProtocol", [] {
  for (const auto& kind : AllKinds()) {
    RequireOk(kind.decode(kind.example));
    for (std::size_t size = 0; size < kind.example.size(); ++size) {
      // A copy of exactly that size, so that the sanitizer sees a read past its end.
      const Body cut(kind.example.begin(), kind.example.begin() + size);
      ExpectCode(kind.decode(cut), Code::kProtocol);
    }
    Body longer = kind.example;
    longer.push_back(std::byte{0});
    ExpectCode(kind.decode(longer), Code::kProtocol);
  }
});

const Test kMutated("bodies with random bytes changed cause at worst kProtocol", [] {
  std::mt19937 generator(5);
  for (const auto& kind : AllKinds()) {
    for (int round = 0; round < 2000; ++round) {
      Body body = kind.example;
      for (unsigned change = 0; change <= generator() % 4; ++change) {
        body[generator() % body.size()] = static_cast<std::byte>(generator());
      }
      const Status status = kind.decode(body);
      if (!status.ok()) ExpectCode(status, Code::kProtocol);
    }
  }
});

const Test kError("an error reply keeps code and message, a malformed one is kProtocol", [] {
  const Body body = EncodeError({Code::kUnknownTable, "no table 'x'"});
  const Status status = DecodeError(body);
  ExpectCode(status, Code::kUnknownTable);
  ExpectEqual(status.message(), std::string("no table 'x'"));
  for (std::size_t size = 0; size < body.size(); ++size) {
    ExpectCode(DecodeError(Body(body.begin(), body.begin() + size)), Code::kProtocol);
  }
  ExpectCode(DecodeError(EncodeError(Status::Ok())), Code::kProtocol);
  ExpectEqual(DecodeError(EncodeError({Code::kIo, std::string(1 << 20, 'x')})).message().size(),
              std::size_t{64 << 10});
});

const Test kHello("hello and its reply keep every field", [] {
  const auto hello =
      RequireOk(DecodeHelloRequest(Encode(HelloRequest{~0ull, 2, 3, true, "worker-0"})));
  ExpectEqual(hello.client_id, ~0ull);
  ExpectEqual(hello.server_index, 2u);
  ExpectEqual(hello.num_servers, 3u);
  Expect(hello.control);
  ExpectEqual(hello.client_name, std::string("worker-0"));
  const auto reply = RequireOk(DecodeHelloReply(Encode(HelloReply{5, 6, 7.5, 8})));
  ExpectEqual(reply.incarnation, 5u);
  ExpectEqual(reply.max_frame_bytes, 6u);
  ExpectEqual(reply.peer_timeout_s, 7.5);
  ExpectEqual(reply.session, 8u);
});

const Test kSpecs("specs keep every field", [] {
  Expect(RequireOk(DecodeSparseSpec(Encode(ExampleSparse()))) == ExampleSparse());
  Expect(RequireOk(DecodeDenseSpec(Encode(ExampleDense()))) == ExampleDense());
  Expect(RequireOk(DecodeSparseSpec(Encode(SparseSpec{}))) == SparseSpec{});
});

const Test kRowDtype("float32 rows are left out of a spec, as before there were others", [] {
  const Body plain = Encode(ExampleSparse());
  for (const auto dtype : {RowDtype::kBf16, RowDtype::kInt8}) {
    SparseSpec spec = ExampleSparse();
    spec.row_dtype = dtype;
    ExpectEqual(Encode(spec).size(), plain.size() + 1);
    Expect(RequireOk(DecodeSparseSpec(Encode(spec))) == spec);
  }
  for (const unsigned bad : {0U, 3U}) {
    Body body = plain;
    body.push_back(static_cast<std::byte>(bad));
    ExpectCode(DecodeSparseSpec(body).status(), Code::kProtocol);
  }
});

const Test kTables("table requests and infos keep every field", [] {
  const Body body = Encode(TableRequest{"ads", 5, 0.5, 3});
  const auto request = RequireOk(DecodeTableRequest(body));
  ExpectEqual(request.table, std::string_view("ads"));
  ExpectEqual(request.number, 5u);
  ExpectEqual(request.real, 0.5);
  ExpectEqual(request.flags, 3u);
  const auto info = RequireOk(
      DecodeTableInfo(Encode(TableInfo{true, 8, 9, 10, 11, NonFinitePolicy::kRaise, 12})));
  Expect(info.dense);
  ExpectEqual(info.size, 8u);
  ExpectEqual(info.dim, 9u);
  ExpectEqual(info.state_dim, 10u);
  ExpectEqual(info.counter_dim, 11u);
  Expect(info.non_finite == NonFinitePolicy::kRaise);
  ExpectEqual(info.min_block_size, 12u);
});

template <typename T>
void ExpectSame(std::span<const T> found, const std::vector<T>& wanted) {
  Expect(std::vector<T>(found.begin(), found.end()) == wanted);
}

const Test kCommand("a command keeps its name and bytes, gathered or not", [] {
  const auto bytes = std::as_bytes(std::span(kKeys));
  const Body body = Encode(CommandRequest{"save", bytes});
  const auto request = RequireOk(DecodeCommand(body));
  ExpectEqual(request.name, std::string_view("save"));
  Expect(std::ranges::equal(request.body, bytes));
  const GatheredBody gathered = Gather(CommandRequest{"save", bytes});
  Body joined;
  for (const auto& piece : gathered.pieces) {
    const auto* first = static_cast<const std::byte*>(piece.iov_base);
    joined.insert(joined.end(), first, first + piece.iov_len);
  }
  Expect(joined == body);
  ExpectEqual(gathered.bytes, body.size());
  Expect(RequireOk(DecodeCommand(Encode(CommandRequest{"", {}}))).body.empty());
  ExpectCode(DecodeCommand(Encode(CommandRequest{std::string(256, 'x'), {}})).status(),
             Code::kProtocol);
});

const Test kPull("a pull keeps its sections and predicts the size of its reply", [] {
  const Body body = Encode(ExamplePull());
  const auto pull = RequireOk(DecodePullRequest(body));
  ExpectEqual(pull.step, 9u);
  Expect(pull.mode == PullMode::kInferInitial);
  Require(pull.sections.size() == 3);
  ExpectEqual(pull.sections[0].table, std::string_view("ads"));
  ExpectSame(pull.sections[0].keys, kKeys);
  Expect(pull.sections[1].dense);
  ExpectEqual(pull.sections[1].count, 1001u);
  ExpectEqual(pull.sections[1].offset, 17u);
  ExpectEqual(PullReplyBytes(pull), 5u * 10 * 4 + 1002 * 4);
});

const Test kHugePull("a count that overflows is rejected, not wrapped", [] {
  PullRequest m = ExamplePull();
  m.sections[1].count = ~0ull;
  ExpectEqual(PullReplyBytes(m), ~0ull);
  m.sections[1].count = 1ull << 61;
  ExpectEqual(PullReplyBytes(m), ~0ull);
  m.sections[0].count = ~0ull / 8 + 1;
  ExpectCode(DecodePullRequest(Encode(m)).status(), Code::kProtocol);
});

const Test kPush("a push keeps its sections", [] {
  const Body body = Encode(ExamplePush());
  const auto push = RequireOk(DecodePushRequest(body));
  ExpectEqual(push.step, 10u);
  Require(push.sections.size() == 2);
  Expect(push.sections[0].keys_are_unique && !push.sections[0].add && !push.sections[0].dense);
  Expect(!push.sections[1].keys_are_unique && push.sections[1].add && push.sections[1].dense);
  ExpectSame(push.sections[0].keys, kKeys);
  ExpectSame(push.sections[0].values, kValues);
  ExpectSame(push.sections[1].values, kValues);
  Expect(RequireOk(DecodePushResult(Encode(PushResult{1, 2, 3}))) == PushResult{1, 2, 3});
});

Body Joined(const GatheredBody& gathered) {
  Body joined;
  for (const auto& piece : gathered.pieces) {
    const auto* bytes = static_cast<const std::byte*>(piece.iov_base);
    joined.insert(joined.end(), bytes, bytes + piece.iov_len);
  }
  return joined;
}

const Test kPushInParts("values in several pieces encode to the same bytes as in one", [] {
  PushRequest whole = ExamplePush();
  whole.sections[1].wants_values = true;
  PushRequest apart = whole;
  apart.sections[1].values = whole.sections[1].values.first(3);
  apart.sections[1].more_values = {
      whole.sections[1].values.subspan(3, 4), {}, whole.sections[1].values.subspan(7)};
  Expect(Encode(apart) == Encode(whole));
  Expect(Joined(Gather(apart)) == Encode(whole));
  Expect(RequireOk(DecodePushRequest(Encode(whole))).sections[1].wants_values);
  whole.sections[0].wants_values = true;  // of rows
  ExpectCode(DecodePushRequest(Encode(whole)).status(), Code::kProtocol);
});

const Test kWantedRows("a section that requests rows has only keys, and no other flag", [] {
  PushRequest push = ExamplePush();
  PushRequest::Section wants;
  wants.table = "ads";
  wants.dim = 2;
  wants.count = kKeys.size();
  wants.keys = kKeys;
  wants.wants_rows = true;
  push.sections.insert(push.sections.begin(), wants);
  const Body body = Encode(push);
  Expect(Joined(Gather(push)) == body);
  const auto found = RequireOk(DecodePushRequest(body));
  Require(found.sections.size() == 3);
  Expect(found.sections[0].wants_rows && !found.sections[1].wants_rows);
  ExpectSame(found.sections[0].keys, kKeys);
  Expect(found.sections[0].values.empty());
  ExpectSame(found.sections[1].values, kValues);
  for (const auto flag : {&PushRequest::Section::dense, &PushRequest::Section::add,
                          &PushRequest::Section::keys_are_unique}) {
    PushRequest bad = push;
    bad.sections[0].*flag = true;
    ExpectCode(DecodePushRequest(Encode(bad)).status(), Code::kProtocol);
  }
});

void ExpectMember(const RoundMember& found) {
  ExpectEqual(found.group, std::string_view("train"));
  ExpectEqual(found.rank, 1u);
  ExpectEqual(found.size, 3u);
  Expect(found.continue_without_lost);
}

const Test kRounds("rounds, clocks and members keep every field", [] {
  const Body body = Encode(ExampleRound());
  const auto round = RequireOk(DecodePushRound(body));
  ExpectMember(round.member);
  ExpectEqual(round.round, 77u);
  ExpectEqual(round.refusal, std::string_view("nan"));
  const PushRequest wanted = ExamplePush();
  ExpectEqual(round.push.step, wanted.step);
  Require(round.push.sections.size() == wanted.sections.size());
  for (std::size_t i = 0; i < wanted.sections.size(); ++i) {
    ExpectEqual(round.push.sections[i].table, wanted.sections[i].table);
    Expect(std::ranges::equal(round.push.sections[i].keys, wanted.sections[i].keys));
    Expect(std::ranges::equal(round.push.sections[i].values, wanted.sections[i].values));
  }
  Expect(Joined(Gather(ExampleRound())) == body, "gathered");
  for (const std::optional<std::uint64_t> bound : {std::optional<std::uint64_t>(4), {}}) {
    const Body clock = Encode(AdvanceClockRequest{ExampleRound().member, 9, bound});
    const auto decoded = RequireOk(DecodeAdvanceClock(clock));
    ExpectMember(decoded.member);
    ExpectEqual(decoded.clock, 9u);
    Expect(decoded.bound == bound);
  }
  const Body member = Encode(ExampleRound().member);
  ExpectMember(RequireOk(DecodeMember(member)));
});

const Test kGather("gathered bodies equal encoded ones, whatever the array lengths", [] {
  const auto pull = Gather(ExamplePull());
  Expect(Joined(pull) == Encode(ExamplePull()));
  ExpectEqual(pull.bytes, Joined(pull).size());
  for (std::size_t count = 0; count <= kValues.size(); ++count) {
    PushRequest push = ExamplePush();
    push.sections[1].values = std::span(kValues).first(count);
    push.sections[1].count = count;
    push.sections.push_back(push.sections[0]);
    const auto gathered = Gather(push);
    Expect(Joined(gathered) == Encode(push));
    ExpectEqual(gathered.bytes, Joined(gathered).size());
    RequireOk(DecodePushRequest(Joined(gathered)).status());
  }
});

const Test kWidths("a section of width 0, over the limit, or a wide dense one is kProtocol", [] {
  for (const std::uint32_t dim : {0u, kMaxDim + 1, ~0u}) {
    PullRequest pull = ExamplePull();
    pull.sections[0].dim = dim;
    ExpectCode(DecodePullRequest(Encode(pull)).status(), Code::kProtocol);
    PushRequest push = ExamplePush();
    push.sections[0].dim = dim;
    ExpectCode(DecodePushRequest(Encode(push)).status(), Code::kProtocol);
  }
  PullRequest pull = ExamplePull();
  pull.sections[1].dim = 2;
  ExpectCode(DecodePullRequest(Encode(pull)).status(), Code::kProtocol);
});

const Test kOthers("the small bodies keep their fields", [] {
  const Body write = Encode(WriteDenseRequest{"tower", kValues});
  ExpectSame(RequireOk(DecodeWriteDense(write)).values, kValues);
  ExpectEqual(RequireOk(DecodeNumber(EncodeNumber(77))), 77u);
  const Body barrier = Encode(BarrierRequest{"epoch", 4});
  ExpectEqual(RequireOk(DecodeBarrier(barrier)).name, std::string_view("epoch"));
  ExpectEqual(RequireOk(DecodeBarrier(barrier)).members, 4u);
  const Body note = Encode(NoteRequest{"key", "value", true});
  ExpectEqual(RequireOk(DecodeNote(note)).key, std::string_view("key"));
  ExpectEqual(RequireOk(DecodeNote(note)).value, std::string_view("value"));
  Expect(RequireOk(DecodeNote(note)).wait);
  const Body text = EncodeText("some text");
  ExpectEqual(RequireOk(DecodeText(text)), std::string_view("some text"));
  const StatMap stats = {{"a", 1.0}, {"b", 2.0}};
  Expect(RequireOk(DecodeStats(Encode(stats))) == stats);
  const Body erase = Encode(EraseRequest{"ads", kKeys});
  ExpectSame(RequireOk(DecodeErase(erase)).keys, kKeys);
  ExpectEqual(RequireOk(DecodeNextCut(Encode(NextCutRequest{3, 4}))).max_rows, 4u);
  const auto named = RequireOk(DecodeRows(EncodeRows("ads", ExampleRows())));
  ExpectEqual(named.table, std::string("ads"));
  Expect(named.rows.keys == ExampleRows().keys && named.rows.values == ExampleRows().values);
  Expect(named.rows.state == ExampleRows().state && named.rows.counters == ExampleRows().counters);
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
