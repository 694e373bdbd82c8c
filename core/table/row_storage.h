// The rows of one shard: fixed-size records in chunks, numbered 0 .. size-1 without gaps.
// Not thread-safe: guarded by the shard's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "table/large_blocks.h"

namespace sparsefleet {

class RowStorage {
 public:
  explicit RowStorage(std::uint32_t stride_bytes);

  std::uint32_t size() const { return size_; }

  // Valid until the next Append, Pop or Clear.
  std::byte* row(std::uint32_t number) {
    return chunks_[number >> chunk_shift_].get() + (number & chunk_mask_) * stride_;
  }
  const std::byte* row(std::uint32_t number) const {
    return chunks_[number >> chunk_shift_].get() + (number & chunk_mask_) * stride_;
  }
  void Prefetch(std::uint32_t number) const {
    const std::byte* start = row(number);
    __builtin_prefetch(start);
    __builtin_prefetch(start + stride_ - 1);
  }

  // Appends a row with unspecified content. Throws std::bad_alloc, or std::length_error at 2^32 - 1
  // rows; then nothing has changed.
  // With `is_reserved` it uses a row reserved before, and does not allocate.
  void Append(bool is_reserved = false);
  // Reserves memory for this many more rows, in addition to those already reserved, until
  // Unreserve(). Throws like Append(); then nothing is reserved.
  void Reserve(std::uint32_t rows);
  void Unreserve(std::uint32_t rows) noexcept { reserved_ -= rows; }
  // Whether Reserve() of this many would not allocate.
  bool HasRoomFor(std::uint64_t rows) const {
    return std::uint64_t{size_} + reserved_ + rows <= capacity();
  }
  void Pop() noexcept;  // REQUIRES: size() > 0
  void Clear() noexcept;

  std::size_t memory_bytes() const;

 private:
  void GrowFirstChunk();
  void MakeRoom(std::uint64_t rows);  // in total
  std::uint64_t capacity() const {
    return chunks_.empty() ? 0
                           : first_chunk_rows_ + (chunks_.size() - 1) * std::uint64_t{chunk_rows()};
  }
  std::uint32_t chunk_rows() const { return chunk_mask_ + 1; }

  std::size_t stride_;
  int chunk_shift_;
  std::uint32_t chunk_mask_;
  std::uint32_t size_ = 0;
  std::uint32_t reserved_ = 0;
  std::uint32_t first_chunk_rows_ = 0;  // a small table does not allocate a whole chunk
  std::vector<LargeBlock> chunks_;
};

}  // namespace sparsefleet
