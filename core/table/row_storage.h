// The rows of one shard: equal records in chunks, numbered 0 .. size-1 without holes.
// Not thread-safe: the shard's lock guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

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

  // Adds a row with any content. Throws std::bad_alloc, or std::length_error at 2^32 - 1 rows;
  // then nothing has changed.
  void Append();
  void Pop() noexcept;  // REQUIRES: size() > 0
  void Clear() noexcept;

  std::size_t memory_bytes() const;

 private:
  void GrowFirstChunk();
  std::uint32_t chunk_rows() const { return chunk_mask_ + 1; }

  std::size_t stride_;
  int chunk_shift_;
  std::uint32_t chunk_mask_;
  std::uint32_t size_ = 0;
  std::uint32_t first_chunk_rows_ = 0;  // a small table does not pay for a whole chunk
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
};

}  // namespace sparsefleet
