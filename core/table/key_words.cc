#include "table/key_words.h"

#include <algorithm>
#include <stdexcept>

#include "key/longest_run.h"
#include "table/batch_plan.h"

namespace sparsefleet {
namespace {

// A capacity for this many keys and some more, at most two thirds full.
std::size_t RoomFor(std::size_t keys) { return keys + keys / 2 + 16; }

}  // namespace

std::size_t KeyWords::Locate(Key key, std::uint32_t hash) const {
  std::size_t place = Home(hash);
  while (words_[place] != 0 && keys_[place] != key) place = Next(place);
  return place;
}

std::uint32_t KeyWords::Increment(Key key, std::uint32_t hash) {
  const std::size_t place = Place(key, hash);
  if (words_[place] != 0xffffffff) ++words_[place];
  return words_[place];
}

std::size_t KeyWords::Place(Key key, std::uint32_t hash) {
  if (IsFullWith(size_ + 1)) Rebuild(RoomFor(keys_.size()), 0);
  const std::size_t place = Locate(key, hash);
  if (words_[place] == 0) {
    keys_[place] = key;
    ++size_;
  }
  return place;
}

void KeyWords::Reserve(std::size_t more) {
  if (IsFullWith(size_ + more)) Rebuild(RoomFor(size_ + more), 0);
}

void KeyWords::Set(Key key, std::uint32_t hash, std::uint32_t word) {
  words_[Place(key, hash)] = word;
}

std::uint32_t KeyWords::Find(Key key, std::uint32_t hash) const {
  return size_ == 0 ? 0 : words_[Locate(key, hash)];
}

bool KeyWords::Erase(Key key, std::uint32_t hash) noexcept {
  if (keys_.empty()) return false;
  std::size_t hole = Locate(key, hash);
  if (words_[hole] == 0) return false;
  words_[hole] = 0;
  --size_;
  // Later entries of the same run move up, unless that would put them before their home slot.
  for (std::size_t place = Next(hole); words_[place] != 0; place = Next(place)) {
    const std::size_t home = Home(SlotHashOf(keys_[place]));
    const bool home_between =
        hole <= place ? (hole < home && home <= place) : (hole < home || home <= place);
    if (home_between) continue;
    keys_[hole] = keys_[place];
    words_[hole] = words_[place];
    words_[place] = 0;
    hole = place;
  }
  return true;
}

void KeyWords::EraseUpTo(std::uint32_t word) noexcept {
  for (std::size_t place = 0; place < keys_.size();) {
    if (words_[place] == 0 || words_[place] > word) {
      ++place;
    } else {
      Erase(keys_[place], SlotHashOf(keys_[place]));  // another may move into this slot
    }
  }
  if (size_ == 0) Clear();
}

void KeyWords::Halve() {
  const auto left = static_cast<std::size_t>(
      std::count_if(words_.begin(), words_.end(), [](std::uint32_t count) { return count > 1; }));
  if (left == 0) {
    Clear();
  } else {
    Rebuild(std::min(keys_.size(), RoomFor(left)), 1);
  }
}

void KeyWords::Rebuild(std::size_t capacity, int shift) {
  if (capacity > 0xffffffff) throw std::length_error("too many keys to count in one shard");
  std::vector<Key> keys(capacity);
  std::vector<std::uint32_t> counts(capacity);
  keys.swap(keys_);
  counts.swap(words_);
  size_ = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::uint32_t count = counts[i] >> shift;
    if (count == 0) continue;
    const std::size_t place = Locate(keys[i], SlotHashOf(keys[i]));
    keys_[place] = keys[i];
    words_[place] = count;
    ++size_;
  }
}

std::uint32_t KeyWords::SlotHashOf(Key key) const { return SlotHash(hash_(key)); }

std::size_t KeyWords::LongestProbe() const {
  return LongestRun(words_, [](std::uint32_t word) { return word != 0; });
}

void KeyWords::Clear() noexcept {
  keys_ = std::vector<Key>();
  words_ = std::vector<std::uint32_t>();
  size_ = 0;
}

}  // namespace sparsefleet
