// A number above 0 for each of some keys: how often one without a row was asked for, or when
// its row was removed. Not thread-safe: the shard's lock guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "table/key.h"

namespace sparsefleet {

// Open addressing with linear probing; a word of 0 marks a free place, since every key is legal.
// What takes memory throws std::bad_alloc; then nothing has changed.
class KeyWords {
 public:
  // One more for the key; returns its word.
  std::uint32_t Increment(Key key, std::uint32_t hash);
  // Room for so many keys beyond those there are: Set() of them takes no memory.
  void Reserve(std::size_t more);
  void Set(Key key, std::uint32_t hash, std::uint32_t word);  // REQUIRES: word > 0
  std::uint32_t Find(Key key, std::uint32_t hash) const;      // 0: there is none
  bool Erase(Key key, std::uint32_t hash) noexcept;
  void EraseUpTo(std::uint32_t word) noexcept;  // all keys whose word is this or less
  // Halves every word, rounding down; keys at 0 go.
  void Halve();
  void Clear() noexcept;

  template <typename Visit>
  void ForEach(Visit visit) const {
    for (std::size_t place = 0; place < keys_.size(); ++place) {
      if (words_[place] != 0) visit(keys_[place], words_[place]);
    }
  }

  std::size_t size() const { return size_; }
  std::size_t memory_bytes() const {
    return keys_.capacity() * sizeof(Key) + words_.capacity() * sizeof(std::uint32_t);
  }

 private:
  std::size_t Home(std::uint32_t hash) const {
    return ScaleTo(hash, static_cast<std::uint32_t>(keys_.size()));
  }
  bool IsFullWith(std::size_t keys) const { return keys * 4 > keys_.size() * 3; }
  std::size_t Next(std::size_t place) const { return place + 1 == keys_.size() ? 0 : place + 1; }
  std::size_t Locate(Key key, std::uint32_t hash) const;  // its place, or the free one for it
  std::size_t Place(Key key, std::uint32_t hash);         // its place; it counts as taken
  // Moves the entries to tables of `capacity`, each word shifted right by `shift`.
  void Rebuild(std::size_t capacity, int shift);

  std::vector<Key> keys_;
  std::vector<std::uint32_t> words_;
  std::size_t size_ = 0;
};

}  // namespace sparsefleet
