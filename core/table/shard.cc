#include "table/shard.h"

#include <algorithm>
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

}  // namespace

TableTraits::TableTraits(SparseSpec table_spec, const KeyHash& key_hash)
    : spec(std::move(table_spec)),
      hash(key_hash),
      optimizer(spec.optimizer),
      layout(spec, static_cast<std::uint32_t>(optimizer.StateDim(spec.dim))),
      initializer(spec.initializer, spec.seed) {}

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
      const float* values = layout.values(storage_.row(row));
      std::memcpy(out + block[i].position * dim, values, dim * sizeof(float));
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
      std::memcpy(to, layout.values(storage_.row(row)), dim * sizeof(float));
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
      if (change.add) {
        kernels.add(layout.values(record), input, dim);
      } else {
        traits_.optimizer.Update(layout.values(record), layout.state(record), input, dim,
                                 change.learning_rate, change.scratch);
      }
      layout.Touch(record, change.now.step_word, change.now.seconds);
      ++result.applied;
      if (change.changed != nullptr) change.changed->push_back(block[i].key);
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
  traits_.initializer.Fill(item.key, {layout.values(record), layout.dim()});
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

}  // namespace sparsefleet
