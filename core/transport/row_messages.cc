// Bodies that carry arrays: pull, push, dense values, commands.
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "transport/member_body.h"
#include "transport/messages.h"

namespace sparsefleet {
namespace {

constexpr std::size_t kMaxRefusalBytes = 64 << 10;
constexpr std::uint8_t kSectionDense = 1;
constexpr std::uint8_t kSectionUnique = 2;
constexpr std::uint8_t kSectionAdd = 4;
constexpr std::uint8_t kSectionWantsValues = 8;
constexpr std::uint8_t kSectionWantsRows = 16;
constexpr std::uint8_t kSectionMarks = 32;
constexpr std::uint8_t kSectionBf16 = 64;
constexpr std::uint8_t kPullFlags = kSectionDense | kSectionBf16;
constexpr std::uint8_t kPushFlags = kSectionDense | kSectionUnique | kSectionAdd |
                                    kSectionWantsValues | kSectionWantsRows | kSectionBf16;

// The head shared by pull and push sections.
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
    const std::uint8_t flags =
        (section.dense ? kSectionDense : 0) | (section.bf16 ? kSectionBf16 : 0);
    PutSectionHead(out, section.table, flags, section.dim, section.count, section.offset);
    if (!section.dense) put_array(section.keys);
  }
}

template <typename ArrayWriter>
void PutPush(BodyWriter& out, const PushRequest& m, ArrayWriter put_array) {
  out.Put(m.step);
  out.Put(static_cast<std::uint32_t>(m.sections.size() + (m.marks.empty() ? 0 : 1)));
  if (!m.marks.empty()) {
    PutSectionHead(out, "", kSectionMarks, 0, m.marks.size(), 0);
    put_array(m.marks);
  }
  for (const auto& section : m.sections) {
    const std::uint8_t flags =
        (section.dense ? kSectionDense : 0) | (section.keys_are_unique ? kSectionUnique : 0) |
        (section.add ? kSectionAdd : 0) | (section.wants_values ? kSectionWantsValues : 0) |
        (section.wants_rows ? kSectionWantsRows : 0) | (section.bf16 ? kSectionBf16 : 0);
    PutSectionHead(out, section.table, flags, section.dim, section.count, 0);
    if (!section.dense) put_array(section.keys);
    if (section.wants_rows) continue;
    if (section.bf16) {
      put_array(section.narrow);
      continue;
    }
    put_array(section.values);
    for (const auto& values : section.more_values) put_array(values, true);
  }
}

template <typename ArrayWriter>
void PutPushRound(BodyWriter& out, const PushRoundRequest& m, ArrayWriter put_array) {
  PutMember(out, m.member);
  out.Put(m.round);
  out.PutString(m.refusal.substr(0, kMaxRefusalBytes));
  PutPush(out, m.push, put_array);
}

template <typename ArrayWriter>
void PutCommand(BodyWriter& out, const CommandRequest& m, ArrayWriter put_array) {
  out.PutString(m.name);
  out.Put(static_cast<std::uint64_t>(m.body.size()));
  put_array(m.body);
}

// Writes arrays into the body; one that continues the previous is not padded.
auto PutArraysInto(BodyWriter& out) {
  return [&out](auto array, bool goes_on = false) {
    goes_on ? out.PutMore(array) : out.PutArray(array);
  };
}

// Runs `put(writer, put_array)` and interleaves what it wrote with the arrays left in place.
template <typename Put>
GatheredBody GatherWith(Put put) {
  struct Place {
    std::size_t before;  // bytes of the writer that come first
    iovec array;
  };
  BodyWriter out;
  std::vector<Place> places;
  put(out, [&out, &places](auto array, bool goes_on = false) {
    const std::size_t before = out.PutElsewhere(array.size_bytes(), goes_on);
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

// The values of `count` rows, or an impossible count that the reader rejects.
std::uint64_t NumValues(std::uint64_t count, std::uint32_t dim) {
  if (dim != 0 && count > UINT64_MAX / dim) return UINT64_MAX;
  return count * dim;
}

Status BadSection(std::string_view what, std::string_view table, std::string_view why) {
  return {Code::kProtocol, std::string(what) + " section of table '" + std::string(table) +
                               "': " + std::string(why)};
}

Status BadFlags(std::string_view what, const SectionHead& head) {
  return BadSection(what, head.table, "unknown flags " + std::to_string(head.flags));
}

}  // namespace

Body Encode(const PullRequest& m) {
  BodyWriter out;
  PutPull(out, m, PutArraysInto(out));
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
                                       " sections, but the limit is " +
                                       std::to_string(kMaxSections));
  }
  for (std::uint32_t i = 0; i < num_sections && !in.bad(); ++i) {
    const SectionHead head = GetSectionHead(in);
    if ((head.flags & ~kPullFlags) != 0) return BadFlags("pull", head);
    PullRequest::Section section;
    section.table = head.table;
    section.dense = (head.flags & kSectionDense) != 0;
    section.bf16 = (head.flags & kSectionBf16) != 0;
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
    const std::uint64_t bytes = ValueBytes(values, section.bf16);
    if (total > UINT64_MAX - bytes) return UINT64_MAX;
    total += bytes;
  }
  return total;
}

