// The parts of Shard that remove, import and cut rows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "table/shard.h"

namespace sparsefleet {
namespace {

// Rows looked at under one hold of the lock by those that walk a whole shard.
constexpr std::uint32_t kWalkRows = 4096;

// Units from `then` to `now`, 0 if it lies ahead.
std::uint32_t Age(std::uint32_t now, std::uint32_t then) { return now > then ? now - then : 0; }

}  // namespace

void Shard::Import(std::span<const BatchItem> items, const RowBatch& rows) {
  const RowLayout& layout = traits_.layout;
  const std::size_t dim = layout.dim();
  const std::size_t state_dim = layout.state_dim();
  const std::size_t counter_dim = rows.counters.empty() ? 0 : layout.counter_dim();
  const std::unique_lock lock(mutex_);
  for (const BatchItem& item : items) {
    std::uint32_t row = FindExact(item);
    if (row == kNoRow) {
      row = NewRow(item);
      ++rows_created_;
      candidates_.Erase(item.key, item.hash);
    } else {
      BeforeWrite(row);
    }
    std::byte* record = storage_.row(row);
    const std::size_t from = item.position;
    std::memcpy(layout.values(record), rows.values.data() + from * dim, dim * sizeof(float));
    if (rows.state.empty()) {
      traits_.optimizer.InitState(layout.state(record), dim);
    } else {
      std::memcpy(layout.state(record), rows.state.data() + from * state_dim,
                  state_dim * sizeof(float));
    }
    layout.ImportCounters(record, {rows.counters.data() + from * counter_dim, counter_dim});
  }
}

void Shard::Remove(std::uint32_t row) {
  const std::uint32_t last = storage_.size() - 1;
  BeforeWrite(row);
  if (row != last) BeforeWrite(last);
  index_.Erase(PlacementHash(RowLayout::KeyOf(storage_.row(row))), row);
  if (row != last) {
    index_.Renumber(PlacementHash(RowLayout::KeyOf(storage_.row(last))), last, row);
    std::memcpy(storage_.row(row), storage_.row(last), traits_.layout.stride());
  }
  storage_.Pop();
}

std::uint64_t Shard::Erase(std::span<const BatchItem> items) {
  std::uint64_t erased = 0;
  const std::unique_lock lock(mutex_);
  for (const BatchItem& item : items) {
    candidates_.Erase(item.key, item.hash);
    const std::uint32_t row = FindExact(item);
    if (row == kNoRow) continue;
    Remove(row);
    ++erased;
  }
  return erased;
}

bool Shard::IsEvicted(const std::byte* row, const Moment& now) const {
  const EvictionSpec& rules = traits_.spec.eviction;
  const RowLayout& layout = traits_.layout;
  if (rules.untouched_steps > 0 && Age(now.step_word, layout.StepOf(row)) > rules.untouched_steps) {
    return true;
  }
  if (rules.untouched_seconds > 0 &&
      Age(now.seconds, layout.SecondsOf(row)) > rules.untouched_seconds) {
    return true;
  }
  if (rules.min_count > 0 && layout.CountOf(row) < rules.min_count) return true;
  if (rules.min_norm > 0) {
    const float* values = layout.values(row);
    double squares = 0.0;
    for (std::uint32_t i = 0; i < layout.dim(); ++i) {
      squares += static_cast<double>(values[i]) * values[i];
    }
    return std::sqrt(squares) < rules.min_norm;
  }
  return false;
}

std::uint64_t Shard::Shrink(const Moment& now) {
  std::uint64_t evicted = 0;
  // From the end: the row that fills a hole has been looked at already.
  for (std::uint32_t next = kNoRow; next > 0;) {
    const std::unique_lock lock(mutex_);
    next = std::min(next, storage_.size());
    const std::uint32_t stop = next - std::min(next, kWalkRows);
    while (next > stop) {
      --next;
      if (!IsEvicted(storage_.row(next), now)) continue;
      Remove(next);
      ++rows_evicted_;
      ++evicted;
    }
    if (next == 0 && storage_.size() < index_.capacity() / 3) RebuildIndex(storage_.size());
  }
  return evicted;
}

void Shard::Clear() {
  const std::unique_lock lock(mutex_);
  if (!cuts_.empty()) {
    for (std::uint32_t row = 0; row < storage_.size(); ++row) SaveForCuts(row);
  }
  storage_.Clear();
  index_.Clear();
  candidates_.Clear();
}

void Shard::SaveForCuts(std::uint32_t row) {
  const std::byte* record = storage_.row(row);
  for (ShardCut* cut : cuts_) {
    if (!cut->Wants(row)) continue;
    const bool wanted = !cut->only_dirty() || traits_.layout.IsDirty(record);
    cut->Save(row, wanted ? record : nullptr, traits_.layout.stride());
  }
}

void Shard::OpenCut(ShardCut& cut, bool only_dirty) {
  const std::unique_lock lock(mutex_);
  cuts_.reserve(cuts_.size() + 1);
  cut.Open(storage_.size(), only_dirty);
  cuts_.push_back(&cut);
}

void Shard::CloseCut(ShardCut& cut) {
  const std::unique_lock lock(mutex_);
  std::erase(cuts_, &cut);
  cut.Close();
}

void Shard::ReadCut(ShardCut& cut, std::size_t max_rows, bool clear_dirty, RowBatch& out) {
  const RowLayout& layout = traits_.layout;
  const std::size_t stop_keys = out.keys.size() + max_rows;
  std::unique_lock exclusive(mutex_, std::defer_lock);
  std::shared_lock shared(mutex_, std::defer_lock);
  // Only rows' dirty bits are shared with others; the cut itself is its reader's own.
  if (clear_dirty) {
    exclusive.lock();
  } else {
    shared.lock();
  }
  for (std::uint32_t walked = 0; walked < kWalkRows && !cut.done(); ++walked) {
    if (out.keys.size() == stop_keys) return;
    const std::uint32_t row = cut.cursor();
    if (cut.IsMarked(row)) {
      if (const auto image = cut.Take(row, layout.stride())) layout.Export(image.get(), out);
    } else {
      std::byte* record = storage_.row(row);
      if (!cut.only_dirty() || layout.IsDirty(record)) {
        layout.Export(record, out);
        if (clear_dirty) layout.ClearDirty(record);
      }
    }
    cut.Advance();
  }
}

void Shard::AddStats(SparseStats& stats) const {
  const std::shared_lock lock(mutex_);
  stats.rows += storage_.size();
  stats.candidates += candidates_.size();
  stats.rows_created += rows_created_;
  stats.rows_evicted += rows_evicted_;
  stats.memory_bytes +=
      sizeof(Shard) + storage_.memory_bytes() + index_.memory_bytes() + candidates_.memory_bytes();
  for (const ShardCut* cut : cuts_) stats.memory_bytes += cut->memory_bytes();
}

}  // namespace sparsefleet
