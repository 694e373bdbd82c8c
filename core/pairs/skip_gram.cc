#include "pairs/skip_gram.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <numeric>
#include <string>

#include "optimizer/kernels.h"

namespace sparsefleet {
namespace {

constexpr std::uint32_t kMaxWindow = 1000;
constexpr std::uint32_t kMaxNegatives = 1000;
constexpr std::size_t kLossInterval = 16;  // positions between two whose loss is measured
constexpr double kTwo32 = 4294967296.0;

std::uint32_t AsFraction(double share) {
  return static_cast<std::uint32_t>(std::clamp(share, 0.0, 1.0) * (kTwo32 - 1));
}

// xorshift64*, seeded through SplitMix64: fast, and good enough to draw windows and noise.
class Random {
 public:
  explicit Random(std::uint64_t seed) {
    seed += 0x9e3779b97f4a7c15ULL;
    seed = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9ULL;
    seed = (seed ^ (seed >> 27)) * 0x94d049bb133111ebULL;
    state_ = (seed ^ (seed >> 31)) | 1;
  }
  std::uint64_t Next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1dULL;
  }
  std::uint32_t Next32() { return static_cast<std::uint32_t>(Next() >> 32); }
  // Uniform in [0, bound).
  std::uint32_t Below(std::uint32_t bound) {
    return static_cast<std::uint32_t>((std::uint64_t{Next32()} * bound) >> 32);
  }

 private:
  std::uint64_t state_;
};

double LossOf(float logit, bool is_true) {
  const double x = is_true ? -logit : logit;
  return x > 30 ? x : std::log1p(std::exp(x));
}

}  // namespace

WindowStep BestWindowStep() {
#if defined(__x86_64__)
  static const bool has_fma = HasAvx2() && __builtin_cpu_supports("fma");
  if (has_fma) return WindowStepAvx2;
#endif
  return WindowStepBaseline;
}

Status SkipGramConfig::Validate() const {
  const auto bad = [](const std::string& text) { return Status(Code::kInvalidArgument, text); };
  if (window < 1 || window > kMaxWindow) {
    return bad("window must be in 1..1000, got " + std::to_string(window));
  }
  if (negatives < 1 || negatives > kMaxNegatives) {
    return bad("negatives must be in 1..1000, got " + std::to_string(negatives));
  }
  if (!(sample >= 0) || !std::isfinite(sample)) {
    return bad("sample must be finite and at least 0, got " + std::to_string(sample));
  }
  if (!std::isfinite(noise_power)) {
    return bad("noise_power must be finite, got " + std::to_string(noise_power));
  }
  return Status::Ok();
}

// Spin locks over groups of rows. A window locks those of its rows in ascending order.
struct SkipGram::Locks {
  static constexpr std::size_t kCount = 4096;
  std::array<std::atomic_flag, kCount> flags{};

  void Take(std::span<const std::uint32_t> numbers) {
    for (const std::uint32_t number : numbers) {
      while (flags[number].test_and_set(std::memory_order_acquire)) {
        flags[number].wait(true, std::memory_order_relaxed);
      }
    }
  }
  void Release(std::span<const std::uint32_t> numbers) {
    for (const std::uint32_t number : numbers) {
      flags[number].clear(std::memory_order_release);
      flags[number].notify_one();
    }
  }
};

SkipGram::SkipGram(const SkipGramConfig& config, std::span<const std::uint64_t> counts,
                   std::size_t width)
    : config_(config), width_(width), keep_(counts.size()), sigmoid_(kSigmoidSlots) {
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), 0.0));
  for (std::size_t word = 0; word < counts.size(); ++word) {
    const double ratio = counts[word] == 0 ? 1.0 : config.sample * total / double(counts[word]);
    keep_[word] = AsFraction(config.sample == 0 ? 1.0 : std::sqrt(ratio) + ratio);
  }
  for (std::size_t slot = 0; slot < kSigmoidSlots; ++slot) {
    const double x = (double(slot) + 0.5) * (2 * kMaxLogit / kSigmoidSlots) - kMaxLogit;
    sigmoid_[slot] = static_cast<float>(1.0 / (1.0 + std::exp(-x)));
  }
  BuildNoise(counts);
  if (config.locked) locks_ = std::make_unique<Locks>();
}

SkipGram::~SkipGram() = default;

