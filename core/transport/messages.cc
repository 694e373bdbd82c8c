#include "transport/messages.h"

#include <algorithm>
#include <string>

#include "transport/member_body.h"

namespace sparsefleet {
namespace {

constexpr std::size_t kMaxTextBytes = 64 << 10;
constexpr std::size_t kMaxClientNameBytes = 255;

void PutOptimizer(BodyWriter& out, const OptimizerSpec& o) {
  out.Put(static_cast<std::uint8_t>(o.kind));
  out.Put<std::uint8_t>(o.nesterov);
  out.Put<std::uint8_t>(o.centered);
  for (const double value :
       {o.learning_rate, o.momentum, o.beta1, o.beta2, o.epsilon, o.decay, o.initial_accumulator,
        o.learning_rate_power, o.ftrl_l1, o.ftrl_l2, o.l1, o.l2}) {
    out.Put(value);
  }
}

OptimizerSpec GetOptimizer(BodyReader& in) {
  OptimizerSpec o;
  o.kind = in.GetEnum(kLastOptimizer);
  o.nesterov = in.GetBool();
  o.centered = in.GetBool();
  for (double* value :
       {&o.learning_rate, &o.momentum, &o.beta1, &o.beta2, &o.epsilon, &o.decay,
        &o.initial_accumulator, &o.learning_rate_power, &o.ftrl_l1, &o.ftrl_l2, &o.l1, &o.l2}) {
    *value = in.Get<double>();
  }
  return o;
}

}  // namespace

Body EncodeError(const Status& status) {
  BodyWriter out;
  out.Put(static_cast<std::uint16_t>(status.code()));
  out.PutString(std::string_view(status.message()).substr(0, kMaxTextBytes));
  return out.Take();
}

Status DecodeError(std::span<const std::byte> body) {
  BodyReader in(body);
  const auto code = static_cast<Code>(in.Get<std::uint16_t>());
  std::string message(in.GetString(kMaxTextBytes));
  if (Status s = in.Finish("error reply"); !s.ok()) return s;
  if (code == Code::kOk) return {Code::kProtocol, "error reply without an error"};
  return {code, std::move(message)};
}

Body Encode(const HelloRequest& m) {
  BodyWriter out;
  out.Put(m.client_id);
  out.Put(m.server_index);
  out.Put(m.num_servers);
  out.Put<std::uint8_t>(m.control);
  out.PutString(m.client_name);
  return out.Take();
}

Result<HelloRequest> DecodeHelloRequest(std::span<const std::byte> body) {
  BodyReader in(body);
  HelloRequest m;
  m.client_id = in.Get<std::uint64_t>();
  m.server_index = in.Get<std::uint32_t>();
  m.num_servers = in.Get<std::uint32_t>();
  m.control = in.GetBool();
  m.client_name = in.GetString(kMaxClientNameBytes);
  if (Status s = in.Finish("hello"); !s.ok()) return s;
  return m;
}

Body Encode(const HelloReply& m) {
  BodyWriter out;
  out.Put(m.incarnation);
  out.Put(m.max_frame_bytes);
  out.Put(m.peer_timeout_s);
  out.Put(m.session);
  return out.Take();
}

Result<HelloReply> DecodeHelloReply(std::span<const std::byte> body) {
  BodyReader in(body);
  HelloReply m;
  m.incarnation = in.Get<std::uint64_t>();
  m.max_frame_bytes = in.Get<std::uint64_t>();
  m.peer_timeout_s = in.Get<double>();
  m.session = in.Get<std::uint64_t>();
  if (Status s = in.Finish("hello reply"); !s.ok()) return s;
  return m;
}

Body Encode(const SparseSpec& spec) {
  BodyWriter out;
  out.PutString(spec.name);
  out.Put(spec.dim);
  out.Put(spec.seed);
  out.Put(static_cast<std::uint8_t>(spec.initializer.kind));
  out.Put(spec.initializer.a);
  out.Put(spec.initializer.b);
  PutOptimizer(out, spec.optimizer);
  out.Put(static_cast<std::uint8_t>(spec.admission.kind));
  out.Put(spec.admission.count);
  out.Put(spec.admission.probability);
  out.Put(spec.eviction.untouched_steps);
  out.Put(spec.eviction.untouched_seconds);
  out.Put(spec.eviction.min_count);
  out.Put(spec.eviction.min_norm);
  out.Put(static_cast<std::uint8_t>(spec.non_finite));
  out.Put<std::uint8_t>(spec.track_count);
  out.Put<std::uint8_t>(spec.track_step);
  out.Put<std::uint8_t>(spec.track_seconds);
  out.Put<std::uint8_t>(spec.track_dirty);
  // Left out for float32, so that logs and peers from before it remain readable.
  if (spec.row_dtype != RowDtype::kFloat32) out.Put(static_cast<std::uint8_t>(spec.row_dtype));
  return out.Take();
}

Result<SparseSpec> DecodeSparseSpec(std::span<const std::byte> body) {
  BodyReader in(body);
  SparseSpec spec;
  spec.name = in.GetString(kMaxTableNameBytes);
  spec.dim = in.Get<std::uint32_t>();
  spec.seed = in.Get<std::uint64_t>();
  spec.initializer.kind = in.GetEnum(InitializerKind::kTruncatedNormal);
  spec.initializer.a = in.Get<double>();
  spec.initializer.b = in.Get<double>();
  spec.optimizer = GetOptimizer(in);
  spec.admission.kind = in.GetEnum(AdmissionKind::kProbability);
  spec.admission.count = in.Get<std::uint32_t>();
  spec.admission.probability = in.Get<double>();
  spec.eviction.untouched_steps = in.Get<std::uint32_t>();
  spec.eviction.untouched_seconds = in.Get<std::uint32_t>();
  spec.eviction.min_count = in.Get<std::uint32_t>();
  spec.eviction.min_norm = in.Get<double>();
  spec.non_finite = in.GetEnum(NonFinitePolicy::kRaise);
  spec.track_count = in.GetBool();
  spec.track_step = in.GetBool();
  spec.track_seconds = in.GetBool();
  spec.track_dirty = in.GetBool();
  if (in.left() > 0) {
    spec.row_dtype = in.GetEnum(RowDtype::kInt8);
    if (spec.row_dtype == RowDtype::kFloat32) {
      return Status(Code::kProtocol, "define sparse table: row_dtype float32 must be left out");
    }
  }
  if (Status s = in.Finish("define sparse table"); !s.ok()) return s;
  return spec;
}

Body Encode(const DenseSpec& spec) {
  BodyWriter out;
  out.PutString(spec.name);
  out.Put(spec.size);
  PutOptimizer(out, spec.optimizer);
  out.Put(static_cast<std::uint8_t>(spec.non_finite));
  out.Put(spec.min_block_size);
  return out.Take();
}

Result<DenseSpec> DecodeDenseSpec(std::span<const std::byte> body) {
  BodyReader in(body);
  DenseSpec spec;
  spec.name = in.GetString(kMaxTableNameBytes);
  spec.size = in.Get<std::uint64_t>();
  spec.optimizer = GetOptimizer(in);
  spec.non_finite = in.GetEnum(NonFinitePolicy::kRaise);
  spec.min_block_size = in.Get<std::uint64_t>();
  if (Status s = in.Finish("define dense table"); !s.ok()) return s;
  return spec;
}

Body Encode(const TableRequest& m) {
  BodyWriter out;
  out.PutString(m.table);
  out.Put(m.number);
  out.Put(m.real);
  out.Put(m.flags);
  return out.Take();
}

Result<TableRequest> DecodeTableRequest(std::span<const std::byte> body) {
  BodyReader in(body);
  TableRequest m;
  m.table = in.GetString(kMaxTableNameBytes);
  m.number = in.Get<std::uint64_t>();
  m.real = in.Get<double>();
  m.flags = in.Get<std::uint32_t>();
  if (Status s = in.Finish("table request"); !s.ok()) return s;
  return m;
}

Body Encode(const TableInfo& info) {
  BodyWriter out;
  out.Put<std::uint8_t>(info.dense);
  out.Put(info.size);
  out.Put(info.dim);
  out.Put(info.state_dim);
  out.Put(info.counter_dim);
  out.Put(static_cast<std::uint8_t>(info.non_finite));
  out.Put(info.min_block_size);
  return out.Take();
}

Result<TableInfo> DecodeTableInfo(std::span<const std::byte> body) {
  BodyReader in(body);
  TableInfo info;
  info.dense = in.GetBool();
  info.size = in.Get<std::uint64_t>();
  info.dim = in.Get<std::uint32_t>();
  info.state_dim = in.Get<std::uint32_t>();
  info.counter_dim = in.Get<std::uint32_t>();
  info.non_finite = in.GetEnum(NonFinitePolicy::kRaise);
  info.min_block_size = in.Get<std::uint64_t>();
  if (Status s = in.Finish("table info"); !s.ok()) return s;
  return info;
}

Body EncodeNumber(std::uint64_t number) {
  BodyWriter out;
  out.Put(number);
  return out.Take();
}

Result<std::uint64_t> DecodeNumber(std::span<const std::byte> body) {
  BodyReader in(body);
  const auto number = in.Get<std::uint64_t>();
  if (Status s = in.Finish("number"); !s.ok()) return s;
  return number;
}

Body Encode(const BarrierRequest& m) {
  BodyWriter out;
  out.PutString(m.name);
  out.Put(m.members);
  return out.Take();
}

Result<BarrierRequest> DecodeBarrier(std::span<const std::byte> body) {
  BodyReader in(body);
  BarrierRequest m;
  m.name = in.GetString(kMaxTextBytes);
  m.members = in.Get<std::uint32_t>();
  if (Status s = in.Finish("barrier"); !s.ok()) return s;
  return m;
}

Body Encode(const AdvanceClockRequest& m) {
  BodyWriter out;
  PutMember(out, m.member);
  out.Put(m.clock);
  out.Put<std::uint8_t>(m.bound.has_value());
  out.Put(m.bound.value_or(0));
  return out.Take();
}

Result<AdvanceClockRequest> DecodeAdvanceClock(std::span<const std::byte> body) {
  BodyReader in(body);
  AdvanceClockRequest m;
  m.member = GetMember(in);
  m.clock = in.Get<std::uint64_t>();
  const bool has_bound = in.GetBool();
  const auto bound = in.Get<std::uint64_t>();
  if (has_bound) m.bound = bound;
  if (Status s = in.Finish("advance clock"); !s.ok()) return s;
  return m;
}

Body Encode(const RoundMember& member) {
  BodyWriter out;
  PutMember(out, member);
  return out.Take();
}

Result<RoundMember> DecodeMember(std::span<const std::byte> body) {
  BodyReader in(body);
  const RoundMember member = GetMember(in);
  if (Status s = in.Finish("member of a group"); !s.ok()) return s;
  return member;
}

Body Encode(const NoteRequest& m) {
  BodyWriter out;
  out.PutString(m.key);
  out.PutString(m.value);
  out.Put<std::uint8_t>(m.wait);
  return out.Take();
}

Result<NoteRequest> DecodeNote(std::span<const std::byte> body) {
  BodyReader in(body);
  NoteRequest m;
  m.key = in.GetString(kMaxTextBytes);
  m.value = in.GetString(kMaxTextBytes);
  m.wait = in.GetBool();
  if (Status s = in.Finish("note"); !s.ok()) return s;
  return m;
}

Body EncodeNoteKeys(std::span<const std::string_view> keys) {
  BodyWriter out;
  out.Put(static_cast<std::uint64_t>(keys.size()));
  for (const std::string_view key : keys) out.PutString(key);
  return out.Take();
}

Result<std::vector<std::string_view>> DecodeNoteKeys(std::span<const std::byte> body) {
  BodyReader in(body);
  const auto count = in.Get<std::uint64_t>();
  std::vector<std::string_view> keys;
  for (std::uint64_t i = 0; i < count && !in.bad(); ++i) {
    keys.push_back(in.GetString(kMaxTextBytes));
  }
  if (Status s = in.Finish("keys of notes"); !s.ok()) return s;
  return keys;
}

Body EncodeNoteValues(const NoteValues& values) {
  BodyWriter out;
  out.Put(static_cast<std::uint64_t>(values.size()));
  for (const auto& value : values) {
    out.Put<std::uint8_t>(value.has_value());
    out.PutString(value.value_or(""));
  }
  return out.Take();
}

Result<NoteValues> DecodeNoteValues(std::span<const std::byte> body) {
  BodyReader in(body);
  const auto count = in.Get<std::uint64_t>();
  NoteValues values;
  for (std::uint64_t i = 0; i < count && !in.bad(); ++i) {
    const bool exists = in.GetBool();
    const std::string_view value = in.GetString(kMaxTextBytes);
    values.push_back(exists ? std::optional<std::string>(value) : std::nullopt);
  }
  if (Status s = in.Finish("values of notes"); !s.ok()) return s;
  return values;
}

Body EncodeText(std::string_view text) {
  BodyWriter out;
  out.PutString(text);
  return out.Take();
}

Result<std::string_view> DecodeText(std::span<const std::byte> body) {
  BodyReader in(body);
  const std::string_view text = in.GetString(kMaxTextBytes);
  if (Status s = in.Finish("text"); !s.ok()) return s;
  return text;
}

Body Encode(const StatMap& stats) {
  BodyWriter out;
  out.Put(static_cast<std::uint32_t>(stats.size()));
  for (const auto& [name, value] : stats) {
    out.PutString(name);
    out.Put(value);
  }
  return out.Take();
}

Result<StatMap> DecodeStats(std::span<const std::byte> body) {
  BodyReader in(body);
  StatMap stats;
  const auto count = in.Get<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && !in.bad(); ++i) {
    std::string name(in.GetString(kMaxTextBytes));
    const auto value = in.Get<double>();
    stats[std::move(name)] = value;
  }
  if (Status s = in.Finish("stats"); !s.ok()) return s;
  return stats;
}

