// Records as columns, filled by parsers and taken by consumers. B is the number of records, N the
// number of values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace sparsefleet {

enum class ValueKind : std::uint8_t { kUint64 = 0, kFloat = 1, kText = 2 };

// Growing memory that can be handed over. Unlike a vector it does not clear memory about to be
// filled. Not thread-safe.
template <typename T>
class GrowingArray {
 public:
  std::size_t size() const { return size_; }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  const T& operator[](std::size_t i) const { return data_[i]; }

  // Makes room for `more` elements at the end; returns where they begin.
  T* Extend(std::size_t more) {
    if (capacity_ - size_ < more) Grow(size_ + more);
    return data_.get() + size_;
  }
  // Counts elements written there. REQUIRES: Extend() made room for them.
  void Commit(std::size_t more) { size_ += more; }
  void Append(T value) {
    *Extend(1) = value;
    ++size_;
  }
  void Truncate(std::size_t size) { size_ = std::min(size_, size); }

  // Hands the memory over and is empty afterwards; the next fill is expected to be of the same
  // size. Never null, even if empty.
  std::unique_ptr<T[]> Release() {
    if (capacity_ == 0) Grow(1);
    const std::size_t like_before = size_ + size_ / 16;
    size_ = 0;
    capacity_ = 0;
    auto released = std::move(data_);
    if (like_before > 0) Grow(like_before);
    return released;
  }

 private:
  void Grow(std::size_t wanted) {
    const std::size_t capacity = std::max(wanted, capacity_ * 2);
    auto larger = std::make_unique_for_overwrite<T[]>(capacity);
    if (size_ > 0) std::memcpy(larger.get(), data_.get(), size_ * sizeof(T));
    data_ = std::move(larger);
    capacity_ = capacity;
  }

  std::unique_ptr<T[]> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

struct ColumnSpec {
  std::string name;
  ValueKind kind = ValueKind::kUint64;
  std::uint32_t width = 0;  // values per record; 0: variable
};

// Values of one slot over B records. Only the member of the slot's kind among `ids`, `floats` and
// `texts` is used.
struct Column {
  ColumnSpec spec;
  GrowingArray<std::int64_t> ids;      // uint64 as the bits of torch's int64[N]
  GrowingArray<float> floats;          // float32[N]
  GrowingArray<std::uint8_t> texts;    // bytes of the records' texts: uint8[N]
  GrowingArray<std::int64_t> offsets;  // int64[B + 1] for a slot without width, starts with 0

  std::size_t size() const {
    switch (spec.kind) {
      case ValueKind::kFloat:
        return floats.size();
      case ValueKind::kText:
        return texts.size();
      default:
        return ids.size();
    }
  }
  void Truncate(std::size_t size) {
    ids.Truncate(size);
    floats.Truncate(size);
    texts.Truncate(size);
  }
};

// Invariant: between calls every column holds num_records() complete records. Not thread-safe.
class ColumnBatch {
 public:
  explicit ColumnBatch(const std::vector<ColumnSpec>& specs) {
    columns_.resize(specs.size());
    for (std::size_t i = 0; i < specs.size(); ++i) columns_[i].spec = specs[i];
    Restart();
  }
  ColumnBatch(const ColumnBatch&) = delete;
  ColumnBatch& operator=(const ColumnBatch&) = delete;

  std::size_t num_records() const { return num_records_; }
  std::vector<Column>& columns() { return columns_; }
  const std::vector<Column>& columns() const { return columns_; }

  // Call when every column has its values of one more record.
  void EndRecord() {
    ++num_records_;
    for (auto& column : columns_) {
      if (column.spec.width != 0) continue;
      column.offsets.Append(static_cast<std::int64_t>(column.size()));
    }
  }

  // Drops what was added since the last EndRecord().
  void DropUnfinished() {
    for (auto& column : columns_) {
      const std::size_t size = column.spec.width != 0
                                   ? num_records_ * column.spec.width
                                   : static_cast<std::size_t>(column.offsets[num_records_]);
      column.Truncate(size);
    }
  }

  // Starts over with no records, after the memory of the columns was taken.
  void Restart() {
    num_records_ = 0;
    for (auto& column : columns_) {
      column.Truncate(0);
      column.offsets.Truncate(0);
      if (column.spec.width == 0) column.offsets.Append(0);
    }
  }

 private:
  std::vector<Column> columns_;
  std::size_t num_records_ = 0;
};

}  // namespace sparsefleet
