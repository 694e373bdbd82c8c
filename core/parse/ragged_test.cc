#include "parse/ragged.h"

#include <random>
#include <vector>

#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

template <typename Length>
void CheckLengths(std::size_t num_records, std::uint64_t longest) {
  std::mt19937_64 random(num_records);
  std::vector<Length> lengths(num_records);
  std::vector<std::uint64_t> marks;
  std::vector<std::vector<float>> wanted;
  std::vector<float> values;
  for (std::size_t r = 0; r < num_records; ++r) {
    if (r % kRecordsPerMark == 0) marks.push_back(values.size());
    lengths[r] = static_cast<Length>(random() % (longest + 1));
    auto& record = wanted.emplace_back();
    for (std::size_t i = 0; i < lengths[r]; ++i) record.push_back(static_cast<float>(random()));
    values.insert(values.end(), record.begin(), record.end());
  }
  std::vector<std::uint32_t> records(2 * num_records + 1);
  for (auto& record : records) record = static_cast<std::uint32_t>(random() % num_records);
  std::vector<std::int64_t> offsets(records.size() + 1);
  MeasureRecords<Length>(lengths, records, offsets);
  std::vector<float> out(static_cast<std::size_t>(offsets.back()));
  CopyRecords<Length>(lengths, marks, records, reinterpret_cast<const std::byte*>(values.data()),
                      sizeof(float), reinterpret_cast<std::byte*>(out.data()));
  for (std::size_t i = 0; i < records.size(); ++i) {
    const std::vector<float> found(out.begin() + offsets[i], out.begin() + offsets[i + 1]);
    Require(found == wanted[records[i]], "a different record");
  }
}

const Test kRecords("records come out complete, in any order, with lengths of any width", [] {
  for (const std::size_t num_records : {1, 15, 16, 17, 100}) {
    CheckLengths<std::uint8_t>(num_records, 5);
    CheckLengths<std::uint16_t>(num_records, 300);
    CheckLengths<std::uint32_t>(num_records, 3);
  }
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
