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

void Shard::Import(std::span<const BatchItem> items, const RowBatch& rows, const Moment& now) {
  const RowLayout& layout = traits_.layout;
  const std::size_t dim = layout.dim();
  const std::size_t state_dim = layout.state_dim();
  const std::size_t counter_dim = layout.counter_dim();
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
    if (rows.counters.empty()) {
      layout.InitCounters(record, now.step_word, now.seconds);
    } else {
      layout.ImportCounters(record, {rows.counters.data() + from * counter_dim, counter_dim});
    }
  }
}

void Shard::Remove(std::uint32_t row) {
  const std::uint32_t last = storage_.size() - 1;
  BeforeWrite(row);
  if (row != last) BeforeWrite(last);
  const Key key = RowLayout::KeyOf(storage_.row(row));
  removed_.Add(key, PlacementHash(key));
  index_.Erase(PlacementHash(key), row);
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
  if (rules.untouched_steps > 0) {
    // A row imported before the table saw any step is as old as the first.
    const std::uint32_t touched =
        layout.StepOf(row) == 0 ? now.lowest_step_word : layout.StepOf(row);
    if (Age(now.step_word, touched) > rules.untouched_steps) return true;
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
  const std::unique_lock lock(mutex_);
  candidates_.Halve();
  return evicted;
}

void Shard::Clear() {
  const std::unique_lock lock(mutex_);
  if (!cuts_.empty()) {
    for (std::uint32_t row = 0; row < storage_.size(); ++row) SaveForCuts(row);
  }
  removed_.Reserve(storage_.size());
  for (std::uint32_t row = 0; row < storage_.size(); ++row) {
    const Key key = RowLayout::KeyOf(storage_.row(row));
    removed_.Add(key, PlacementHash(key));
  }
  storage_.Clear();
  index_.Clear();
  candidates_.Clear();
}

bool Shard::IsPartOf(const ShardCut& cut, std::uint32_t row) const {
  return !cut.only_dirty() || traits_.layout.IsDirty(storage_.row(row)) || cut.WasDirty(row);
}

void Shard::SaveForCuts(std::uint32_t row) {
  const std::byte* record = storage_.row(row);
  for (ShardCut* cut : cuts_) {
    if (!cut->Wants(row)) continue;
    const bool owed = row >= cut->cursor() && IsPartOf(*cut, row);
    cut->Save(row, owed ? record : nullptr, traits_.layout.stride());
  }
}

void Shard::PrepareCut(ShardCut& cut, CutMode mode) const {
  std::uint32_t size = 0;
  {
    const std::shared_lock lock(mutex_);
    size = storage_.size();
  }
  cut.Prepare(size, mode);
}

void Shard::OpenCut(ShardCut& cut) {
  const std::unique_lock lock(mutex_);
  cuts_.reserve(cuts_.size() + 1);
  cut.Open(storage_.size(), removed_.Cut(cut.clear_dirty()));
  cuts_.push_back(&cut);
}

void Shard::CloseCut(ShardCut& cut) {
  const std::unique_lock lock(mutex_);
  std::erase(cuts_, &cut);
  cut.Close();
}

void Shard::ReadCut(ShardCut& cut, std::size_t max_rows, RowBatch& out) const {
  const RowLayout& layout = traits_.layout;
  const std::size_t stop_keys = out.keys.size() + max_rows;
  const std::shared_lock lock(mutex_);  // the cut itself is its reader's own
  for (std::uint32_t walked = 0; walked < kWalkRows && !cut.done(); ++walked) {
    if (out.keys.size() == stop_keys) return;
    const std::uint32_t row = cut.cursor();
    if (cut.IsMarked(row)) {
      if (const auto image = cut.Take(row, layout.stride())) layout.Export(image.get(), out);
    } else if (IsPartOf(cut, row)) {
      const std::byte* record = storage_.row(row);
      layout.Export(record, out);
      if (cut.clear_dirty() && layout.IsDirty(record)) cut.NoteDirty(row);
    }
    cut.Advance();
  }
}

std::vector<Key> Shard::TakeRemoved(ShardCut& cut) const {
  std::vector<Key> keys;
  const std::unique_lock lock(mutex_);
  if (!cut.WantsRemoved()) return keys;
  removed_.Read(cut.time(), keys);
  cut.TakeReturned(keys);
  return keys;
}

void Shard::ClearDirty(const ShardCut& cut) noexcept {
  const std::uint64_t size = cut.size();
  for (std::uint64_t from = 0; from < size; from += kWalkRows) {
    const std::unique_lock lock(mutex_);
    const auto stop = static_cast<std::uint32_t>(std::min(from + kWalkRows, size));
    for (auto row = static_cast<std::uint32_t>(from); row < stop; ++row) {
      if (!cut.WasDirty(row) || cut.IsMarked(row)) continue;
      std::byte* record = storage_.row(row);
      if (!traits_.layout.IsDirty(record)) continue;
      // Not marked in a cut means dirty at its moment too.
      for (ShardCut* other : cuts_) other->NoteDirty(row);
      traits_.layout.ClearDirty(record);
    }
  }
  const std::unique_lock lock(mutex_);
  if (std::ranges::none_of(cuts_, &ShardCut::WantsRemoved)) removed_.ForgetUpTo(cut.time());
}

void Shard::AddStats(SparseStats& stats) const {
  const std::shared_lock lock(mutex_);
  stats.rows += storage_.size();
  stats.candidates += candidates_.size();
  stats.rows_created += rows_created_;
  stats.rows_evicted += rows_evicted_;
  stats.memory_bytes += sizeof(Shard) + storage_.memory_bytes() + index_.memory_bytes() +
                        candidates_.memory_bytes() + removed_.memory_bytes();
  for (const ShardCut* cut : cuts_) stats.memory_bytes += cut->memory_bytes();
}

}  // namespace sparsefleet
