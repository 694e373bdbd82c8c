// Skip-gram with negative sampling (Mikolov et al. 2013) over rows in this process.
//
// The words around a position are the inputs, and the word at the position is their target. Noise
// words are drawn once per position and shared by its pairs (Ji et al. 2016): the same objective
// with far fewer rows to fetch.
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
  std::uint32_t negatives = 5;  // noise words per position
  bool shrink_windows = true;   // a random size in [1, window] for each position
  double sample = 1e-3;         // words with a larger share of the text are downsampled; 0: off
  double noise_power = 0.75;    // noise words are drawn in proportion to their count to this power
  bool locked = false;  // rows are locked while a window changes them; slower, no lost updates

  Status Validate() const;
};

// The rows of all words, contiguous, W floats apart.
struct RowPlane {
  float* rows = nullptr;            // [V, W]
  std::uint8_t* touched = nullptr;  // [V], set to 1 for rows that were changed; or null
};

struct SkipGramResult {
  std::uint64_t trained_words = 0;  // positions that were not downsampled
  std::uint64_t pairs = 0;
  double loss_sum = 0;  // of `loss_pairs` pairs, each with its noise
  std::uint64_t loss_pairs = 0;
};

// The settings of a training run. Thread-safe: threads train different texts on the same rows.
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

  // One slot of Walker's alias method, which draws from the noise distribution exactly, with one
  // read.
  struct NoiseSlot {
    std::uint32_t threshold = 0;  // out of 2^32: draw the slot's own word below it
    std::uint32_t other = 0;
  };

  const SkipGramConfig config_;
  const std::size_t width_;
  std::vector<std::uint32_t> keep_;  // out of 2^32: how often a word is kept
  std::vector<NoiseSlot> noise_;
  std::vector<float> sigmoid_;
  std::unique_ptr<Locks> locks_;

  class Worker;
};

}  // namespace sparsefleet