void SkipGram::BuildNoise(std::span<const std::uint64_t> counts) {
  const std::size_t size = counts.size();
  std::vector<double> shares(size);
  for (std::size_t word = 0; word < size; ++word) {
    shares[word] = counts[word] == 0 ? 0.0 : std::pow(double(counts[word]), config_.noise_power);
  }
  const double mean = std::accumulate(shares.begin(), shares.end(), 0.0) / double(size);
  std::vector<std::uint32_t> small;
  std::vector<std::uint32_t> large;
  for (std::uint32_t word = 0; word < size; ++word) {
    shares[word] /= mean;
    (shares[word] < 1.0 ? small : large).push_back(word);
  }
  noise_.resize(size);
  for (std::uint32_t word = 0; word < size; ++word) noise_[word] = {0xFFFFFFFFU, word};
  while (!small.empty() && !large.empty()) {
    const std::uint32_t less = small.back();
    const std::uint32_t more = large.back();
    small.pop_back();
    noise_[less] = {AsFraction(shares[less]), more};
    shares[more] -= 1.0 - shares[less];
    if (shares[more] < 1.0) {
      large.pop_back();
      small.push_back(more);
    }
  }
}

Result<std::shared_ptr<SkipGram>> SkipGram::Create(const SkipGramConfig& config,
                                                   std::span<const std::uint64_t> counts,
                                                   std::size_t width) {
  const Status status = config.Validate();
  if (!status.ok()) return status;
  if (width == 0 || width % kRowStep != 0) {
    return Status(Code::kInvalidArgument, "the padded row width must be a positive multiple of " +
                                              std::to_string(kRowStep) + ", got " +
                                              std::to_string(width));
  }
  if (std::ranges::all_of(counts, [](std::uint64_t count) { return count == 0; })) {
    return Status(Code::kInvalidArgument, "the vocabulary is empty: no word has a count");
  }
  return std::shared_ptr<SkipGram>(new SkipGram(config, counts, width));
}

// One call of Train(), with its buffers and random numbers.
class SkipGram::Worker {
 public:
  Worker(const SkipGram& model, const RowPlane& inputs, const RowPlane& targets,
         float learning_rate, std::uint64_t seed)
      : model_(model),
        config_(model.config_),
        inputs_(inputs),
        targets_(targets),
        random_(seed),
        step_(BestWindowStep()),
        input_words_(2 * config_.window),
        input_rows_(2 * config_.window),
        target_words_(1 + config_.negatives),
        target_rows_(1 + config_.negatives),
        logits_(input_rows_.size() * target_rows_.size()),
        steps_(logits_.size()),
        lanes_(2 * input_rows_.size() * kRowStep) {
    rows_ = {.inputs = input_rows_.data(),
             .num_inputs = 0,
             .targets = target_rows_.data(),
             .num_targets = target_rows_.size(),
             .width = model.width_,
             .learning_rate = learning_rate,
             .sigmoid = model.sigmoid_.data(),
             .logits = logits_.data(),
             .steps = steps_.data(),
             .lanes = lanes_.data()};
  }

  void TrainSentence(std::span<const std::uint32_t> words) {
    kept_.clear();
    for (const std::uint32_t word : words) {
      if (random_.Next32() <= model_.keep_[word]) kept_.push_back(word);
    }
    if (kept_.empty()) return;
    DrawTargets(kept_[0]);
    for (std::size_t place = 0; place < kept_.size(); ++place) {
      TrainPlace(place);
      ++result_.trained_words;
      if (place + 1 < kept_.size()) DrawTargets(kept_[place + 1]);
    }
  }

  const SkipGramResult& result() const { return result_; }

 private:
  // The word and its noise become the targets; their rows are prefetched.
  void DrawTargets(std::uint32_t word) {
    target_words_[0] = word;
    const auto size = static_cast<std::uint32_t>(model_.noise_.size());
    for (std::size_t t = 1; t < target_words_.size(); ++t) {
      // A vocabulary of one word has no other to draw: the noise is then that word.
      for (int tries = 0; tries < 16; ++tries) {
        const std::uint32_t slot = random_.Below(size);
        const NoiseSlot& drawn = model_.noise_[slot];
        target_words_[t] = random_.Next32() <= drawn.threshold ? slot : drawn.other;
        if (target_words_[t] != word) break;
      }
    }
    for (std::size_t t = 0; t < target_words_.size(); ++t) {
      target_rows_[t] = targets_.rows + target_words_[t] * model_.width_;
      for (std::size_t d = 0; d < model_.width_; d += 16)
        __builtin_prefetch(target_rows_[t] + d, 1);
    }
  }

