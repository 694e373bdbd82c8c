#include "pairs/word_index.h"

#include <string>
#include <vector>

#include "testing/check.h"

namespace sparsefleet {
namespace {

using testing::Expect;
using testing::ExpectEqual;
using testing::Test;

std::vector<std::string> WordsOf(const WordIndex& index) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < index.size(); ++i) words.emplace_back(index.word(i));
  return words;
}

const Test kOrder("words are numbered by count, then by their bytes, rare ones are dropped", [] {
  WordIndex index;
  ExpectEqual(index.Count("b a b\nc  c\tb a\nrare", TextForm::kLines).value(), 8UL);
  index.Keep(2, 0);
  ExpectEqual(WordsOf(index), std::vector<std::string>({"b", "a", "c"}));
  ExpectEqual(std::vector<std::uint64_t>(index.counts().begin(), index.counts().end()),
              std::vector<std::uint64_t>({3, 2, 2}));
  ExpectEqual(index.Find("c"), 2UL);
  ExpectEqual(index.Find("rare"), index.size());
  index.Keep(1, 1);
  ExpectEqual(WordsOf(index), std::vector<std::string>({"b"}));
});

const Test kSentences("sentences end at lines, unknown words and empty sentences are left out", [] {
  WordIndex index;
  Expect(index.Count("a b", TextForm::kLines).ok());
  index.Keep(1, 0);
  EncodedText out;
  ExpectEqual(index.Encode("a x b\n\nx x\nb", TextForm::kLines, out), 6UL);
  ExpectEqual(out.words, std::vector<std::uint32_t>({0, 1, 1}));
  ExpectEqual(out.ends, std::vector<std::uint64_t>({2, 3}));
  index.Encode("a\n", TextForm::kLines, out);  // appends
  ExpectEqual(out.ends, std::vector<std::uint64_t>({2, 3, 4}));
});

const Test kSeparated("separated words may hold white space", [] {
  WordIndex index;
  ExpectEqual(index
                  .Count("new york\x1f"
                         "is\x1f\x1enew york\x1f\x1e",
                         TextForm::kSeparated)
                  .value(),
              3UL);
  index.Keep(1, 0);
  ExpectEqual(WordsOf(index), std::vector<std::string>({"new york", "is"}));
});

const Test kCut("a long sentence is cut", [] {
  WordIndex index;
  std::string text;
  for (std::size_t i = 0; i < kMaxSentenceWords + 1; ++i) text += "a ";
  Expect(index.Count(text, TextForm::kLines).ok());
  EncodedText out;
  index.Encode(text, TextForm::kLines, out);
  ExpectEqual(out.ends, std::vector<std::uint64_t>({kMaxSentenceWords, kMaxSentenceWords + 1}));
});

const Test kMany("many words are found again after the index has grown", [] {
  WordIndex index;
  for (int i = 0; i < 20'000; ++i) Expect(index.Add("w" + std::to_string(i), 20'000 - i).ok());
  index.Keep(1, 0);
  ExpectEqual(index.size(), 20'000UL);
  for (int i = 0; i < 20'000; ++i) {
    ExpectEqual(index.Find("w" + std::to_string(i)), static_cast<std::size_t>(i));
  }
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
