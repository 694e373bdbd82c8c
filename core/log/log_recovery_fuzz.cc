// libFuzzer entry: one input is a segment file, or damage to a valid one. Recovery must end, return
// only complete records, and leave a directory that recovers to the same records.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "log/log.h"
#include "testing/faulty_files.h"

namespace {

using namespace sparsefleet;

std::string ReadFile(const std::string& path) {
  auto file = MappedFile::Open(path);
  if (!file.ok()) std::abort();
  const auto bytes = file.value().bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void WriteFile(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(text.data(), 1, text.size(), file) != text.size())
    std::abort();
  std::fclose(file);
}

class Fuzzer {
 public:
  Fuzzer() {
    const auto directory = Open();
    auto log = Log::Begin(*directory, 1, {});
    if (!log.ok()) std::abort();
    segment_ = directory->SegmentPath(1);
    for (std::size_t i = 0; i < 5; ++i) {
      std::string text(i * 9, 'x');
      const iovec piece{text.data(), text.size()};
      if (!log.value()->Append(static_cast<std::uint32_t>(i), {&piece, 1}).ok()) std::abort();
    }
    valid_ = ReadFile(segment_);
  }

  // The first byte chooses: a whole file, or pairs of a position (two bytes) and a value to write
  // into the valid one, which may then be cut off at the last position.
  void Feed(std::span<const std::uint8_t> input) {
    if (input.empty()) return;
    std::string file(input.begin() + 1, input.end());
    if (input[0] % 2 == 0) {
      file = valid_;
      std::size_t position = valid_.size();
      for (std::size_t i = 1; i + 3 <= input.size(); i += 3) {
        position = (input[i] | input[i + 1] << 8) % valid_.size();
        file[position] = static_cast<char>(input[i + 2]);
      }
      if (input[0] % 4 == 0) file.resize(position);
    }
    WriteFile(segment_, file);
    const auto first = Recover();
    if (first && *first != Recover().value_or(UINT64_MAX)) std::abort();
  }

 private:
  std::unique_ptr<LogDirectory> Open() const {
    auto directory = LogDirectory::Open(place_.path(), 0);
    if (!directory.ok()) std::abort();
    return std::move(directory).value();
  }

  std::optional<std::uint64_t> Recover() const {
    std::uint64_t records = 0;
    const auto visit = [&](bool, const Record& record) {
      ++records;
      for (const std::byte byte : record.payload) sum_ += std::to_integer<std::uint64_t>(byte);
      return Status::Ok();
    };
    auto found = Open()->Recover(99, visit);
    if (!found.ok()) return std::nullopt;
    return records;
  }

  const testing::TemporaryDirectory place_;
  std::string segment_;
  std::string valid_;
  mutable std::uint64_t sum_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Fuzzer fuzzer;
  fuzzer.Feed({data, size});
  return 0;
}