Body Encode(const PushRequest& m) {
  BodyWriter out;
  PutPush(out, m, PutArraysInto(out));
  return out.Take();
}

GatheredBody Gather(const PushRequest& m) {
  return GatherWith([&m](BodyWriter& out, auto put_array) { PutPush(out, m, put_array); });
}

namespace {

// Decodes a push without checking that nothing follows.
Status GetPush(BodyReader& in, PushRequest& m) {
  m.step = in.Get<std::uint64_t>();
  const auto num_sections = in.Get<std::uint32_t>();
  if (num_sections > kMaxSections) {
    return {Code::kProtocol, "push of " + std::to_string(num_sections) +
                                 " sections, but the limit is " + std::to_string(kMaxSections)};
  }
  for (std::uint32_t i = 0; i < num_sections && !in.bad(); ++i) {
    const SectionHead head = GetSectionHead(in);
    if (head.flags == kSectionMarks) {
      if (!m.marks.empty() || !m.sections.empty() || head.count == 0 || head.count > kMaxMarks) {
        return BadSection("push", head.table,
                          "marks must be its first section, 1 to " + std::to_string(kMaxMarks));
      }
      m.marks = in.GetArray<DataMark>(head.count);
      continue;
    }
    if ((head.flags & ~kPushFlags) != 0) return BadFlags("push", head);
    PushRequest::Section section;
    section.table = head.table;
    section.dense = (head.flags & kSectionDense) != 0;
    section.keys_are_unique = (head.flags & kSectionUnique) != 0;
    section.add = (head.flags & kSectionAdd) != 0;
    section.wants_values = (head.flags & kSectionWantsValues) != 0;
    section.bf16 = (head.flags & kSectionBf16) != 0;
    section.dim = head.dim;
    section.count = head.count;
    if (section.dim == 0 || section.dim > kMaxDim || (section.dense && section.dim != 1)) {
      return BadSection("push", head.table, "width " + std::to_string(head.dim));
    }
    section.wants_rows = (head.flags & kSectionWantsRows) != 0;
    if (section.wants_values && !section.dense) {
      return BadSection("push", head.table,
                        "requests values of a sparse table, which needs the rows flag");
    }
    if (section.wants_rows && (head.flags & ~kSectionBf16) != kSectionWantsRows) {
      return BadSection("push", head.table, "the rows flag excludes other flags");
    }
    if (!section.dense) section.keys = in.GetArray<Key>(head.count);
    const std::uint64_t num_values = section.wants_rows ? 0 : NumValues(head.count, head.dim);
    if (num_values > 0 && section.bf16) {
      section.narrow = in.GetArray<Bf16>(num_values);
    } else if (!section.wants_rows) {
      section.values = in.GetArray<float>(num_values);
    }
    m.sections.push_back(section);
  }
  return Status::Ok();
}

}  // namespace

Result<PushRequest> DecodePushRequest(std::span<const std::byte> body) {
  BodyReader in(body);
  PushRequest m;
  if (Status s = GetPush(in, m); !s.ok()) return s;
  if (Status s = in.Finish("push"); !s.ok()) return s;
  return m;
}

std::unique_ptr<float[]> WidenValues(PushRequest& m) {
  std::size_t total = 0;
  for (const auto& section : m.sections) total += section.narrow.size();
  if (total == 0) return nullptr;
  auto memory = std::make_unique_for_overwrite<float[]>(total);
  float* at = memory.get();
  for (auto& section : m.sections) {
    const auto narrow = std::exchange(section.narrow, {});
    if (narrow.empty()) continue;
    BestBf16().widen(at, std::as_bytes(narrow).data(), narrow.size());
    section.values = {at, narrow.size()};
    at += narrow.size();
  }
  return memory;
}

Body Encode(const PushRoundRequest& m) {
  BodyWriter out;
  PutPushRound(out, m, PutArraysInto(out));
  return out.Take();
}

GatheredBody Gather(const PushRoundRequest& m) {
  return GatherWith([&m](BodyWriter& out, auto put_array) { PutPushRound(out, m, put_array); });
}

Result<PushRoundRequest> DecodePushRound(std::span<const std::byte> body) {
  BodyReader in(body);
  PushRoundRequest m;
  m.member = GetMember(in);
  m.round = in.Get<std::uint64_t>();
  m.refusal = in.GetString(kMaxRefusalBytes);
  if (Status s = GetPush(in, m.push); !s.ok()) return s;
  if (Status s = in.Finish("push round"); !s.ok()) return s;
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

Body Encode(const CommandRequest& m) {
  BodyWriter out;
  PutCommand(out, m, PutArraysInto(out));
  return out.Take();
}

GatheredBody Gather(const CommandRequest& m) {
  return GatherWith([&m](BodyWriter& out, auto put_array) { PutCommand(out, m, put_array); });
}

Result<CommandRequest> DecodeCommand(std::span<const std::byte> body) {
  BodyReader in(body);
  CommandRequest m;
  m.name = in.GetString(kMaxCommandNameBytes);
  const auto count = in.Get<std::uint64_t>();
  m.body = in.GetArray<std::byte>(count);
  if (Status s = in.Finish("command"); !s.ok()) return s;
  return m;
}

}  // namespace sparsefleet