Body Encode(const NextCutRequest& m) {
  BodyWriter out;
  out.Put(m.cut);
  out.Put(m.max_rows);
  return out.Take();
}

Result<NextCutRequest> DecodeNextCut(std::span<const std::byte> body) {
  BodyReader in(body);
  NextCutRequest m;
  m.cut = in.Get<std::uint64_t>();
  m.max_rows = in.Get<std::uint64_t>();
  if (Status s = in.Finish("next of cut"); !s.ok()) return s;
  return m;
}

Body Encode(const ResumeRequest& m) {
  BodyWriter out;
  out.Put(static_cast<std::uint8_t>(m.take_over ? 1 : 0));
  out.Put(m.grace_s);
  return out.Take();
}

Result<ResumeRequest> DecodeResumeRequest(std::span<const std::byte> body) {
  BodyReader in(body);
  ResumeRequest m;
  m.take_over = in.GetBool();
  m.grace_s = in.Get<double>();
  if (Status s = in.Finish("resume"); !s.ok()) return s;
  if (!(m.grace_s >= 0 && m.grace_s <= kMaxGraceS)) {
    return Status(Code::kProtocol, "resume: a grace of " + std::to_string(m.grace_s) + " s");
  }
  return m;
}

Body Encode(const ResumeReply& m) {
  BodyWriter out;
  out.PutArray(std::span<const std::uint64_t>(m.next_sequence));
  out.Put(static_cast<std::uint64_t>(m.marks.size()));
  // Not as an array of marks: GCC 12 takes its copy for one out of bounds.
  for (const auto& [stream, epoch, begin, end] : m.marks) {
    for (const std::uint64_t number : {stream, epoch, begin, end}) out.Put(number);
  }
  return out.Take();
}

Result<ResumeReply> DecodeResumeReply(std::span<const std::byte> body) {
  BodyReader in(body);
  ResumeReply m;
  const auto next = in.GetArray<std::uint64_t>(m.next_sequence.size());
  if (!in.bad()) std::ranges::copy(next, m.next_sequence.begin());
  const auto count = in.Get<std::uint64_t>();
  const auto marks = in.GetArray<DataMark>(count);
  if (Status s = in.Finish("resume reply"); !s.ok()) return s;
  m.marks.assign(marks.begin(), marks.end());
  return m;
}

}  // namespace sparsefleet
