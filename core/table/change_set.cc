#include "table/change_set.h"

#include <algorithm>
#include <utility>

namespace sparsefleet {
namespace {

constexpr std::size_t kFirstPlaces = 1024;

}  // namespace

void ChangeSet::Grow() {
  const std::size_t size = std::max(kFirstPlaces, 2 * places_.size());
  std::vector<std::uint32_t> places(size, 0);
  for (std::size_t i = 0; i < changed_.size(); ++i) {
    std::size_t at = Mix64(changed_[i]) & (size - 1);
    while (places[at] != 0) at = (at + 1) & (size - 1);
    places[at] = static_cast<std::uint32_t>(i + 1);
  }
  places_ = std::move(places);
}

void ChangeSet::Insert(Key key) {
  if (2 * (changed_.size() + 1) > places_.size()) Grow();
  const std::size_t mask = places_.size() - 1;
  std::size_t at = Mix64(key) & mask;
  for (; places_[at] != 0; at = (at + 1) & mask) {
    if (changed_[places_[at] - 1] == key) return;
  }
  changed_.push_back(key);
  places_[at] = static_cast<std::uint32_t>(changed_.size());
}

void ChangeSet::Add(std::span<const Key> keys) {
  const std::lock_guard lock(mutex_);
  for (const Key key : keys) Insert(key);
}

std::vector<Key> ChangeSet::Take(bool begin, std::uint64_t received, std::size_t max_keys) {
  const std::lock_guard lock(mutex_);
  if (received < num_taken_) {
    for (const Key key : last_) Insert(key);
    num_taken_ = received;
  }
  last_.clear();
  if (begin) {
    // What an earlier round of taking left over may have changed again: each key once.
    for (const Key key : leaving_) Insert(key);
    leaving_ = std::exchange(changed_, {});
    places_ = {};
  }
  const std::size_t count = std::min(std::max<std::size_t>(max_keys, 1), leaving_.size());
  last_.assign(leaving_.end() - static_cast<std::ptrdiff_t>(count), leaving_.end());
  leaving_.resize(leaving_.size() - count);
  if (count > 0) ++num_taken_;
  return last_;
}

void ChangeSet::DropLast() {
  const std::lock_guard lock(mutex_);
  if (last_.empty()) return;
  last_.clear();
  --num_taken_;
}

std::uint64_t ChangeSet::num_taken() const {
  const std::lock_guard lock(mutex_);
  return num_taken_;
}

}  // namespace sparsefleet
