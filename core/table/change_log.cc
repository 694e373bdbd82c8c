#include "table/change_log.h"

#include <algorithm>
#include <utility>

#include "sync/mutex.h"

namespace sparsefleet {
namespace {

constexpr std::uint64_t kDead = std::uint64_t{1} << 63;
constexpr std::size_t kFirstEntries = 32;

}  // namespace

ChangeLog::ChangeLog(const KeyHash& hash) : hash_(hash) {
  for (auto& part : parts_) part = std::make_unique<Part>(hash);
}

std::shared_ptr<ChangeCursor> ChangeLog::Watch() {
  auto cursor = std::make_shared<ChangeCursor>(shared_from_this());
  {
    const MutexLock lock(cursors_mutex_);
    cursors_.push_back(cursor.get());
    num_cursors_ = cursors_.size();
  }
  for (std::size_t shard = 0; shard < kNumShards; ++shard) {
    Part& part = *parts_[shard];
    const MutexLock lock(part.mutex);
    part.passed = part.last;
    cursor->positions_[shard] = part.last;
  }
  return cursor;
}

void ChangeLog::Forget(const ChangeCursor& cursor) noexcept {
  {
    const MutexLock lock(cursors_mutex_);
    std::erase(cursors_, &cursor);
    num_cursors_ = cursors_.size();
    if (!cursors_.empty()) return;
  }
  for (auto& part : parts_) {
    const MutexLock lock(part->mutex);
    // A push is on its way, or somebody has begun to watch since.
    if (part->reserved > 0 || is_watched()) continue;
    part->entries = std::vector<Entry>();
    part->places.Clear();
  }
}

std::uint64_t ChangeLog::OldestPosition(std::size_t shard) const {
  std::uint64_t oldest = UINT64_MAX;
  const MutexLock lock(cursors_mutex_);
  for (const ChangeCursor* cursor : cursors_) {
    oldest = std::min(oldest, cursor->positions_[shard].load(std::memory_order_relaxed));
  }
  return oldest;
}

void ChangeLog::Compact(Part& part, std::size_t shard) {
  const std::uint64_t oldest = OldestPosition(shard);
  std::size_t kept = 0;
  for (const Entry entry : part.entries) {
    if ((entry.number & kDead) != 0) continue;
    const std::uint32_t hash = SlotHash(hash_(entry.key));
    if (entry.number <= oldest) {
      part.places.Erase(entry.key, hash);
      continue;
    }
    part.entries[kept++] = entry;
    part.places.Set(entry.key, hash, static_cast<std::uint32_t>(kept));
  }
  part.entries.resize(kept);
}

void ChangeLog::Reserve(std::size_t shard, std::size_t keys) {
  Part& part = *parts_[shard];
  const MutexLock lock(part.mutex);
  if (part.entries.size() + part.reserved + keys > part.entries.capacity()) {
    Compact(part, shard);
    // At least half stays free, so that each compaction is paid for by as many changes.
    const std::size_t wanted = 2 * (part.entries.size() + part.reserved + keys);
    if (wanted > part.entries.capacity()) {
      part.entries.reserve(std::max({wanted, 2 * part.entries.capacity(), kFirstEntries}));
    }
  }
  part.places.Reserve(part.reserved + keys);
  part.reserved += keys;
}

void ChangeLog::Unreserve(std::size_t shard, std::size_t keys) noexcept {
  Part& part = *parts_[shard];
  const MutexLock lock(part.mutex);
  part.reserved -= keys;
}

void ChangeLog::Add(std::size_t shard, std::span<const BatchItem> items,
                    std::size_t reserved) noexcept {
  Part& part = *parts_[shard];
  const MutexLock lock(part.mutex);
  for (const BatchItem& item : items) {
    std::uint32_t& place = part.places.WordOf(item.key, item.hash);
    if (place != 0) {
      std::uint64_t& number = part.entries[place - 1].number;
      if (number > part.passed) continue;
      number |= kDead;
    }
    part.entries.push_back({item.key, ++part.last});
    place = static_cast<std::uint32_t>(part.entries.size());
  }
  part.reserved -= reserved;
}

void ChangeLog::Collect(const Part& part, std::uint64_t position, std::vector<Key>& keys) {
  const auto first = std::ranges::upper_bound(
      part.entries, position, {}, [](const Entry& entry) { return entry.number & ~kDead; });
  for (auto entry = first; entry != part.entries.end(); ++entry) {
    if ((entry->number & kDead) == 0) keys.push_back(entry->key);
  }
}

void ChangeLog::Read(std::size_t shard, std::uint64_t position, std::vector<Key>& keys) const {
  const Part& part = *parts_[shard];
  const MutexLock lock(part.mutex);
  Collect(part, position, keys);
}

std::uint64_t ChangeLog::Pass(std::size_t shard, std::uint64_t position, std::vector<Key>& keys) {
  Part& part = *parts_[shard];
  const MutexLock lock(part.mutex);
  Collect(part, position, keys);
  part.passed = part.last;
  return part.last;
}

std::size_t ChangeLog::memory_bytes() const {
  std::size_t bytes = sizeof(ChangeLog) + kNumShards * sizeof(Part);
  for (const auto& part : parts_) {
    const MutexLock lock(part->mutex);
    bytes += part->entries.capacity() * sizeof(Entry) + part->places.memory_bytes();
  }
  return bytes;
}

ChangeCursor::ChangeCursor(std::shared_ptr<ChangeLog> log) : log_(std::move(log)) {}

ChangeCursor::~ChangeCursor() { log_->Forget(*this); }

void ChangeCursor::Begin() {
  std::vector<Key> keys;
  std::array<std::uint64_t, kNumShards> positions;
  for (std::size_t shard = 0; shard < kNumShards; ++shard) {
    positions[shard] = log_->Pass(shard, positions_[shard], keys);
  }
  if (!leaving_.empty()) {
    // Left over from an earlier taking; some may have changed again since.
    keys.insert(keys.end(), leaving_.begin(), leaving_.end());
    std::ranges::sort(keys);
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  }
  leaving_ = std::move(keys);
  for (std::size_t shard = 0; shard < kNumShards; ++shard) positions_[shard] = positions[shard];
}

std::vector<Key> ChangeCursor::Take(bool begin, std::uint64_t received, std::size_t max_keys) {
  const MutexLock lock(mutex_);
  if (received < num_taken_) leaving_.insert(leaving_.end(), last_.begin(), last_.end());
  // More than were counted here: the server has restarted in between.
  if (received != UINT64_MAX) num_taken_ = received;
  last_.clear();
  if (begin) Begin();
  const std::size_t count = std::min(std::max<std::size_t>(max_keys, 1), leaving_.size());
  last_.assign(leaving_.end() - static_cast<std::ptrdiff_t>(count), leaving_.end());
  leaving_.resize(leaving_.size() - count);
  if (leaving_.empty()) leaving_ = std::vector<Key>();
  if (count > 0) ++num_taken_;
  return last_;
}

void ChangeCursor::DropLast() {
  const MutexLock lock(mutex_);
  if (last_.empty()) return;
  last_.clear();
  --num_taken_;
}

std::vector<Key> ChangeCursor::Pending() const {
  const MutexLock lock(mutex_);
  std::vector<Key> keys = leaving_;
  keys.insert(keys.end(), last_.begin(), last_.end());
  for (std::size_t shard = 0; shard < kNumShards; ++shard) {
    log_->Read(shard, positions_[shard], keys);
  }
  return keys;
}

void ChangeCursor::Restore(std::span<const Key> keys) {
  const MutexLock lock(mutex_);
  leaving_.insert(leaving_.end(), keys.begin(), keys.end());
}

std::uint64_t ChangeCursor::num_taken() const {
  const MutexLock lock(mutex_);
  return num_taken_;
}

}  // namespace sparsefleet
