#include "table/shard.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "sync/mutex.h"

namespace sparsefleet {
namespace {

// Calls visit(block) for the items in blocks small enough to stay in the cache, prefetching the
// index entries of the next block; the caller has prefetched those of the first.
template <typename Visit>
void ForEachBlock(const RowIndex& index, std::span<const BatchItem> items, Visit visit) {
  constexpr std::size_t kSize = kPrefetchItems;
  for (; items.size() > kSize; items = items.subspan(kSize)) {
    const auto rest = items.subspan(kSize);
    for (const BatchItem& item : rest.first(std::min(rest.size(), kSize))) {
      index.Prefetch(item.hash);
    }
    visit(items.first(kSize));
  }
  if (!items.empty()) visit(items);
}

// Rows visited per lock acquisition when walking a whole shard.
constexpr std::uint32_t kWalkRows = 4096;
// The same for a cut, whose reader has low priority: if it loses its core while it holds the lock,
// pushes wait until it runs again.
constexpr std::uint32_t kCutRows = 512;

// Units from `then` to `now`, 0 if `then` is later.
std::uint32_t Age(std::uint32_t now, std::uint32_t then) { return now > then ? now - then : 0; }

}  // namespace

TableTraits::TableTraits(SparseSpec table_spec, const KeyHash& key_hash)
    : spec(std::move(table_spec)),
      hash(key_hash),
      optimizer(spec.optimizer),
      layout(spec, static_cast<std::uint32_t>(optimizer.StateDim(spec.dim))),
      initializer(spec.initializer, spec.seed) {}

void TableTraits::FillInitial(Key key, std::span<float> row) const {
  initializer.Fill(key, row);
  if (!layout.is_plain()) layout.codec().Round(key, row.data());
}

std::uint32_t Shard::FindExact(const BatchItem& item) const {
  return index_.Find(item.hash, [&](std::uint32_t row) {
    mutex_.AssertReaderHeld();
    return RowLayout::KeyOf(storage_.row(row)) == item.key;
  });
}

void Shard::Prefetch(std::span<const BatchItem> items) const {
  for (const BatchItem& item : items.first(std::min(items.size(), kPrefetchItems))) {
    index_.Prefetch(item.hash);
  }
}

void Shard::PrefetchRows(std::span<const BatchItem> items) const {
  if (!IsLarge()) return;
  std::uint32_t rows[kPrefetchItems];
  const ReaderLock lock(mutex_);
  Locate(items.first(std::min(items.size(), kPrefetchItems)), rows);
}

void Shard::Locate(std::span<const BatchItem> items, std::uint32_t* rows) const {
  for (std::size_t i = 0; i < items.size(); ++i) {
    rows[i] = index_.FindLikely(items[i].hash);
    if (rows[i] != kNoRow) storage_.Prefetch(rows[i]);
  }
}

std::uint32_t Shard::Confirm(const BatchItem& item, std::uint32_t likely) const {
  if (likely == kNoRow || RowLayout::KeyOf(storage_.row(likely)) == item.key) return likely;
  return FindExact(item);
}

void Shard::Read(std::span<const BatchItem> items, float* out,
                 std::vector<BatchItem>& missing) const {
  const RowLayout& layout = traits_.layout;
  const std::size_t dim = layout.dim();
  const ReaderLock lock(mutex_);
  ForEachBlock(index_, items, [&](std::span<const BatchItem> block) {
    mutex_.AssertReaderHeld();
    std::uint32_t rows[kPrefetchItems];
    Locate(block, rows);
    for (std::size_t i = 0; i < block.size(); ++i) {
      const std::uint32_t row = Confirm(block[i], rows[i]);
      if (row == kNoRow) {
        missing.push_back(block[i]);
        continue;
      }
      layout.ReadValues(storage_.row(row), out + block[i].position * dim);
    }
  });
}

void Shard::Find(std::span<const BatchItem> items, bool* out) const {
  const ReaderLock lock(mutex_);
  ForEachBlock(index_, items, [&](std::span<const BatchItem> block) {
    mutex_.AssertReaderHeld();
    std::uint32_t rows[kPrefetchItems];
    Locate(block, rows);
    for (std::size_t i = 0; i < block.size(); ++i) {
      out[block[i].position] = Confirm(block[i], rows[i]) != kNoRow;
    }
  });
}

void Shard::ReadOrCreate(std::span<const BatchItem> items, const Moment& now, float* out) {
  const RowLayout& layout = traits_.layout;
  const std::size_t dim = layout.dim();
  const WriterLock lock(mutex_);
  for (const BatchItem& item : items) {
    std::uint32_t row = FindExact(item);
    if (row == kNoRow && Admits(item, now)) row = Create(item, now);
    float* to = out + item.position * dim;
    if (row == kNoRow) {
      std::fill(to, to + dim, 0.0F);
    } else {
      layout.ReadValues(storage_.row(row), to);
    }
  }
}

void Shard::Apply(std::span<const BatchItem> items, const Change& change, std::uint32_t reserved,
                  PushResult& result) {
  const RowLayout& layout = traits_.layout;
  const RowKernels& kernels = traits_.optimizer.kernels();
  const std::size_t dim = layout.dim();
  const bool creates = traits_.spec.admission.kind == AdmissionKind::kAlways;
  const WriterLock lock(mutex_);
  ForEachBlock(index_, items, [&](std::span<const BatchItem> block) {
    mutex_.AssertHeld();
    std::uint32_t rows[kPrefetchItems];
    Locate(block, rows);
    for (const BatchItem& item : block) {
      const float* input = change.input + item.position * dim;
      __builtin_prefetch(input);
      __builtin_prefetch(input + dim - 1);
    }
    for (std::size_t i = 0; i < block.size(); ++i) {
      const float* input = change.input + block[i].position * dim;
      if (!kernels.all_finite(input, dim)) {
        ++result.rejected_non_finite;
        continue;
      }
      std::uint32_t row = Confirm(block[i], rows[i]);
      // The row may exist by now if the caller's promise of unique keys was wrong.
      if (row == kNoRow) row = FindExact(block[i]);
      if (row == kNoRow && !creates) {
        ++result.not_admitted;
        continue;
      }
      if (row == kNoRow) {
        row = Create(block[i], change.now, true);
      } else {
        BeforeWrite(row);
      }
      std::byte* record = storage_.row(row);
      float* values = Values(record);
      if (change.add) {
        kernels.add(values, input, dim);
      } else {
        traits_.optimizer.Update(values, layout.state(record), input, dim, change.learning_rate,
                                 change.scratch);
      }
      if (!layout.is_plain()) layout.WriteValues(record, values, layout.SaltOf(record, input));
      layout.Touch(record, change.now.step_word, change.now.seconds);
      ++result.applied;
      if (change.changed != nullptr) change.changed->push_back(block[i]);
    }
  });
  reserved_ -= reserved;
  storage_.Unreserve(reserved);
}

std::uint32_t Shard::NewRow(const BatchItem& item, bool is_reserved) {
  const std::uint32_t row = storage_.size();
  const std::uint32_t removed = removed_.TimeOf(item.key, item.hash);
  if (removed != 0) {
    for (ShardCut* cut : cuts_) cut->MakeRoomForReturn(removed);
  }
  if (std::uint64_t{row} + (is_reserved ? 0 : reserved_) >= index_.capacity()) {
    RebuildIndex(std::max<std::uint64_t>(index_.capacity() * 3 / 2, row + reserved_) + 1);
  }
  storage_.Append(is_reserved);
  RowLayout::SetKey(storage_.row(row), item.key);
  index_.Insert(item.hash, row);
  if (removed != 0) {
    for (ShardCut* cut : cuts_) cut->KeepReturned(item.key, removed);
    removed_.Forget(item.key, item.hash);
  }
  return row;
}

void Shard::RebuildIndex(std::uint64_t capacity) {
  index_.Rebuild(capacity, storage_.size(), [&](std::uint32_t row) {
    mutex_.AssertHeld();
    return SlotHashOf(RowLayout::KeyOf(storage_.row(row)));
  });
}

std::uint32_t Shard::Create(const BatchItem& item, const Moment& now, bool is_reserved) {
  const RowLayout& layout = traits_.layout;
  const std::uint32_t row = NewRow(item, is_reserved);
  std::byte* record = storage_.row(row);
  layout.InitCounters(record, now.step_word, now.seconds);
  float* values = layout.is_plain() ? layout.values(record) : decoded_.data();
  traits_.initializer.Fill(item.key, {values, layout.dim()});
  if (!layout.is_plain()) layout.WriteValues(record, values);
  traits_.optimizer.InitState(layout.state(record), layout.dim());
  ++rows_created_;
  return row;
}

std::uint32_t Shard::Reserve(std::span<const BatchItem> items, bool creates) {
  const WriterLock lock(mutex_);
  auto wanted = static_cast<std::uint32_t>(items.size());
  const auto has_room = [&](std::uint64_t rows) REQUIRES(mutex_) {
    return storage_.HasRoomFor(rows) && storage_.size() + reserved_ + rows <= index_.capacity();
  };
  // Assumes that all are new: that needs no index lookup, as long as there is room.
  if (!cuts_.empty() || (creates && !has_room(wanted))) {
    std::uint32_t missing = 0;
    for (const BatchItem& item : items) {
      const std::uint32_t row = FindExact(item);
      if (row != kNoRow) {
        BeforeWrite(row);
        continue;
      }
      ++missing;
      const std::uint32_t removed = removed_.TimeOf(item.key, item.hash);
      if (removed == 0) continue;
      for (ShardCut* cut : cuts_) cut->MakeRoomForReturn(removed, missing);
    }
    wanted = missing;
  }
  if (!creates) return 0;
  if (!has_room(wanted)) {
    const std::uint64_t rows = std::uint64_t{storage_.size()} + reserved_ + wanted;
    storage_.Reserve(wanted);
    if (rows > index_.capacity()) {
      try {
        RebuildIndex(std::max<std::uint64_t>(index_.capacity() * 3 / 2 + 1, rows));
      } catch (...) {
        storage_.Unreserve(wanted);
        throw;
      }
    }
  } else {
    storage_.Reserve(wanted);
  }
  reserved_ += wanted;
  return wanted;
}

void Shard::Unreserve(std::uint32_t rows) noexcept {
  const WriterLock lock(mutex_);
  reserved_ -= rows;
  storage_.Unreserve(rows);
}

bool Shard::Admits(const BatchItem& item, const Moment& now) {
  const AdmissionSpec& admission = traits_.spec.admission;
  switch (admission.kind) {
    case AdmissionKind::kAlways:
      return true;
    case AdmissionKind::kCount:
      if (admission.count > 1 && candidates_.Increment(item.key, item.hash) < admission.count) {
        return false;
      }
      candidates_.Erase(item.key, item.hash);
      return true;
    case AdmissionKind::kProbability:
      return AdmissionDraw(traits_.spec.seed, item.key, now.step) < admission.probability;
  }
  return true;
}

void Shard::Import(std::span<const BatchItem> items, const RowBatch& rows, const Moment& now) {
  const RowLayout& layout = traits_.layout;
  const std::size_t dim = layout.dim();
  const std::size_t state_dim = layout.state_dim();
  const std::size_t counter_dim = layout.counter_dim();
  const WriterLock lock(mutex_);
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
    layout.WriteValues(record, rows.values.data() + from * dim);
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
  removed_.Add(key, SlotHashOf(key));
  index_.Erase(SlotHashOf(key), row);
  if (row != last) {
    index_.Renumber(SlotHashOf(RowLayout::KeyOf(storage_.row(last))), last, row);
    std::memcpy(storage_.row(row), storage_.row(last), traits_.layout.stride());
  }
  storage_.Pop();
}

std::uint64_t Shard::Erase(std::span<const BatchItem> items) {
  std::uint64_t erased = 0;
  const WriterLock lock(mutex_);
  for (const BatchItem& item : items) {
    candidates_.Erase(item.key, item.hash);
    const std::uint32_t row = FindExact(item);
    if (row == kNoRow) continue;
    Remove(row);
    ++erased;
  }
  return erased;
}

float* Shard::Values(std::byte* record) {
  if (traits_.layout.is_plain()) return traits_.layout.values(record);
  traits_.layout.ReadValues(record, decoded_.data());
  return decoded_.data();
}

bool Shard::IsEvicted(std::byte* row, const Moment& now) {
  const EvictionSpec& rules = traits_.spec.eviction;
  const RowLayout& layout = traits_.layout;
  if (rules.untouched_steps > 0) {
    // A row imported before the table saw any step is as old as the first step.
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
    const float* values = Values(row);
    double squares = 0.0;
    for (std::uint32_t i = 0; i < layout.dim(); ++i) {
      squares += static_cast<double>(values[i]) * values[i];
    }
    return std::sqrt(squares) < rules.min_norm;
  }
  return false;
}

void Shard::ShrinkPart(const Moment& now, std::uint32_t& next, std::vector<Key>& erased) {
  const WriterLock lock(mutex_);
  next = std::min(next, storage_.size());
  const std::uint32_t stop = next - std::min(next, kWalkRows);
  while (next > stop) {
    --next;
    std::byte* record = storage_.row(next);
    if (!IsEvicted(record, now)) continue;
    erased.push_back(RowLayout::KeyOf(record));
    Remove(next);
    ++rows_evicted_;
  }
  if (next == 0 && storage_.size() < index_.capacity() / 3) {
    RebuildIndex(std::uint64_t{storage_.size()} + reserved_);
  }
}

void Shard::HalveCandidates() {
  const WriterLock lock(mutex_);
  candidates_.Halve();
}

std::uint64_t Shard::Shrink(const Moment& now) {
  std::vector<Key> erased;
  std::uint64_t evicted = 0;
  // From the end, so that the row that fills a hole has already been examined.
  for (std::uint32_t next = kNoRow; next > 0; erased.clear()) {
    ShrinkPart(now, next, erased);
    evicted += erased.size();
  }
  HalveCandidates();
  return evicted;
}

void Shard::Clear() {
  const WriterLock lock(mutex_);
  if (!cuts_.empty()) {
    for (std::uint32_t row = 0; row < storage_.size(); ++row) SaveForCuts(row);
  }
  removed_.Reserve(storage_.size());
  for (std::uint32_t row = 0; row < storage_.size(); ++row) {
    const Key key = RowLayout::KeyOf(storage_.row(row));
    removed_.Add(key, SlotHashOf(key));
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
    const ReaderLock lock(mutex_);
    size = storage_.size();
  }
  cut.Prepare(size, mode);
}

void Shard::OpenCut(ShardCut& cut) {
  const WriterLock lock(mutex_);
  cuts_.reserve(cuts_.size() + 1);
  if (cut.for_snapshot()) {
    ShardCut::KeptWords& words = cut.kept;
    candidates_.ForEach([&](Key key, std::uint32_t count) {
      words.candidates.push_back(key);
      words.counts.push_back(count);
    });
    removed_.ReadAll(words.removed, words.times);
    words.keeps_removed = removed_.is_on();
    words.removed_now = removed_.now();
  }
  cut.Open(storage_.size(), removed_.Cut(cut.clear_dirty()));
  cuts_.push_back(&cut);
}

void Shard::CloseCut(ShardCut& cut) {
  const WriterLock lock(mutex_);
  std::erase(cuts_, &cut);
  cut.Close();
}

// Calls take(record) for the next rows of the cut, which only its reader uses.
template <typename Take>
void Shard::WalkCut(ShardCut& cut, std::size_t max_rows, Take take) const {
  const RowLayout& layout = traits_.layout;
  const ReaderLock lock(mutex_);
  for (std::uint32_t walked = 0; walked < kCutRows && max_rows > 0 && !cut.done(); ++walked) {
    const std::uint32_t row = cut.cursor();
    if (cut.IsMarked(row)) {
      if (const auto image = cut.Take(row, layout.stride())) {
        take(image.get());
        --max_rows;
      }
    } else if (IsPartOf(cut, row)) {
      const std::byte* record = storage_.row(row);
      take(record);
      --max_rows;
      if (cut.clear_dirty() && layout.IsDirty(record)) cut.NoteDirty(row);
    }
    cut.Advance();
  }
}

void Shard::ReadCut(ShardCut& cut, std::size_t max_rows, RowBatch& out) const {
  const std::size_t stride = traits_.layout.stride();
  std::vector<std::byte> records;  // copied under the lock, and taken apart without it
  records.reserve(std::min<std::size_t>(max_rows, kCutRows) * stride);
  ReadCutRecords(cut, max_rows, records);
  for (std::size_t at = 0; at < records.size(); at += stride) {
    traits_.layout.Export(records.data() + at, out);
  }
}

void Shard::ReadCutRecords(ShardCut& cut, std::size_t max_rows, std::vector<std::byte>& out) const {
  const std::size_t stride = traits_.layout.stride();
  WalkCut(cut, max_rows,
          [&](const std::byte* record) { out.insert(out.end(), record, record + stride); });
}

void Shard::ImportRecords(std::span<const BatchItem> items, const std::byte* records) {
  const std::size_t stride = traits_.layout.stride();
  const WriterLock lock(mutex_);
  for (const BatchItem& item : items) {
    const std::uint32_t row = storage_.size();
    storage_.Append();
    std::memcpy(storage_.row(row), records + item.position * stride, stride);
  }
  rows_created_ += items.size();
}

void Shard::IndexRecords() {
  const WriterLock lock(mutex_);
  const std::uint64_t rows = storage_.size();
  if (rows > 0) RebuildIndex(rows + rows / 4);  // the next push may add some
}

void Shard::RestoreWords(std::span<const BatchItem> items, const std::uint32_t* words,
                         bool are_candidates) {
  const WriterLock lock(mutex_);
  for (const BatchItem& item : items) {
    if (are_candidates) {
      candidates_.Set(item.key, item.hash, words[item.position]);
    } else {
      removed_.Restore(item.key, item.hash, words[item.position]);
    }
  }
}

void Shard::KeepRemoved() {
  const WriterLock lock(mutex_);
  removed_.Restore(true, removed_.now());
}

void Shard::RestoreRemovals(bool is_on, std::uint32_t now) {
  const WriterLock lock(mutex_);
  removed_.Restore(is_on, now);
}

std::vector<Key> Shard::TakeRemoved(ShardCut& cut) const {
  std::vector<Key> keys;
  const WriterLock lock(mutex_);
  if (!cut.WantsRemoved()) return keys;
  removed_.Read(cut.time(), keys);
  cut.TakeReturned(keys);
  return keys;
}

void Shard::ClearDirty(const ShardCut& cut) noexcept {
  const std::uint64_t size = cut.size();
  for (std::uint64_t from = 0; from < size; from += kWalkRows) {
    const WriterLock lock(mutex_);
    const auto stop = static_cast<std::uint32_t>(std::min(from + kWalkRows, size));
    for (auto row = static_cast<std::uint32_t>(from); row < stop; ++row) {
      if (!cut.WasDirty(row) || cut.IsMarked(row)) continue;
      std::byte* record = storage_.row(row);
      if (!traits_.layout.IsDirty(record)) continue;
      // If a cut has not marked the slot, the row was dirty at its moment too.
      for (ShardCut* other : cuts_) other->NoteDirty(row);
      traits_.layout.ClearDirty(record);
    }
  }
  const WriterLock lock(mutex_);
  if (std::ranges::none_of(cuts_, &ShardCut::WantsRemoved)) removed_.ForgetUpTo(cut.time());
}

std::size_t Shard::LongestProbe() const {
  const ReaderLock lock(mutex_);
  return std::max({index_.LongestProbe(), candidates_.LongestProbe(), removed_.LongestProbe()});
}

void Shard::AddStats(SparseStats& stats) const {
  const ReaderLock lock(mutex_);
  stats.rows += storage_.size();
  stats.candidates += candidates_.size();
  stats.rows_created += rows_created_;
  stats.rows_evicted += rows_evicted_;
  stats.memory_bytes += sizeof(Shard) + storage_.memory_bytes() + index_.memory_bytes() +
                        candidates_.memory_bytes() + removed_.memory_bytes();
  for (const ShardCut* cut : cuts_) stats.memory_bytes += cut->memory_bytes();
}

}  // namespace sparsefleet
