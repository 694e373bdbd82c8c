#include "table/row_index.h"

#include <random>
#include <unordered_map>

#include "table/batch_plan.h"
#include "table/key_words.h"
#include "testing/check.h"

namespace sparsefleet {
namespace {

using testing::Expect;
using testing::ExpectEqual;
using testing::Require;
using testing::Test;

const KeyHash kHash;

std::uint32_t SlotHashOf(Key key) { return SlotHash(kHash(key)); }

// An index over rows that consist of only hash and key.
class IndexedKeys {
 public:
  explicit IndexedKeys(std::uint32_t (*hash)(Key)) : hash_(hash) {}

  std::uint32_t Find(Key key) const {
    return index_.Find(hash_(key), [&](std::uint32_t row) { return keys_[row] == key; });
  }
  bool Insert(Key key) {
    if (Find(key) != kNoRow) return false;
    const auto rows = static_cast<std::uint32_t>(keys_.size());
    if (rows >= index_.capacity()) {
      index_.Rebuild(index_.capacity() * 3 / 2 + 1, rows,
                     [&](std::uint32_t row) { return hash_(keys_[row]); });
    }
    keys_.push_back(key);
    index_.Insert(hash_(key), rows);
    return true;
  }
  bool Erase(Key key) {
    const std::uint32_t row = Find(key);
    if (row == kNoRow) return false;
    const auto last = static_cast<std::uint32_t>(keys_.size() - 1);
    index_.Erase(hash_(key), row);
    if (row != last) {
      index_.Renumber(hash_(keys_[last]), last, row);
      keys_[row] = keys_[last];
    }
    keys_.pop_back();
    return true;
  }
  std::size_t size() const { return keys_.size(); }
  const RowIndex& index() const { return index_; }

 private:
  std::uint32_t (*hash_)(Key);
  std::vector<Key> keys_;
  RowIndex index_;
};

void CheckAll(const std::vector<Key>& keys) {
  IndexedKeys index(SlotHashOf);
  for (const Key key : keys) Require(index.Insert(key), "a new key was found");
  for (const Key key : keys) {
    if (!Expect(index.Find(key) != kNoRow && !index.Insert(key), "a key was lost")) return;
  }
  for (std::size_t i = 0; i < keys.size(); i += 2) Expect(index.Erase(keys[i]), "not erased");
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!ExpectEqual(index.Find(keys[i]) != kNoRow, i % 2 == 1)) return;
  }
}

const Test kPatterns("keys of any pattern are found again", [] {
  std::vector<Key> sequential;
  std::vector<Key> high;
  std::vector<Key> sparse_bits;
  for (Key i = 0; i < 20000; ++i) {
    sequential.push_back(i);
    high.push_back(i << 44);
    sparse_bits.push_back(~Key{0} - i * 4096);
  }
  CheckAll(sequential);
  CheckAll(high);
  CheckAll(sparse_bits);
  CheckAll({0, ~Key{0}, Key{1} << 63, 1});
});

const Test kOneHash("keys with the same hash still work", [] {
  IndexedKeys index([](Key) { return 0U; });
  for (Key key = 0; key < 500; ++key) Expect(index.Insert(key), "not inserted");
  for (Key key = 0; key < 500; key += 3) Expect(index.Erase(key), "not erased");
  for (Key key = 0; key < 500; ++key) ExpectEqual(index.Find(key) != kNoRow, key % 3 != 0);
});

const Test kLastBucket("entries past the last bucket wrap around", [] {
  IndexedKeys index([](Key) { return 0xffffffffU; });
  for (Key key = 0; key < 100; ++key) Expect(index.Insert(key), "not inserted");
  for (Key key = 0; key < 100; ++key) Expect(index.Erase(key), "not erased");
  ExpectEqual(index.size(), 0U);
});

const Test kHistory("a random history agrees with a plain map", [] {
  // Few hashes, so that buckets overflow and `passed` matters.
  for (const auto hash :
       {+[](Key key) { return SlotHashOf(key); }, +[](Key key) { return SlotHashOf(key % 40); }}) {
    IndexedKeys index(hash);
    std::unordered_map<Key, bool> wanted;
    std::mt19937_64 random(2);
    for (int i = 0; i < 60000; ++i) {
      const Key key = random() % 1500;
      const bool there = wanted[key];
      switch (random() % 3) {
        case 0:
          ExpectEqual(index.Insert(key), !there);
          wanted[key] = true;
          break;
        case 1:
          ExpectEqual(index.Erase(key), there);
          wanted[key] = false;
          break;
        default:
          ExpectEqual(index.Find(key) != kNoRow, there);
      }
    }
  }
});

const Test kMemory("the index takes fewer than ten bytes per row", [] {
  IndexedKeys index(SlotHashOf);
  for (Key key = 0; key < 100000; ++key) {
    index.Insert(key);
    if (key > 1000 && !Expect(index.index().memory_bytes() < 10 * index.size(), "too large")) break;
  }
});

const Test kWords("words of keys agree with a plain map, including EraseUpTo", [] {
  KeyWords words(kHash);
  std::unordered_map<Key, std::uint32_t> wanted;
  std::mt19937_64 random(5);
  for (std::uint32_t i = 1; i < 30000; ++i) {
    const Key key = random() % 2000;
    if (random() % 3 == 0) {
      ExpectEqual(words.Erase(key, SlotHashOf(key)), wanted.erase(key) == 1);
    } else {
      words.Set(key, SlotHashOf(key), i);
      wanted[key] = i;
    }
    if (i % 3000 != 0) continue;
    words.EraseUpTo(i - 1000);
    std::erase_if(wanted, [&](const auto& entry) { return entry.second <= i - 1000; });
    ExpectEqual(words.size(), wanted.size());
    for (Key each = 0; each < 2000; ++each) {
      const auto found = wanted.find(each);
      ExpectEqual(words.Find(each, SlotHashOf(each)), found == wanted.end() ? 0 : found->second);
    }
  }
  std::size_t visited = 0;
  words.ForEach([&](Key key, std::uint32_t word) {
    ++visited;
    ExpectEqual(wanted.at(key), word);
  });
  ExpectEqual(visited, wanted.size());
  words.EraseUpTo(~0U);
  ExpectEqual(words.memory_bytes(), 0U);
});

const Test kCounter("a key counter agrees with a plain map", [] {
  KeyWords counter(kHash);
  std::unordered_map<Key, std::uint32_t> wanted;
  std::mt19937_64 random(4);
  for (int i = 0; i < 60000; ++i) {
    const Key key = random() % 900 == 0 ? ~Key{0} : random() % 900;
    if (random() % 3 == 0) {
      ExpectEqual(counter.Erase(key, SlotHashOf(key)), wanted.erase(key) == 1);
    } else {
      ExpectEqual(counter.Increment(key, SlotHashOf(key)), ++wanted[key]);
    }
  }
  ExpectEqual(counter.size(), wanted.size());
  counter.Clear();
  ExpectEqual(counter.memory_bytes(), 0U);
  Expect(!counter.Erase(1, SlotHashOf(1)), "an empty counter erases nothing");
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
