#include "table/row_layout.h"

namespace sparsefleet {

RowLayout::RowLayout(const SparseSpec& spec, std::uint32_t state_dim)
    : codec_(spec.row_dtype, spec.dim, spec.seed),
      dim_(spec.dim),
      state_dim_(state_dim),
      keeps_count_(spec.keeps_count()),
      tracks_dirty_(spec.track_dirty) {
  std::uint32_t at = sizeof(Key);
  const auto place_word = [&at](bool kept, std::uint32_t& word_at) {
    if (!kept) return;
    word_at = at;
    at += sizeof(std::uint32_t);
  };
  place_word(keeps_count_ || tracks_dirty_, count_at_);
  place_word(spec.keeps_step(), step_at_);
  place_word(spec.keeps_seconds(), seconds_at_);
  counter_dim_ = (keeps_count_ ? 1 : 0) + (step_at_ != 0 ? 1 : 0) + (seconds_at_ != 0 ? 1 : 0);
  values_at_ = at;
  state_at_ = values_at_ + codec_.bytes();
  stride_ = state_at_ + state_dim_ * sizeof(float);
}

void RowLayout::InitCounters(std::byte* row, std::uint32_t step, std::uint32_t seconds) const {
  SetWord(row, count_at_, kDirtyBit);
  SetWord(row, step_at_, step);
  SetWord(row, seconds_at_, seconds);
}

void RowLayout::Touch(std::byte* row, std::uint32_t step, std::uint32_t seconds) const {
  if (count_at_ != 0) {
    const std::uint32_t count = CountOf(row);
    SetWord(row, count_at_, (count + (count + 1 < kDirtyBit ? 1 : 0)) | kDirtyBit);
  }
  SetWord(row, step_at_, step);
  SetWord(row, seconds_at_, seconds);
}

void RowLayout::ClearDirty(std::byte* row) const { SetWord(row, count_at_, CountOf(row)); }

void RowLayout::Export(const std::byte* row, RowBatch& out) const {
  out.keys.push_back(KeyOf(row));
  out.values.resize(out.values.size() + dim_);
  ReadValues(row, out.values.data() + out.values.size() - dim_);
  const float* s = state(row);
  out.state.insert(out.state.end(), s, s + state_dim_);
  if (keeps_count_) out.counters.push_back(CountOf(row));
  if (step_at_ != 0) out.counters.push_back(StepOf(row));
  if (seconds_at_ != 0) out.counters.push_back(SecondsOf(row));
}

void RowLayout::ImportCounters(std::byte* row, std::span<const std::uint32_t> counters) const {
  std::size_t next = 0;
  SetWord(row, count_at_, (keeps_count_ ? counters[next++] : 0) | kDirtyBit);
  if (step_at_ != 0) SetWord(row, step_at_, counters[next++]);
  if (seconds_at_ != 0) SetWord(row, seconds_at_, counters[next++]);
}

}  // namespace sparsefleet
