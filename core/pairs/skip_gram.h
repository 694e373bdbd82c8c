// Skip-gram with negative sampling (Mikolov et al. 2013) over rows in this process.
//
// The words around a place are the inputs, the word at the place is their target. Noise words are
// drawn once for each place and shared by its pairs (Ji et al. 2016): the same objective, with far
// fewer rows to fetch.
//
// Letters: V words, W floats of a padded row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "pairs/window_step.h"
#include "status/status.h"

namespace sparsefleet {

struct SkipGramConfig {
  std::uint32_t window = 5;     // words to each side, at most
  std::uint32_t negatives = 5;  // noise words per place
  bool shrink_windows = true;   // a random size in [1, window] for each place
  double sample = 1e-3;  // words that are a larger share of the text are thinned out; 0: none are
  double noise_power = 0.75;  // noise words are drawn by count to this power
  bool locked = false;  // rows are locked while a window changes them; slower, no lost updates

  Status Validate() const;
};

// Rows of all words, one after another, W apart.
struct RowPlane {
  float* rows = nullptr;            // [V, W]
  std::uint8_t* touched = nullptr;  // [V], set to 1 for rows that were changed; or null
};

struct SkipGramResult {
  std::uint64_t trained_words = 0;  // places that were not thinned out
  std::uint64_t pairs = 0;
  double loss_sum = 0;  // of `loss_pairs` pairs, each with its noise
  std::uint64_t loss_pairs = 0;
};

// The constants of a training. Thread-safe: threads train different texts on the same rows.
class SkipGram {
 public:
  // kInvalidArgument for settings out of range, or counts without a positive one.
  static Result<std::shared_ptr<SkipGram>> Create(const SkipGramConfig& config,
                                                  std::span<const std::uint64_t> counts,
                                                  std::size_t width);
  ~SkipGram();

  std::size_t num_words() const { return keep_.size(); }
  std::size_t width() const { return width_; }

  // Trains on sentences: sentence i ends before words[ends[i]]. The same seed draws the same
  // windows and noise. kInvalidArgument for a word or an end out of range; nothing is trained then.
  Result<SkipGramResult> Train(std::span<const std::uint32_t> words,
                               std::span<const std::uint64_t> ends, const RowPlane& inputs,
                               const RowPlane& targets, float learning_rate,
                               std::uint64_t seed) const;

 private:
  struct Locks;
  SkipGram(const SkipGramConfig& config, std::span<const std::uint64_t> counts, std::size_t width);
  void BuildNoise(std::span<const std::uint64_t> counts);

  // A word of the noise distribution by Walker's alias method, exact and in one read.
  struct NoiseSlot {
    std::uint32_t threshold = 0;  // of 2^32: below it the slot's own word
    std::uint32_t other = 0;
  };

  const SkipGramConfig config_;
  const std::size_t width_;
  std::vector<std::uint32_t> keep_;  // of 2^32: how often a word is kept
  std::vector<NoiseSlot> noise_;
  std::vector<float> sigmoid_;
  std::unique_ptr<Locks> locks_;

  class Worker;
};

}  // namespace sparsefleet
