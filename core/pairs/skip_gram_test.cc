#include "pairs/skip_gram.h"

#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "optimizer/kernels.h"
#include "testing/check.h"

namespace sparsefleet {
namespace {

using testing::Expect;
using testing::ExpectEqual;
using testing::Test;
using Floats = std::vector<float>;

// N inputs and T targets of random values, with what a window needs besides.
struct Window {
  Window(std::size_t num_inputs, std::size_t num_targets, std::size_t width, unsigned seed)
      : inputs(num_inputs * width),
        targets(num_targets * width),
        sigmoid(kSigmoidSlots),
        logits(num_inputs * num_targets),
        steps(num_inputs * num_targets),
        lanes(2 * num_inputs * kRowStep) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-0.5F, 0.5F);
    for (float& value : inputs) value = uniform(random);
    for (float& value : targets) value = uniform(random);
    for (std::size_t i = 0; i < kSigmoidSlots; ++i) {
      const double x = (double(i) + 0.5) * (2 * kMaxLogit / kSigmoidSlots) - kMaxLogit;
      sigmoid[i] = static_cast<float>(1 / (1 + std::exp(-x)));
    }
    for (std::size_t n = 0; n < num_inputs; ++n) input_rows.push_back(&inputs[n * width]);
    for (std::size_t t = 0; t < num_targets; ++t) target_rows.push_back(&targets[t * width]);
    rows = {input_rows.data(), num_inputs,    target_rows.data(), num_targets, width, 0.1F,
            sigmoid.data(),    logits.data(), steps.data(),       lanes.data()};
  }

  Floats inputs, targets, sigmoid, logits, steps, lanes;
  std::vector<float*> input_rows, target_rows;
  WindowRows rows;
};

void ExpectStepIsGradient(WindowStep step, std::size_t num_targets) {
  constexpr std::size_t kInputs = 3;
  constexpr std::size_t kWidth = 16;
  Window before(kInputs, num_targets, kWidth, 7);
  Window after(kInputs, num_targets, kWidth, 7);
  step(after.rows);
  Floats inputs = before.inputs;
  Floats targets = before.targets;
  for (std::size_t n = 0; n < kInputs; ++n) {
    for (std::size_t t = 0; t < num_targets; ++t) {
      double logit = 0;
      for (std::size_t d = 0; d < kWidth; ++d) {
        logit += double(before.input_rows[n][d]) * before.target_rows[t][d];
      }
      Expect(std::abs(after.logits[n * num_targets + t] - logit) < 1e-5, "logit");
      const double g = 0.1 * ((t == 0 ? 1.0 : 0.0) - 1 / (1 + std::exp(-logit)));
      for (std::size_t d = 0; d < kWidth; ++d) {
        inputs[n * kWidth + d] += float(g * before.target_rows[t][d]);
        targets[t * kWidth + d] += float(g * before.input_rows[n][d]);
      }
    }
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Expect(std::abs(after.inputs[i] - inputs[i]) < 1e-4F, "input row");
  }
  for (std::size_t i = 0; i < targets.size(); ++i) {
    Expect(std::abs(after.targets[i] - targets[i]) < 1e-4F, "target row");
  }
}

const Test kGradient("a window moves rows along the gradient of the loss", [] {
  for (const std::size_t targets : {1, 2, 3, 4, 5, 6, 7, 16}) {
    ExpectStepIsGradient(WindowStepBaseline, targets);
    ExpectStepIsGradient(BestWindowStep(), targets);
  }
});

// A text of five topics: words 0 to 3 occur together, then 4 to 7, and so on.
struct Topics {
  Topics() {
    std::mt19937 random(3);
    for (int sentence = 0; sentence < 2000; ++sentence) {
      const std::uint32_t topic = sentence % 5 * 4;
      for (int i = 0; i < 8; ++i) words.push_back(topic + random() % 4);
      ends.push_back(words.size());
    }
    std::uniform_real_distribution<float> uniform(-0.5F / 8, 0.5F / 8);
    for (float& value : inputs) value = uniform(random);
  }

  Result<SkipGramResult> Train(const SkipGram& model, std::uint64_t seed) {
    return model.Train(words, ends, {inputs.data(), marks.data()}, {targets.data(), nullptr}, 0.05F,
                       seed);
  }

