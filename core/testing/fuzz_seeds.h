// Valid inputs for libFuzzer to start from: without them it rarely finds, say, a table's name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace sparsefleet::testing {

// Writes the seeds into each folder on the command line, from where libFuzzer then reads them. Call
// it in LLVMFuzzerInitialize.
inline void WriteFuzzSeeds(int argc, char** argv, std::span<const std::vector<std::byte>> seeds) {
  for (const char* argument : std::span(argv, static_cast<std::size_t>(argc)).subspan(1)) {
    if (!std::filesystem::is_directory(argument)) continue;
    for (std::size_t i = 0; i < seeds.size(); ++i) {
      std::ofstream file(std::filesystem::path(argument) / ("seed-" + std::to_string(i)),
                         std::ios::binary);
      file.write(reinterpret_cast<const char*>(seeds[i].data()),
                 static_cast<std::streamsize>(seeds[i].size()));
    }
  }
}

inline void AppendBytes(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace sparsefleet::testing
