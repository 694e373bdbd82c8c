#include "parse/multi_slot_binary.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>

namespace sparsefleet {
namespace {

static_assert(std::endian::native == std::endian::little, "values are copied as they are");

// The problem with the next slot, if any.
enum class Slot { kRead, kCutOff, kBad };

template <typename T>
bool CopyValues(std::string_view bytes, std::size_t& at, std::size_t count,
                GrowingArray<T>& values) {
  if (bytes.size() - at < count * sizeof(T)) return false;
  std::memcpy(values.Extend(count), bytes.data() + at, count * sizeof(T));
  values.Commit(count);
  at += count * sizeof(T);
  return true;
}

Slot ReadSlot(std::string_view bytes, std::size_t& at, Column& column, std::uint16_t& count) {
  if (bytes.size() - at < sizeof(count)) return Slot::kCutOff;
  std::memcpy(&count, bytes.data() + at, sizeof(count));
  at += sizeof(count);
  if (count == 0 || (column.spec.width != 0 && count != column.spec.width)) return Slot::kBad;
  const bool whole = column.spec.kind == ValueKind::kFloat
                         ? CopyValues(bytes, at, count, column.floats)
                         : CopyValues(bytes, at, count, column.ids);
  return whole ? Slot::kRead : Slot::kCutOff;
}

std::string Problem(const ColumnSpec& spec, std::uint16_t count) {
  return "slot '" + spec.name + "' has the count " + std::to_string(count) + ", expected " +
         (spec.width == 0 ? ">= 1" : std::to_string(spec.width));
}

}  // namespace

Result<std::size_t> ReadBinaryRecords(std::string_view bytes, ColumnBatch& batch,
                                      std::size_t max_records) {
  for (const auto& column : batch.columns()) {
    if (column.spec.kind == ValueKind::kText) {
      return Status(Code::kInvalidArgument, "binary records cannot contain texts");
    }
  }
  std::size_t used = 0;
  while (batch.num_records() < max_records && used < bytes.size()) {
    std::size_t at = used;
    for (auto& column : batch.columns()) {
      std::uint16_t count = 0;
      const Slot outcome = ReadSlot(bytes, at, column, count);
      if (outcome == Slot::kRead) continue;
      batch.DropUnfinished();
      if (outcome == Slot::kCutOff) return used;
      return Status(Code::kCorrupt, Problem(column.spec, count));
    }
    batch.EndRecord();
    used = at;
  }
  return used;
}

}  // namespace sparsefleet
