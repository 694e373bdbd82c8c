#include "table/row_storage.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

namespace sparsefleet {
namespace {

constexpr std::uint32_t kChunkBytes = 64 << 10;
constexpr std::uint32_t kFirstRows = 8;
constexpr std::uint32_t kMaxRows = 0xfffffffe;  // one value is reserved for "no row"

}  // namespace

RowStorage::RowStorage(std::uint32_t stride_bytes) : stride_(stride_bytes) {
  const std::uint32_t rows = std::bit_floor(std::max(kChunkBytes / stride_bytes, 1U));
  chunk_shift_ = std::countr_zero(rows);
  chunk_mask_ = rows - 1;
}

void RowStorage::MakeRoom(std::uint64_t rows) {
  if (rows > kMaxRows) throw std::length_error("more than 2^32 - 2 rows in one shard");
  while (capacity() < rows) {
    if (first_chunk_rows_ < chunk_rows()) {
      GrowFirstChunk();
      continue;
    }
    chunks_.emplace_back();
    try {
      chunks_.back() = MakeLargeBlock(chunk_rows() * stride_);
    } catch (...) {
      chunks_.pop_back();
      throw;
    }
  }
}

void RowStorage::Append(bool is_reserved) {
  MakeRoom(std::uint64_t{size_} + 1 + (is_reserved ? 0 : reserved_));
  ++size_;
}

void RowStorage::Reserve(std::uint32_t rows) {
  MakeRoom(std::uint64_t{size_} + reserved_ + rows);
  reserved_ += rows;
}

void RowStorage::GrowFirstChunk() {
  const std::uint32_t rows = std::min(std::max(2 * first_chunk_rows_, kFirstRows), chunk_rows());
  auto larger = MakeLargeBlock(rows * stride_);
  if (chunks_.empty()) {
    chunks_.push_back(std::move(larger));
  } else {
    std::memcpy(larger.get(), chunks_[0].get(), size_ * stride_);
    chunks_[0] = std::move(larger);
  }
  first_chunk_rows_ = rows;
}

void RowStorage::Pop() noexcept {
  --size_;
  // Keep one free chunk, so that adding and removing rows at the edge does not allocate each time.
  const std::size_t used =
      (static_cast<std::size_t>(size_) + reserved_ + chunk_mask_) >> chunk_shift_;
  if (chunks_.size() > used + 1) chunks_.pop_back();
}

void RowStorage::Clear() noexcept {
  chunks_ = decltype(chunks_)();
  size_ = 0;
  first_chunk_rows_ = 0;
}

std::size_t RowStorage::memory_bytes() const {
  std::size_t bytes = chunks_.capacity() * sizeof(chunks_[0]);
  if (chunks_.empty()) return bytes;
  bytes += first_chunk_rows_ * stride_;
  return bytes + (chunks_.size() - 1) * chunk_rows() * stride_;
}

}  // namespace sparsefleet
