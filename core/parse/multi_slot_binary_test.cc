#include "parse/multi_slot_binary.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

const std::vector<ColumnSpec> kSlots = {{"dense", ValueKind::kFloat, 2},
                                        {"ids", ValueKind::kUint64, 0}};

template <typename T>
std::string Bytes(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

std::string Record(const std::vector<float>& dense, const std::vector<std::uint64_t>& ids) {
  std::string bytes = Bytes(static_cast<std::uint16_t>(dense.size()));
  for (const float value : dense) bytes += Bytes(value);
  bytes += Bytes(static_cast<std::uint16_t>(ids.size()));
  for (const std::uint64_t id : ids) bytes += Bytes(id);
  return bytes;
}

const Test kWhole("records are read until the batch is full or one is incomplete", [] {
  const std::string first = Record({0.5f, 1.0f}, {7, UINT64_MAX});
  const std::string both = first + Record({2.0f, 3.0f}, {9});
  for (std::size_t size = 0; size < both.size(); ++size) {
    ColumnBatch batch(kSlots);
    const std::size_t used = RequireOk(ReadBinaryRecords(both.substr(0, size), batch, 10));
    ExpectEqual(used, size < first.size() ? 0 : first.size());
    ExpectEqual(batch.num_records(), size < first.size() ? 0u : 1u);
    ExpectEqual(batch.columns()[0].floats.size(), 2 * batch.num_records());
  }
  ColumnBatch batch(kSlots);
  ExpectEqual(RequireOk(ReadBinaryRecords(both, batch, 10)), both.size());
  ExpectEqual(batch.columns()[1].ids[1], -1);
  ExpectEqual(batch.columns()[1].offsets[2], 3);
  ExpectEqual(batch.columns()[0].floats[3], 3.0f);
  ColumnBatch one(kSlots);
  ExpectEqual(RequireOk(ReadBinaryRecords(both, one, 1)), first.size());
});

const Test kBad("an impossible count is an error that names the slot", [] {
  ColumnBatch batch(kSlots);
  const std::string good = Record({0.5f, 1.0f}, {7});
  ExpectCode(ReadBinaryRecords(good + Record({1.0f}, {7}), batch, 10).status(), Code::kCorrupt);
  ExpectEqual(batch.num_records(), 1u);
  const Status empty = ReadBinaryRecords(Record({0.5f, 1.0f}, {}), batch, 10).status();
  Expect(empty.message().find("slot 'ids' has the count 0, expected >= 1") != std::string::npos,
         empty.message());
  ColumnBatch texts({{"line_id", ValueKind::kText, 0}});
  ExpectCode(ReadBinaryRecords(good, texts, 10).status(), Code::kInvalidArgument);
});

const Test kDamaged("whatever the bytes, records are complete and nothing beyond them is read", [] {
  std::mt19937_64 random(5);
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = Record({0.5f, 1.0f}, {random(), random()}) + Record({2.0f, 3.0f}, {9});
    for (std::uint64_t times = random() % 4; times > 0; --times) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const std::vector<char> exact(bytes.begin(), bytes.begin() + random() % (bytes.size() + 1));
    ColumnBatch batch(kSlots);
    const auto used = ReadBinaryRecords({exact.data(), exact.size()}, batch, 1 + random() % 3);
    if (used.ok()) Expect(used.value() <= exact.size());
    ExpectEqual(batch.columns()[0].floats.size(), 2 * batch.num_records());
    ExpectEqual(batch.columns()[1].offsets.size(), batch.num_records() + 1);
    ExpectEqual(batch.columns()[1].ids.size(),
                static_cast<std::size_t>(batch.columns()[1].offsets[batch.num_records()]));
  }
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
