// Vocabularies and skip-gram training. Every call that reads a text releases the GIL.
// Letters: V words, W floats of a padded row.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "bind.h"
#include "pairs/skip_gram.h"
#include "pairs/word_index.h"
#include "raise.h"
#include "status/status.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsefleet::python {
namespace {

std::string_view ViewOf(const nb::bytes& text) { return {text.c_str(), text.size()}; }

std::uint64_t Count(WordIndex& index, const nb::bytes& text, TextForm form) {
  Result<std::uint64_t> counted = std::uint64_t{0};
  {
    nb::gil_scoped_release release;
    counted = index.Count(ViewOf(text), form);
  }
  Check(counted.status());
  return counted.value();
}

nb::tuple Encode(const WordIndex& index, const nb::bytes& text, TextForm form) {
  EncodedText found;
  std::uint64_t total = 0;
  {
    nb::gil_scoped_release release;
    total = index.Encode(ViewOf(text), form, found);
  }
  const std::size_t words_shape[] = {found.words.size()};
  const std::size_t ends_shape[] = {found.ends.size()};
  return nb::make_tuple(ToNumpy(std::move(found.words), words_shape),
                        ToNumpy(std::move(found.ends), ends_shape), total);
}

nb::object Counts(const WordIndex& index) {
  const auto counts = index.counts();
  const std::size_t shape[] = {counts.size()};
  return ToNumpy(std::vector<std::uint64_t>(counts.begin(), counts.end()), shape);
}

nb::list Words(const WordIndex& index) {
  nb::list words;
  for (std::size_t number = 0; number < index.size(); ++number) {
    const std::string_view word = index.word(number);
    words.append(nb::bytes(word.data(), word.size()));
  }
  return words;
}

void SetCounts(WordIndex& index, const Array<const std::uint64_t>& counts) {
  if (counts.size() != index.size()) {
    Raise({Code::kShapeMismatch, "got " + std::to_string(counts.size()) + " counts for " +
                                     std::to_string(index.size()) + " words"});
  }
  index.SetCounts(SpanOf(counts));
}

std::optional<std::size_t> Find(const WordIndex& index, const nb::bytes& word) {
  const std::size_t number = index.Find(ViewOf(word));
  if (number == index.size()) return std::nullopt;
  return number;
}

using Marks = std::optional<Array<std::uint8_t>>;

RowPlane PlaneOf(const SkipGram& model, const Matrix<float>& rows, const Marks& touched) {
  if (rows.shape(0) != model.num_words() || rows.shape(1) != model.width() ||
      (touched && touched->size() != model.num_words())) {
    Raise({Code::kShapeMismatch, "rows [" + std::to_string(rows.shape(0)) + ", " +
                                     std::to_string(rows.shape(1)) + "] do not match " +
                                     std::to_string(model.num_words()) + " words of width " +
                                     std::to_string(model.width())});
  }
  return {rows.data(), touched ? touched->data() : nullptr};
}

nb::tuple Train(const SkipGram& model, const Array<const std::uint32_t>& words,
                const Array<const std::uint64_t>& ends, const Matrix<float>& inputs,
                const Matrix<float>& targets, float learning_rate, std::uint64_t seed,
                const Marks& touched_inputs, const Marks& touched_targets) {
  const RowPlane input_plane = PlaneOf(model, inputs, touched_inputs);
  const RowPlane target_plane = PlaneOf(model, targets, touched_targets);
  Result<SkipGramResult> result = SkipGramResult{};
  {
    nb::gil_scoped_release release;
    result =
        model.Train(SpanOf(words), SpanOf(ends), input_plane, target_plane, learning_rate, seed);
  }
  Check(result.status());
  const SkipGramResult& told = result.value();
  return nb::make_tuple(told.trained_words, told.pairs, told.loss_sum, told.loss_pairs);
}

}  // namespace

void BindPairs(nb::module_& m) {
  nb::enum_<TextForm>(m, "TextForm", "How a text is split into words and sentences.")
      .value("lines", TextForm::kLines, "White space between words, one sentence per line.")
      .value("separated", TextForm::kSeparated, "0x1F after each word, 0x1E after each sentence.");

  nb::class_<WordIndex>(m, "WordIndex", "Numbers the words of a text by frequency.")
      .def(nb::init<>())
      .def("count", &Count, "text"_a, "form"_a, "Counts the words of `text`; returns how many.")
      .def(
          "add",
          [](WordIndex& index, const nb::bytes& word, std::uint64_t count) {
            Check(index.Add(ViewOf(word), count));
          },
          "word"_a, "count"_a)
      .def("keep", &WordIndex::Keep, "min_count"_a, "max_words"_a,
           "Drops rare words and numbers the others, most frequent first. max_words 0: all.")
      .def("set_counts", &SetCounts, "counts"_a)
      .def("encode", &Encode, "text"_a, "form"_a,
           "(words uint32[N], ends uint64[S], words of the text, known or not).")
      .def("find", &Find, "word"_a)
      .def("words", &Words)
      .def("counts", &Counts)
      .def("__len__", &WordIndex::size);

  nb::class_<SkipGram>(m, "SkipGram", "Trains skip-gram with negative sampling on given rows.")
      .def_static(
          "create",
          [](const Array<const std::uint64_t>& counts, std::size_t width, std::uint32_t window,
             std::uint32_t negatives, bool shrink_windows, double sample, double noise_power,
             bool locked) {
            auto made = SkipGram::Create({.window = window,
                                          .negatives = negatives,
                                          .shrink_windows = shrink_windows,
                                          .sample = sample,
                                          .noise_power = noise_power,
                                          .locked = locked},
                                         SpanOf(counts), width);
            Check(made.status());
            return std::move(made).value();
          },
          "counts"_a, "width"_a, nb::kw_only(), "window"_a, "negatives"_a, "shrink_windows"_a,
          "sample"_a, "noise_power"_a, "locked"_a)
      .def("train", &Train, "words"_a, "ends"_a, "inputs"_a, "targets"_a, "learning_rate"_a,
           "seed"_a, "touched_inputs"_a = nb::none(), "touched_targets"_a = nb::none(),
           "(words trained, pairs, loss of some pairs, how many those were).");
  m.attr("SKIP_GRAM_ROW_STEP") = kRowStep;
}

}  // namespace sparsefleet::python
