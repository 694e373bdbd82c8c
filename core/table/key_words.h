// A number above 0 for some keys: how often a key without a row was requested, or when its row was
// removed. Not thread-safe: guarded by the shard's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "key/key.h"
#include "key/key_hash.h"

namespace sparsefleet {

// Open addressing with linear probing; a word of 0 marks a free place, since every key is legal.
// Functions that allocate throw std::bad_alloc; then nothing has changed.
// The `hash` arguments are the SlotHash of the key, which the batch has already computed.
class KeyWords {
 public:
  explicit KeyWords(const KeyHash& hash) : hash_(hash) {}

  // Increments the key's word and returns it.
  std::uint32_t Increment(Key key, std::uint32_t hash);
  // Reserves room for this many further keys, so that Set() does not allocate.
  void Reserve(std::size_t more);
  void Set(Key key, std::uint32_t hash, std::uint32_t word);  // REQUIRES: word > 0
  // The key's word, 0 if it is new: then set it before the next call.
  std::uint32_t& WordOf(Key key, std::uint32_t hash) { return words_[Place(key, hash)]; }
  std::uint32_t Find(Key key, std::uint32_t hash) const;  // 0: not present
  bool Erase(Key key, std::uint32_t hash) noexcept;
  void EraseUpTo(std::uint32_t word) noexcept;  // all keys whose word is this or less
  // Halves every word, rounding down; removes keys that reach 0.
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
  // The longest probe for finding a key; scans the whole table.
  std::size_t LongestProbe() const;

 private:
  std::size_t Home(std::uint32_t hash) const {
    return ScaleTo(hash, static_cast<std::uint32_t>(keys_.size()));
  }
  bool IsFullWith(std::size_t keys) const { return keys * 4 > keys_.size() * 3; }
  std::size_t Next(std::size_t place) const { return place + 1 == keys_.size() ? 0 : place + 1; }
  std::size_t Locate(Key key, std::uint32_t hash) const;  // its place, or a free one
  std::size_t Place(Key key, std::uint32_t hash);         // its place, marked as taken
  // Rehashes into tables of `capacity`, shifting each word right by `shift`.
  void Rebuild(std::size_t capacity, int shift);
  std::uint32_t SlotHashOf(Key key) const;

  const KeyHash hash_;
  std::vector<Key> keys_;
  std::vector<std::uint32_t> words_;
  std::size_t size_ = 0;
};

}  // namespace sparsefleet
