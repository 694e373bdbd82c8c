#include "table/change_set.h"

#include <algorithm>
#include <utility>

#include "key/longest_run.h"
#include "sync/mutex.h"

namespace sparsefleet {
namespace {

constexpr std::size_t kFirstPlaces = 1024;

}  // namespace

void ChangeSet::Grow(std::size_t keys) {
  std::size_t size = std::max(kFirstPlaces, places_.size());
  while (size < 2 * keys) size *= 2;
  if (size == places_.size()) return;
  std::vector<std::uint32_t> places(size, 0);
  for (std::size_t i = 0; i < changed_.size(); ++i) {
    std::size_t at = hash_(changed_[i]) & (size - 1);
    while (places[at] != 0) at = (at + 1) & (size - 1);
    places[at] = static_cast<std::uint32_t>(i + 1);
  }
  places_ = std::move(places);
}

void ChangeSet::Insert(Key key) {
  Grow(changed_.size() + 1);
  const std::size_t mask = places_.size() - 1;
  std::size_t at = hash_(key) & mask;
  for (; places_[at] != 0; at = (at + 1) & mask) {
    if (changed_[places_[at] - 1] == key) return;
  }
  changed_.push_back(key);
  places_[at] = static_cast<std::uint32_t>(changed_.size());
}

void ChangeSet::Add(std::span<const Key> keys) {
  const MutexLock lock(mutex_);
  for (const Key key : keys) Insert(key);
}

void ChangeSet::Reserve(std::size_t keys) {
  const MutexLock lock(mutex_);
  const std::size_t wanted = changed_.size() + reserved_ + keys;
  Grow(wanted);
  if (wanted > changed_.capacity()) changed_.reserve(std::max(wanted, 2 * changed_.capacity()));
  reserved_ += keys;
}

void ChangeSet::Unreserve(std::size_t keys) {
  const MutexLock lock(mutex_);
  reserved_ -= keys;
}

std::vector<Key> ChangeSet::Pending() const {
  const MutexLock lock(mutex_);
  std::vector<Key> keys = changed_;
  keys.insert(keys.end(), leaving_.begin(), leaving_.end());
  keys.insert(keys.end(), last_.begin(), last_.end());
  return keys;
}

std::vector<Key> ChangeSet::Take(bool begin, std::uint64_t received, std::size_t max_keys) {
  const MutexLock lock(mutex_);
  if (received < num_taken_) {
    for (const Key key : last_) Insert(key);
    num_taken_ = received;
  } else if (received != UINT64_MAX) {
    num_taken_ = received;  // more than were counted here: the server has restarted in between
  }
  last_.clear();
  if (begin) {
    // Keys left over from an earlier round may have changed again: keep each once.
    for (const Key key : leaving_) Insert(key);
    leaving_ = std::exchange(changed_, {});
    places_ = {};
    if (reserved_ > 0) {
      Grow(reserved_);
      changed_.reserve(reserved_);
    }
    if (reserved_ > 0) {
      Grow(reserved_);
      changed_.reserve(reserved_);
    }
  }
  const std::size_t count = std::min(std::max<std::size_t>(max_keys, 1), leaving_.size());
  last_.assign(leaving_.end() - static_cast<std::ptrdiff_t>(count), leaving_.end());
  leaving_.resize(leaving_.size() - count);
  if (count > 0) ++num_taken_;
  return last_;
}

void ChangeSet::DropLast() {
  const MutexLock lock(mutex_);
  if (last_.empty()) return;
  last_.clear();
  --num_taken_;
}

std::size_t ChangeSet::LongestProbe() const {
  const MutexLock lock(mutex_);
  return LongestRun(places_, [](std::uint32_t place) { return place != 0; });
}

std::uint64_t ChangeSet::num_taken() const {
  const MutexLock lock(mutex_);
  return num_taken_;
}

}  // namespace sparsefleet
