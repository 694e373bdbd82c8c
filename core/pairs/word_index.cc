#include "pairs/word_index.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "parse/hash64.h"

namespace sparsefleet {
namespace {

constexpr std::size_t kFirstSlots = 1U << 12;
constexpr std::size_t kMaxWords = 0xFFFFFFFEU;
constexpr char kWordEnd = '\x1f';
constexpr char kSentenceEnd = '\x1e';

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Calls visit(word) for each word, and end() after each sentence.
template <typename Visit, typename End>
void ForEachWord(std::string_view text, TextForm form, Visit visit, End end) {
  const bool lines = form == TextForm::kLines;
  const char sentence_end = lines ? '\n' : kSentenceEnd;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t begin = at;
    if (lines) {
      while (at < text.size() && !IsSpace(text[at])) ++at;
    } else {
      while (at < text.size() && text[at] != kWordEnd && text[at] != kSentenceEnd) ++at;
    }
    if (at > begin) visit(text.substr(begin, at - begin));
    if (at < text.size() && text[at] == sentence_end) end();
    ++at;
  }
  end();
}

}  // namespace

WordIndex::WordIndex() : slots_(kFirstSlots) {
  std::random_device device;
  salt_ = static_cast<std::uint64_t>(device()) << 32 | device();
}

std::uint64_t WordIndex::HashOf(std::string_view word) const { return Hash64(word, salt_); }

std::size_t WordIndex::SlotOf(std::string_view text, std::uint64_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  std::size_t at = hash & mask;
  while (slots_[at].number != 0 && (slots_[at].tag != tag || word(slots_[at].number - 1) != text)) {
    at = (at + 1) & mask;
  }
  return at;
}

void WordIndex::Rebuild(std::size_t num_slots) {
  slots_.assign(num_slots, Slot{});
  for (std::size_t number = 0; number < size(); ++number) {
    const std::uint64_t hash = HashOf(word(number));
    slots_[SlotOf(word(number), hash)] = {static_cast<std::uint32_t>(hash >> 32),
                                          static_cast<std::uint32_t>(number + 1)};
  }
}

void WordIndex::Append(std::string_view text, std::uint64_t count, std::uint64_t hash) {
  if ((size() + 1) * 2 > slots_.size()) Rebuild(slots_.size() * 2);
  bytes_.append(text);
  starts_.push_back(bytes_.size());
  counts_.push_back(count);
  slots_[SlotOf(text, hash)] = {static_cast<std::uint32_t>(hash >> 32),
                                static_cast<std::uint32_t>(size())};
}

Status WordIndex::Add(std::string_view text, std::uint64_t count) {
  const std::uint64_t hash = HashOf(text);
  const Slot slot = slots_[SlotOf(text, hash)];
  if (slot.number != 0) {
    counts_[slot.number - 1] += count;
    return Status::Ok();
  }
  if (size() >= kMaxWords) {
    return {Code::kTooLarge,
            "a vocabulary holds at most 4294967294 distinct words; raise min_count or prune the "
            "text"};
  }
  Append(text, count, hash);
  return Status::Ok();
}

Result<std::uint64_t> WordIndex::Count(std::string_view text, TextForm form) {
  std::uint64_t words = 0;
  Status status;
  ForEachWord(
      text, form,
      [&](std::string_view one) {
        ++words;
        if (status.ok()) status = Add(one, 1);
      },
      [] {});
  if (!status.ok()) return status;
  return words;
}

void WordIndex::Keep(std::uint64_t min_count, std::size_t max_words) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t number = 0; number < size(); ++number) {
    if (counts_[number] >= min_count) order.push_back(number);
  }
  std::ranges::sort(order, [this](std::uint32_t a, std::uint32_t b) {
    return counts_[a] != counts_[b] ? counts_[a] > counts_[b] : word(a) < word(b);
  });
  if (max_words != 0 && order.size() > max_words) order.resize(max_words);
  std::string bytes;
  std::vector<std::uint64_t> starts{0};
  std::vector<std::uint64_t> counts;
  for (const std::uint32_t number : order) {
    bytes.append(word(number));
    starts.push_back(bytes.size());
    counts.push_back(counts_[number]);
  }
  bytes_ = std::move(bytes);
  starts_ = std::move(starts);
  counts_ = std::move(counts);
  std::size_t slots = kFirstSlots;
  while (slots < size() * 2) slots *= 2;
  Rebuild(slots);
}

void WordIndex::SetCounts(std::span<const std::uint64_t> counts) {
  std::ranges::copy(counts, counts_.begin());
}

std::uint64_t WordIndex::Encode(std::string_view text, TextForm form, EncodedText& out) const {
  std::uint64_t words = 0;
  const auto end_sentence = [&out] {
    const std::size_t begin = out.ends.empty() ? 0 : out.ends.back();
    if (out.words.size() > begin) out.ends.push_back(out.words.size());
  };
  ForEachWord(
      text, form,
      [&](std::string_view one) {
        ++words;
        const Slot slot = slots_[SlotOf(one, HashOf(one))];
        if (slot.number == 0) return;
        out.words.push_back(slot.number - 1);
        const std::size_t begin = out.ends.empty() ? 0 : out.ends.back();
        if (out.words.size() - begin == kMaxSentenceWords) end_sentence();
      },
      end_sentence);
  return words;
}

std::size_t WordIndex::Find(std::string_view text) const {
  const Slot slot = slots_[SlotOf(text, HashOf(text))];
  return slot.number == 0 ? size() : slot.number - 1;
}

}  // namespace sparsefleet
