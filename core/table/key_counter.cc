#include "table/key_counter.h"

#include <stdexcept>

#include "table/batch_plan.h"

namespace sparsefleet {

std::size_t KeyCounter::Locate(Key key, std::uint32_t hash) const {
  std::size_t place = Home(hash);
  while (counts_[place] != 0 && keys_[place] != key) place = Next(place);
  return place;
}

std::uint32_t KeyCounter::Increment(Key key, std::uint32_t hash) {
  if ((size_ + 1) * 4 > keys_.size() * 3) Grow();
  const std::size_t place = Locate(key, hash);
  if (counts_[place] == 0) {
    keys_[place] = key;
    ++size_;
  }
  if (counts_[place] != 0xffffffff) ++counts_[place];
  return counts_[place];
}

bool KeyCounter::Erase(Key key, std::uint32_t hash) noexcept {
  if (keys_.empty()) return false;
  std::size_t hole = Locate(key, hash);
  if (counts_[hole] == 0) return false;
  counts_[hole] = 0;
  --size_;
  // Later entries of the same run move up, unless that would put them before their home.
  for (std::size_t place = Next(hole); counts_[place] != 0; place = Next(place)) {
    const std::size_t home = Home(PlacementHash(keys_[place]));
    const bool home_between =
        hole <= place ? (hole < home && home <= place) : (hole < home || home <= place);
    if (home_between) continue;
    keys_[hole] = keys_[place];
    counts_[hole] = counts_[place];
    counts_[place] = 0;
    hole = place;
  }
  return true;
}

void KeyCounter::Grow() {
  const std::size_t capacity = keys_.size() + keys_.size() / 2 + 16;
  if (capacity > 0xffffffff) throw std::length_error("too many admission candidates in one shard");
  std::vector<Key> keys(capacity);
  std::vector<std::uint32_t> counts(capacity);
  keys.swap(keys_);
  counts.swap(counts_);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (counts[i] == 0) continue;
    const std::size_t place = Locate(keys[i], PlacementHash(keys[i]));
    keys_[place] = keys[i];
    counts_[place] = counts[i];
  }
}

void KeyCounter::Clear() noexcept {
  keys_ = std::vector<Key>();
  counts_ = std::vector<std::uint32_t>();
  size_ = 0;
}

}  // namespace sparsefleet
