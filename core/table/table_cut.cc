// Cuts through a sparse table.
#include <algorithm>
#include <array>
#include <utility>

#include "table/sparse_table.h"
#include "table/sparse_table_impl.h"

namespace sparsefleet {

struct TableCut::State {
  ~State() { Close(kNumShards); }

  // Closes the parts before `end`.
  void Close(std::size_t end) {
    for (; first_open < end; ++first_open) {
      table->impl_->shards[first_open]->CloseCut(parts[first_open]);
    }
  }

  // A part's removed keys, while it is open.
  void ReadRemoved(std::size_t part) {
    auto keys = table->impl_->shards[part]->TakeRemoved(parts[part]);
    if (!keys.empty()) removed[part] = std::move(keys);
  }

  std::shared_ptr<SparseTable> table;
  bool clear_dirty = false;
  bool at_end = false;
  std::size_t shard = 0;       // those before it have been returned
  std::size_t first_open = 0;  // those before it are closed
  std::array<ShardCut, kNumShards> parts;
  std::array<std::vector<Key>, kNumShards> removed;  // as far as read
};

Status SparseTable::CheckCut(bool only_dirty) const {
  if (!only_dirty || spec().track_dirty) return Status::Ok();
  return {Code::kInvalidArgument,
          impl_->Prefix() + "only_dirty needs a table with track_dirty, which is off"};
}

TableCut SparseTable::OpenCut(bool only_dirty, bool clear_dirty) {
  TableCut cut = PrepareCut(only_dirty, clear_dirty);
  const auto alone = StopWriters();
  cut.Begin();
  return cut;
}

TableCut SparseTable::PrepareCut(bool only_dirty, bool clear_dirty, bool for_snapshot) {
  const bool tracks = spec().track_dirty;
  const CutMode mode{only_dirty && tracks, clear_dirty && tracks, for_snapshot};
  auto state = std::make_unique<TableCut::State>();
  state->table = shared_from_this();
  state->clear_dirty = mode.clear_dirty;
  for (std::size_t i = 0; i < kNumShards; ++i) {
    impl_->shards[i]->PrepareCut(state->parts[i], mode);
  }
  return TableCut(std::move(state));
}

std::unique_lock<std::shared_mutex> SparseTable::StopWriters() { return impl_->gate.EnterCut(); }

void TableCut::Begin() {
  auto& shards = state_->table->impl_->shards;
  for (std::size_t i = 0; i < kNumShards; ++i) shards[i]->OpenCut(state_->parts[i]);
}

TableCut::TableCut(std::unique_ptr<State> state) : state_(std::move(state)) {}
TableCut::TableCut(TableCut&&) noexcept = default;
TableCut& TableCut::operator=(TableCut&&) noexcept = default;
TableCut::~TableCut() = default;

// Calls read(shard, part, rows left) until there are `max_rows`; `count` returns how many there
// are.
template <typename Read, typename Count>
bool TableCut::Walk(std::size_t max_rows, Read read, Count count) {
  max_rows = std::max<std::size_t>(max_rows, 1);
  auto& shards = state_->table->impl_->shards;
  while (state_->shard < kNumShards && count() < max_rows) {
    Shard& shard = *shards[state_->shard];
    ShardCut& part = state_->parts[state_->shard];
    read(shard, part, max_rows - count());
    if (!part.done()) continue;
    state_->ReadRemoved(state_->shard);
    ++state_->shard;
    // A clearing cut must keep watching which of its rows change.
    if (!state_->clear_dirty) state_->Close(state_->shard);
  }
  state_->at_end = count() == 0;
  return !state_->at_end;
}

bool TableCut::Next(std::size_t max_rows, RowBatch& out) {
  out.clear();
  const auto read = [&](const Shard& shard, ShardCut& part, std::size_t rows) {
    shard.ReadCut(part, rows, out);
  };
  return Walk(max_rows, read, [&] { return out.keys.size(); });
}

bool TableCut::NextRecords(std::size_t max_rows, std::vector<std::byte>& out) {
  out.clear();
  const std::size_t bytes = state_->table->record_bytes();
  const auto read = [&](const Shard& shard, ShardCut& part, std::size_t rows) {
    shard.ReadCutRecords(part, rows, out);
  };
  return Walk(max_rows, read, [&] { return out.size() / bytes; });
}

SparseTable::Extra TableCut::extra() const {
  const SparseTable::Impl& table = *state_->table->impl_;
  const ShardCut::KeptWords& words = state_->parts[0].kept;
  return {table.highest_step, table.lowest_step, words.keeps_removed, words.removed_now};
}

void TableCut::ForEachWords(
    const std::function<void(std::span<const Key>, std::span<const std::uint32_t>, bool)>& visit)
    const {
  for (const ShardCut& part : state_->parts) {
    if (!part.kept.candidates.empty()) visit(part.kept.candidates, part.kept.counts, true);
    if (!part.kept.removed.empty()) visit(part.kept.removed, part.kept.times, false);
  }
}

bool TableCut::at_end() const { return state_->at_end; }

std::vector<Key> TableCut::Removed() {
  for (std::size_t i = state_->shard; i < kNumShards; ++i) state_->ReadRemoved(i);
  std::vector<Key> all;
  for (const auto& keys : state_->removed) all.insert(all.end(), keys.begin(), keys.end());
  return all;
}

void TableCut::Commit() {
  if (!state_->at_end) return;
  for (; state_->first_open < kNumShards; state_->Close(state_->first_open + 1)) {
    state_->table->impl_->shards[state_->first_open]->ClearDirty(state_->parts[state_->first_open]);
  }
}

}  // namespace sparsefleet