  void TrainPlace(std::size_t place) {
    const std::size_t reach =
        config_.shrink_windows ? 1 + random_.Below(config_.window) : config_.window;
    const std::size_t begin = place < reach ? 0 : place - reach;
    const std::size_t end = std::min(kept_.size(), place + reach + 1);
    std::size_t count = 0;
    for (std::size_t other = begin; other < end; ++other) {
      if (other == place) continue;
      input_words_[count] = kept_[other];
      input_rows_[count++] = inputs_.rows + kept_[other] * model_.width_;
    }
    if (count == 0) return;
    rows_.num_inputs = count;
    if (model_.locks_ == nullptr) {
      step_(rows_);
    } else {
      StepLocked(count);
    }
    result_.pairs += count;
    if (++places_ % kLossInterval == 0) AddLoss(count);
    if (inputs_.touched != nullptr) {
      for (std::size_t n = 0; n < count; ++n) Touch(inputs_.touched + input_words_[n]);
    }
    if (targets_.touched != nullptr) {
      for (const std::uint32_t word : target_words_) Touch(targets_.touched + word);
    }
  }

  static void Touch(std::uint8_t* mark) {
    std::atomic_ref<std::uint8_t>(*mark).store(1, std::memory_order_relaxed);
  }

  void StepLocked(std::size_t count) {
    locked_.clear();
    for (std::size_t n = 0; n < count; ++n) locked_.push_back(input_words_[n] * 2);
    for (const std::uint32_t word : target_words_) locked_.push_back(word * 2 + 1);
    for (std::uint32_t& number : locked_) number %= Locks::kCount;
    std::ranges::sort(locked_);
    locked_.erase(std::unique(locked_.begin(), locked_.end()), locked_.end());
    model_.locks_->Take(locked_);
    step_(rows_);
    model_.locks_->Release(locked_);
  }

  void AddLoss(std::size_t count) {
    for (std::size_t n = 0; n < count; ++n) {
      for (std::size_t t = 0; t < target_words_.size(); ++t) {
        result_.loss_sum += LossOf(logits_[n * target_words_.size() + t], t == 0);
      }
    }
    result_.loss_pairs += count;
  }

  const SkipGram& model_;
  const SkipGramConfig& config_;
  const RowPlane inputs_;
  const RowPlane targets_;
  Random random_;
  const WindowStep step_;
  std::vector<std::uint32_t> kept_;
  std::vector<std::uint32_t> input_words_;
  std::vector<float*> input_rows_;
  std::vector<std::uint32_t> target_words_;
  std::vector<float*> target_rows_;
  std::vector<float> logits_;
  std::vector<float> steps_;
  std::vector<float> lanes_;
  std::vector<std::uint32_t> locked_;
  WindowRows rows_{};
  std::size_t places_ = 0;
  SkipGramResult result_;
};

Result<SkipGramResult> SkipGram::Train(std::span<const std::uint32_t> words,
                                       std::span<const std::uint64_t> ends, const RowPlane& inputs,
                                       const RowPlane& targets, float learning_rate,
                                       std::uint64_t seed) const {
  for (const std::uint32_t word : words) {
    if (word >= num_words()) {
      return Status(Code::kInvalidArgument,
                    "the text contains word number " + std::to_string(word) +
                        ", but the vocabulary ends at " + std::to_string(num_words() - 1));
    }
  }
  std::uint64_t begin = 0;
  for (const std::uint64_t end : ends) {
    if (end < begin || end > words.size()) {
      return Status(Code::kInvalidArgument, "a sentence ends at " + std::to_string(end) +
                                                ", expected a value from " + std::to_string(begin) +
                                                " to " + std::to_string(words.size()));
    }
    begin = end;
  }
  Worker worker(*this, inputs, targets, learning_rate, seed);
  begin = 0;
  for (const std::uint64_t end : ends) {
    worker.TrainSentence(words.subspan(begin, end - begin));
    begin = end;
  }
  return worker.result();
}

}  // namespace sparsefleet
