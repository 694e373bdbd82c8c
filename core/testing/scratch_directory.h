// A place for a test's files.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>

namespace sparsefleet::testing {

// A directory of its own below the system's temporary one, removed in the end.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::string& name) {
    static std::uint64_t count = 0;
    path_ =
        std::filesystem::temp_directory_path() /
        (name + "-" + std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()) +
         "-" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace sparsefleet::testing
