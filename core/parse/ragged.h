// Compact storage of records of any length. Letters: R records held, B records taken, N values.
//
// Format: the length of each record in the smallest unsigned type that holds the longest, and the
// start of every kRecordsPerMark-th record. A record is found by adding the few lengths since the
// mark before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>

namespace sparsefleet {

inline constexpr std::size_t kRecordsPerMark = 16;

// Where record `r` begins.
template <typename Length>
std::uint64_t BeginOf(std::span<const Length> lengths, std::span<const std::uint64_t> marks,
                      std::size_t r) {
  const std::size_t mark = r / kRecordsPerMark;
  return std::accumulate(lengths.begin() + static_cast<std::ptrdiff_t>(mark * kRecordsPerMark),
                         lengths.begin() + static_cast<std::ptrdiff_t>(r), marks[mark]);
}

// Writes the starts of the B records, and finally N, to offsets[B + 1].
// REQUIRES: every record < R, offsets.size() == records.size() + 1.
template <typename Length>
void MeasureRecords(std::span<const Length> lengths, std::span<const std::uint32_t> records,
                    std::span<std::int64_t> offsets) {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    offsets[i] = total;
    total += static_cast<std::int64_t>(lengths[records[i]]);
  }
  offsets[records.size()] = total;
}

// Copies the values of the B records in order.
// REQUIRES: as above; out has room for N values of `value_bytes` each; marks match the lengths.
template <typename Length>
void CopyRecords(std::span<const Length> lengths, std::span<const std::uint64_t> marks,
                 std::span<const std::uint32_t> records, const std::byte* values,
                 std::size_t value_bytes, std::byte* out) {
  for (const std::uint32_t record : records) {
    const std::size_t bytes = lengths[record] * value_bytes;
    if (bytes == 0) continue;
    std::memcpy(out, values + BeginOf(lengths, marks, record) * value_bytes, bytes);
    out += bytes;
  }
}

}  // namespace sparsefleet
