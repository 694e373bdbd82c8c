// Numbers the words of a text by frequency.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "status/status.h"

namespace sparsefleet {

// How a text is split into words and sentences.
enum class TextForm : std::uint8_t {
  kLines = 0,  // ASCII white space between words, one sentence per line
  kSeparated,  // 0x1F after each word, 0x1E after each sentence; for words that contain white space
};

// Longer sentences are split, as in gensim: a text without line breaks would be a single one.
inline constexpr std::size_t kMaxSentenceWords = 10'000;

// Words as numbers. Sentence i ends before words[ends[i]].
struct EncodedText {
  std::vector<std::uint32_t> words;
  std::vector<std::uint64_t> ends;
};

// A vocabulary that is counted first, then frozen. Not thread-safe while counting; afterwards any
// thread may read it.
class WordIndex {
 public:
  WordIndex();

  // Counts the words of `text`, which must not end within a word. Returns how many there are.
  // kTooLarge beyond 2^32 - 2 distinct words.
  Result<std::uint64_t> Count(std::string_view text, TextForm form);

  // Adds a word with a count, for a vocabulary from another source.
  Status Add(std::string_view word, std::uint64_t count);

  // Drops words with a lower count, and the rarest beyond `max_words` unless that is 0. Numbers the
  // others from 0, most frequent first, ties in byte order.
  void Keep(std::uint64_t min_count, std::size_t max_words);

  // Replaces the counts, in the order of the numbers. REQUIRES: counts.size() == size().
  void SetCounts(std::span<const std::uint64_t> counts);

  // Appends the numbers of the words of `text` to `out`, without unknown words and without
  // sentences that have no known word. Returns the number of words in the text, known or not.
  std::uint64_t Encode(std::string_view text, TextForm form, EncodedText& out) const;

  std::size_t size() const { return counts_.size(); }
  std::string_view word(std::size_t number) const {
    return {bytes_.data() + starts_[number], starts_[number + 1] - starts_[number]};
  }
  std::span<const std::uint64_t> counts() const { return counts_; }
  // The number of a word; size() if it is unknown.
  std::size_t Find(std::string_view word) const;

 private:
  std::size_t SlotOf(std::string_view word, std::uint64_t hash) const;
  std::uint64_t HashOf(std::string_view word) const;
  void Rebuild(std::size_t num_slots);
  void Append(std::string_view word, std::uint64_t count, std::uint64_t hash);

  std::uint64_t salt_;  // secret, so that nobody can choose words that collide
  std::string bytes_;   // all words, concatenated
  std::vector<std::uint64_t> starts_{0};
  std::vector<std::uint64_t> counts_;
  struct Slot {
    std::uint32_t tag = 0;     // upper half of the hash
    std::uint32_t number = 0;  // plus one; 0 is empty
  };
  std::vector<Slot> slots_;  // open addressing, at most half full
};

}  // namespace sparsefleet
