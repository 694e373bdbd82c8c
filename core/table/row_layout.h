// The layout of a row's record:
//   key (8) | count and dirty (4) | step (4) | seconds (4) | values | state
// with only the counters that the table keeps, and the values as a RowCodec stores them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "key/key.h"
#include "table/row_codec.h"
#include "table/sparse_table.h"
#include "table/table_spec.h"

namespace sparsefleet {

class RowLayout {
 public:
  RowLayout(const SparseSpec& spec, std::uint32_t state_dim);

  std::uint32_t stride() const { return stride_; }
  std::uint32_t dim() const { return dim_; }
  std::uint32_t state_dim() const { return state_dim_; }
  std::uint32_t counter_dim() const { return counter_dim_; }
  bool tracks_dirty() const { return tracks_dirty_; }

  static Key KeyOf(const std::byte* row) {
    Key key;
    std::memcpy(&key, row, sizeof(key));
    return key;
  }
  static void SetKey(std::byte* row, Key key) { std::memcpy(row, &key, sizeof(key)); }

  bool is_plain() const { return codec_.is_plain(); }
  const RowCodec& codec() const { return codec_; }
  // REQUIRES: is_plain().
  float* values(std::byte* row) const { return reinterpret_cast<float*>(row + values_at_); }
  const float* values(const std::byte* row) const {
    return reinterpret_cast<const float*>(row + values_at_);
  }
  // Decodes the values to `to`, dim floats.
  void ReadValues(const std::byte* row, float* to) const {
    if (is_plain()) {
      std::memcpy(to, row + values_at_, dim_ * sizeof(float));
    } else {
      codec_.Decode(row + values_at_, to);
    }
  }
  // Encodes the values at `from`, dim floats; see RowCodec for `salt`.
  void WriteValues(std::byte* row, const float* from, std::uint64_t salt = 0) const {
    if (is_plain()) {
      std::memcpy(row + values_at_, from, dim_ * sizeof(float));
    } else {
      codec_.Encode(KeyOf(row), salt, from, row + values_at_);
    }
  }
  // The salt for values that a push of `input` has changed, after the update of the state.
  std::uint64_t SaltOf(const std::byte* row, const float* input) const {
    return codec_.Salt(input, state_dim_ > 0 ? state(row)[state_dim_ - 1] : 0.0F);
  }

  float* state(std::byte* row) const { return reinterpret_cast<float*>(row + state_at_); }
  const float* state(const std::byte* row) const {
    return reinterpret_cast<const float*>(row + state_at_);
  }

  // Zero counters, last touched now, dirty.
  void InitCounters(std::byte* row, std::uint32_t step, std::uint32_t seconds) const;
  // Counts one more push at this time; dirty.
  void Touch(std::byte* row, std::uint32_t step, std::uint32_t seconds) const;

  // Which of the counter_dim words is the step; counter_dim if none.
  std::size_t step_column() const {
    return step_at_ == 0 ? counter_dim_ : std::size_t{keeps_count_};
  }

  // 0 if the table does not keep them.
  std::uint32_t CountOf(const std::byte* row) const { return Word(row, count_at_) & ~kDirtyBit; }
  std::uint32_t StepOf(const std::byte* row) const { return Word(row, step_at_); }
  std::uint32_t SecondsOf(const std::byte* row) const { return Word(row, seconds_at_); }
  // True if the table does not track dirty rows: then any row may have changed.
  bool IsDirty(const std::byte* row) const {
    return !tracks_dirty_ || (Word(row, count_at_) & kDirtyBit) != 0;
  }
  void ClearDirty(std::byte* row) const;

  // Appends the row to `out`.
  void Export(const std::byte* row, RowBatch& out) const;
  // Sets counters from `counters` (counter_dim words); dirty.
  void ImportCounters(std::byte* row, std::span<const std::uint32_t> counters) const;

 private:
  static constexpr std::uint32_t kDirtyBit = 0x80000000;

  static std::uint32_t Word(const std::byte* row, std::uint32_t at) {
    if (at == 0) return 0;
    std::uint32_t word;
    std::memcpy(&word, row + at, sizeof(word));
    return word;
  }
  static void SetWord(std::byte* row, std::uint32_t at, std::uint32_t word) {
    if (at != 0) std::memcpy(row + at, &word, sizeof(word));
  }

  RowCodec codec_;
  std::uint32_t dim_;
  std::uint32_t state_dim_;
  std::uint32_t counter_dim_ = 0;
  bool keeps_count_;
  bool tracks_dirty_;
  std::uint32_t count_at_ = 0;  // 0: not kept (offset 0 is the key)
  std::uint32_t step_at_ = 0;
  std::uint32_t seconds_at_ = 0;
  std::uint32_t values_at_ = 0;
  std::uint32_t state_at_ = 0;
  std::uint32_t stride_ = 0;
};

}  // namespace sparsefleet
