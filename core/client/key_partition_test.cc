#include "client/key_partition.h"

#include <random>
#include <vector>

#include "client/sequences.h"
#include "testing/check.h"

namespace sparsefleet::testing {
namespace {

const Test kDeal("every key goes to its owner, in order, and rows return to their positions", [] {
  std::mt19937_64 generator(1);
  KeyPartition partition;
  for (const std::size_t count : {0, 1, 7, 1000}) {
    for (const std::uint32_t n : {1u, 2u, 5u}) {
      std::vector<Key> keys(count);
      for (auto& key : keys) key = generator() % 100;
      partition.Build(keys, n);
      std::size_t at = 0;
      for (std::uint32_t server = 0; server < n; ++server) {
        ExpectEqual(partition.BeginOf(server), at);
        std::uint32_t last = 0;
        for (const Key key : partition.KeysOf(server)) {
          ExpectEqual(OwnerOf(key, n), server);
          const std::uint32_t place = partition.positions()[at];
          ExpectEqual(keys[place], key);
          Expect(at == partition.BeginOf(server) || place > last, "order of the batch");
          last = place;
          ++at;
        }
      }
      ExpectEqual(at, count);
      std::vector<float> rows(count * 3);
      for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
      std::vector<float> partitioned(rows.size());
      std::vector<float> back(rows.size());
      PartitionRows(rows, partition.positions(), 3, partitioned);
      RestoreRows(partitioned, partition.positions(), 3, back);
      Expect(back == rows);
    }
  }
});

const Test kSequences("all below the lowest open sequence is acknowledged", [] {
  Sequences sequences;
  ExpectEqual(sequences.AckedBelow(), 1u);
  const auto a = sequences.Open();
  const auto b = sequences.Open();
  const auto c = sequences.Open();
  sequences.Close(b);
  ExpectEqual(sequences.AckedBelow(), a);
  sequences.Close(a);
  ExpectEqual(sequences.AckedBelow(), c);
  sequences.Close(c);
  ExpectEqual(sequences.AckedBelow(), c + 1);
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