  double Cosine(std::size_t a, std::size_t b) const {
    double ab = 0, aa = 0, bb = 0;
    for (std::size_t d = 0; d < 8; ++d) {
      ab += double(inputs[a * 8 + d]) * inputs[b * 8 + d];
      aa += double(inputs[a * 8 + d]) * inputs[a * 8 + d];
      bb += double(inputs[b * 8 + d]) * inputs[b * 8 + d];
    }
    return ab / std::sqrt(aa * bb);
  }

  std::vector<std::uint32_t> words;
  std::vector<std::uint64_t> ends;
  std::vector<std::uint64_t> counts = std::vector<std::uint64_t>(20, 800);
  Floats inputs = Floats(20 * 8);
  Floats targets = Floats(20 * 8);
  std::vector<std::uint8_t> marks = std::vector<std::uint8_t>(20);
};

const Test kLearns("words that occur together become similar, and the loss falls", [] {
  for (const bool locked : {false, true}) {
    Topics text;
    const auto model =
        SkipGram::Create({.negatives = 2, .sample = 0, .locked = locked}, text.counts, 8).value();
    const SkipGramResult first = text.Train(*model, 1).value();
    SkipGramResult last;
    for (std::uint64_t seed = 2; seed < 6; ++seed) last = text.Train(*model, seed).value();
    ExpectEqual(first.trained_words, 16'000UL);
    Expect(first.pairs > 3 * first.trained_words, "pairs");
    Expect(last.loss_sum / double(last.loss_pairs) < first.loss_sum / double(first.loss_pairs));
    Expect(text.Cosine(0, 1) > text.Cosine(0, 4) + 0.5, "same topic");
    ExpectEqual(text.marks, std::vector<std::uint8_t>(20, 1));
  }
});

const Test kRepeatable("one thread with the same seed gives the same bits", [] {
  Topics one;
  Topics other;
  const auto model = SkipGram::Create({.sample = 1e-2}, one.counts, 8).value();
  Expect(one.Train(*model, 9).ok() && other.Train(*model, 9).ok());
  ExpectEqual(one.inputs, other.inputs);
  ExpectEqual(one.targets, other.targets);
});

const Test kThreads("threads train the same rows", [] {
  for (const bool locked : {false, true}) {
    Topics text;
    const auto model = SkipGram::Create({.sample = 0, .locked = locked}, text.counts, 8).value();
    std::vector<std::jthread> threads;
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      threads.emplace_back([&text, &model, seed] { Expect(text.Train(*model, seed).ok()); });
    }
    threads.clear();
    Expect(text.Cosine(0, 1) > text.Cosine(0, 4), "same topic");
  }
});

const Test kThinned("frequent words are thinned out by Mikolov's rule", [] {
  std::vector<std::uint32_t> words(100'000);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = i % 10 == 0 ? 1 : 0;
  const std::vector<std::uint64_t> ends = {words.size()};
  const std::vector<std::uint64_t> counts = {90'000, 10'000};
  Floats inputs(16), targets(16);
  const auto model = SkipGram::Create({.sample = 0.01}, counts, 8).value();
  const auto result =
      model->Train(words, ends, {inputs.data(), nullptr}, {targets.data(), nullptr}, 0.0F, 1);
  const auto share = [](double f) { return std::sqrt(0.01 / f) + 0.01 / f; };
  const double expected = 90'000 * share(0.9) + 10'000 * share(0.1);
  Expect(std::abs(double(result.value().trained_words) - expected) < 0.03 * expected);
});

const Test kRefused("bad settings and texts are refused by name", [] {
  const std::vector<std::uint64_t> counts = {3, 1};
  ExpectEqual(SkipGram::Create({.window = 0}, counts, 8).status().message(),
              std::string("window must be in 1..1000, got 0"));
  Expect(!SkipGram::Create({.negatives = 0}, counts, 8).ok());
  Expect(!SkipGram::Create({}, counts, 7).ok());
  Expect(!SkipGram::Create({}, std::vector<std::uint64_t>{0}, 8).ok());
  const auto model = SkipGram::Create({}, counts, 8).value();
  Floats rows(16);
  const RowPlane plane = {rows.data(), nullptr};
  ExpectEqual(
      model->Train(std::vector<std::uint32_t>{2}, std::vector<std::uint64_t>{1}, plane, plane, 0, 0)
          .status()
          .message(),
      std::string("the text contains word number 2, but the vocabulary ends at 1"));
  Expect(
      !model
           ->Train(std::vector<std::uint32_t>{1}, std::vector<std::uint64_t>{2}, plane, plane, 0, 0)
           .ok());
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
