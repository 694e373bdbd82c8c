#include "transport/messages.h"

#include <string>
#include <type_traits>

namespace sparsefleet {
namespace {

constexpr std::size_t kMaxTextBytes = 64 << 10;
constexpr std::size_t kMaxClientNameBytes = 255;
constexpr std::uint8_t kSectionDense = 1;
constexpr std::uint8_t kSectionUnique = 2;
constexpr std::uint8_t kSectionAdd = 4;

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
  o.kind = in.GetEnum(OptimizerKind::kFtrl);
  o.nesterov = in.GetBool();
  o.centered = in.GetBool();
  for (double* value :
       {&o.learning_rate, &o.momentum, &o.beta1, &o.beta2, &o.epsilon, &o.decay,
        &o.initial_accumulator, &o.learning_rate_power, &o.ftrl_l1, &o.ftrl_l2, &o.l1, &o.l2}) {
    *value = in.Get<double>();
  }
  return o;
}

// The head that pull and push sections share.
void PutSectionHead(BodyWriter& out, std::string_view table, std::uint8_t flags, std::uint32_t dim,
                    std::uint64_t count, std::uint64_t offset) {
  out.Pad();
  out.Put(count);
  out.Put(offset);
  out.Put(dim);
  out.Put(flags);
  out.PutString(table);
}

template <typename ArrayWriter>
void PutPull(BodyWriter& out, const PullRequest& m, ArrayWriter put_array) {
  out.Put(m.step);
  out.Put(static_cast<std::uint8_t>(m.mode));
  out.Put(static_cast<std::uint32_t>(m.sections.size()));
  for (const auto& section : m.sections) {
    PutSectionHead(out, section.table, section.dense ? kSectionDense : 0, section.dim,
                   section.count, section.offset);
    if (!section.dense) put_array(section.keys);
  }
}

template <typename ArrayWriter>
void PutPush(BodyWriter& out, const PushRequest& m, ArrayWriter put_array) {
  out.Put(m.step);
  out.Put(static_cast<std::uint32_t>(m.sections.size()));
  for (const auto& section : m.sections) {
    const std::uint8_t flags = (section.dense ? kSectionDense : 0) |
                               (section.keys_are_unique ? kSectionUnique : 0) |
                               (section.add ? kSectionAdd : 0);
    PutSectionHead(out, section.table, flags, section.dim, section.count, 0);
    if (!section.dense) put_array(section.keys);
    put_array(section.values);
  }
}

// Runs `put(writer, put_array)` and lines up what it wrote with the arrays it left in place.
template <typename Put>
GatheredBody GatherWith(Put put) {
  struct Place {
    std::size_t before;  // bytes of the writer that come first
    iovec array;
  };
  BodyWriter out;
  std::vector<Place> places;
  put(out, [&out, &places](auto array) {
    const std::size_t before = out.PutElsewhere(array.size_bytes());
    using T = std::remove_const_t<typename decltype(array)::element_type>;
    places.push_back({before, {const_cast<T*>(array.data()), array.size_bytes()}});
  });
  GatheredBody body;
  body.heads = out.Take();
  body.bytes = body.heads.size();
  std::size_t at = 0;
  for (const auto& place : places) {
    if (place.before > at) body.pieces.push_back({body.heads.data() + at, place.before - at});
    if (place.array.iov_len > 0) body.pieces.push_back(place.array);
    at = place.before;
    body.bytes += place.array.iov_len;
  }
  if (body.heads.size() > at) {
    body.pieces.push_back({body.heads.data() + at, body.heads.size() - at});
  }
  return body;
}

struct SectionHead {
  std::uint64_t count;
  std::uint64_t offset;
  std::uint32_t dim;
  std::uint8_t flags;
  std::string_view table;
};

SectionHead GetSectionHead(BodyReader& in) {
  in.Pad();
  SectionHead head{};
  head.count = in.Get<std::uint64_t>();
  head.offset = in.Get<std::uint64_t>();
  head.dim = in.Get<std::uint32_t>();
  head.flags = in.Get<std::uint8_t>();
  head.table = in.GetString(kMaxTableNameBytes);
  return head;
}

// Values of `count` rows, or an impossible count that the reader will refuse.
std::uint64_t NumValues(std::uint64_t count, std::uint32_t dim) {
  if (dim != 0 && count > UINT64_MAX / dim) return UINT64_MAX;
  return count * dim;
}

Status BadSection(std::string_view what, std::string_view table, std::string_view why) {
  return {Code::kProtocol, std::string(what) + " section of table '" + std::string(table) +
                               "': " + std::string(why)};
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
  return out.Take();
}

Result<HelloReply> DecodeHelloReply(std::span<const std::byte> body) {
  BodyReader in(body);
  HelloReply m;
  m.incarnation = in.Get<std::uint64_t>();
  m.max_frame_bytes = in.Get<std::uint64_t>();
  m.peer_timeout_s = in.Get<double>();
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

Body Encode(const PullRequest& m) {
  BodyWriter out;
  PutPull(out, m, [&out](auto array) { out.PutArray(array); });
  return out.Take();
}

GatheredBody Gather(const PullRequest& m) {
  return GatherWith([&m](BodyWriter& out, auto put_array) { PutPull(out, m, put_array); });
}

Result<PullRequest> DecodePullRequest(std::span<const std::byte> body) {
  BodyReader in(body);
  PullRequest m;
  m.step = in.Get<std::uint64_t>();
  m.mode = in.GetEnum(PullMode::kInferInitial);
  const auto num_sections = in.Get<std::uint32_t>();
  if (num_sections > kMaxSections) {
    return Status(Code::kProtocol, "pull of " + std::to_string(num_sections) +
                                       " sections, the limit is " + std::to_string(kMaxSections));
  }
  for (std::uint32_t i = 0; i < num_sections && !in.bad(); ++i) {
    const SectionHead head = GetSectionHead(in);
    if ((head.flags & ~kSectionDense) != 0) return BadSection("pull", head.table, "unknown flags");
    PullRequest::Section section;
    section.table = head.table;
    section.dense = (head.flags & kSectionDense) != 0;
    section.dim = head.dim;
    section.count = head.count;
    section.offset = head.offset;
    if (section.dim == 0 || section.dim > kMaxDim || (section.dense && section.dim != 1)) {
      return BadSection("pull", head.table, "width " + std::to_string(head.dim));
    }
    if (!section.dense) section.keys = in.GetArray<Key>(head.count);
    m.sections.push_back(section);
  }
  if (Status s = in.Finish("pull"); !s.ok()) return s;
  return m;
}

std::uint64_t PullReplyBytes(const PullRequest& m) {
  std::uint64_t total = 0;
  for (const auto& section : m.sections) {
    const std::uint64_t values = NumValues(section.count, section.dim);
    if (values > (UINT64_MAX >> 8)) return UINT64_MAX;
    const std::uint64_t bytes = (values * sizeof(float) + 7) & ~std::uint64_t{7};
    if (total > UINT64_MAX - bytes) return UINT64_MAX;
    total += bytes;
  }
  return total;
}

Body Encode(const PushRequest& m) {
  BodyWriter out;
  PutPush(out, m, [&out](auto array) { out.PutArray(array); });
  return out.Take();
}

GatheredBody Gather(const PushRequest& m) {
  return GatherWith([&m](BodyWriter& out, auto put_array) { PutPush(out, m, put_array); });
}

Result<PushRequest> DecodePushRequest(std::span<const std::byte> body) {
  BodyReader in(body);
  PushRequest m;
  m.step = in.Get<std::uint64_t>();
  const auto num_sections = in.Get<std::uint32_t>();
  if (num_sections > kMaxSections) {
    return Status(Code::kProtocol, "push of " + std::to_string(num_sections) +
                                       " sections, the limit is " + std::to_string(kMaxSections));
  }
  for (std::uint32_t i = 0; i < num_sections && !in.bad(); ++i) {
    const SectionHead head = GetSectionHead(in);
    if ((head.flags & ~(kSectionDense | kSectionUnique | kSectionAdd)) != 0) {
      return BadSection("push", head.table, "unknown flags");
    }
    PushRequest::Section section;
    section.table = head.table;
    section.dense = (head.flags & kSectionDense) != 0;
    section.keys_are_unique = (head.flags & kSectionUnique) != 0;
    section.add = (head.flags & kSectionAdd) != 0;
    section.dim = head.dim;
    section.count = head.count;
    if (section.dim == 0 || section.dim > kMaxDim || (section.dense && section.dim != 1)) {
      return BadSection("push", head.table, "width " + std::to_string(head.dim));
    }
    if (!section.dense) section.keys = in.GetArray<Key>(head.count);
    section.values = in.GetArray<float>(NumValues(head.count, head.dim));
    m.sections.push_back(section);
  }
  if (Status s = in.Finish("push"); !s.ok()) return s;
  return m;
}

Body Encode(const PushResult& r) {
  BodyWriter out;
  out.Put(r.applied);
  out.Put(r.rejected_non_finite);
  out.Put(r.not_admitted);
  return out.Take();
}

Result<PushResult> DecodePushResult(std::span<const std::byte> body) {
  BodyReader in(body);
  PushResult r;
  r.applied = in.Get<std::uint64_t>();
  r.rejected_non_finite = in.Get<std::uint64_t>();
  r.not_admitted = in.Get<std::uint64_t>();
  if (Status s = in.Finish("push reply"); !s.ok()) return s;
  return r;
}

Body Encode(const WriteDenseRequest& m) {
  BodyWriter out;
  out.PutString(m.table);
  out.Put(static_cast<std::uint64_t>(m.values.size()));
  out.PutArray(m.values);
  return out.Take();
}

Result<WriteDenseRequest> DecodeWriteDense(std::span<const std::byte> body) {
  BodyReader in(body);
  WriteDenseRequest m;
  m.table = in.GetString(kMaxTableNameBytes);
  const auto count = in.Get<std::uint64_t>();
  m.values = in.GetArray<float>(count);
  if (Status s = in.Finish("write dense"); !s.ok()) return s;
  return m;
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

Body Encode(const EraseRequest& m) {
  BodyWriter out;
  out.PutString(m.table);
  out.Put(static_cast<std::uint64_t>(m.keys.size()));
  out.PutArray(m.keys);
  return out.Take();
}

Result<EraseRequest> DecodeErase(std::span<const std::byte> body) {
  BodyReader in(body);
  EraseRequest m;
  m.table = in.GetString(kMaxTableNameBytes);
  const auto count = in.Get<std::uint64_t>();
  m.keys = in.GetArray<Key>(count);
  if (Status s = in.Finish("erase"); !s.ok()) return s;
  return m;
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

Body EncodeRows(std::string_view table, const RowBatch& rows) {
  BodyWriter out;
  out.PutString(table);
  out.Put(static_cast<std::uint64_t>(rows.keys.size()));
  out.Put(static_cast<std::uint64_t>(rows.values.size()));
  out.Put(static_cast<std::uint64_t>(rows.state.size()));
  out.Put(static_cast<std::uint64_t>(rows.counters.size()));
  out.PutArray(std::span<const Key>(rows.keys));
  out.PutArray(std::span<const float>(rows.values));
  out.PutArray(std::span<const float>(rows.state));
  out.PutArray(std::span<const std::uint32_t>(rows.counters));
  return out.Take();
}

Result<NamedRows> DecodeRows(std::span<const std::byte> body) {
  BodyReader in(body);
  const std::string_view table = in.GetString(kMaxTableNameBytes);
  const auto num_keys = in.Get<std::uint64_t>();
  const auto num_values = in.Get<std::uint64_t>();
  const auto num_state = in.Get<std::uint64_t>();
  const auto num_counters = in.Get<std::uint64_t>();
  const auto keys = in.GetArray<Key>(num_keys);
  const auto values = in.GetArray<float>(num_values);
  const auto state = in.GetArray<float>(num_state);
  const auto counters = in.GetArray<std::uint32_t>(num_counters);
  if (Status s = in.Finish("rows"); !s.ok()) return s;
  NamedRows named;
  named.table = table;
  named.rows.keys.assign(keys.begin(), keys.end());
  named.rows.values.assign(values.begin(), values.end());
  named.rows.state.assign(state.begin(), state.end());
  named.rows.counters.assign(counters.begin(), counters.end());
  return named;
}

}  // namespace sparsefleet
