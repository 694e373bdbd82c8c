#include "client/restart_note.h"

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace sparsefleet {
namespace {

constexpr auto kCurrent = std::chrono::seconds(10);

}  // namespace

RestartNote ReadRestartNote(const std::string& directory, std::uint32_t server) {
  RestartNote note;
  if (directory.empty()) return note;
  const std::filesystem::path path =
      std::filesystem::path(directory) / ("server-" + std::to_string(server) + ".restarting");
  std::error_code error;
  const auto written = std::filesystem::last_write_time(path, error);
  if (error) return note;
  std::ifstream file(path);
  std::array<char, 400> text{};
  file.read(text.data(), text.size());
  note.text.assign(text.data(), static_cast<std::size_t>(file.gcount()));
  for (char& letter : note.text) letter = letter < ' ' || letter > '~' ? ' ' : letter;
  note.is_current = std::filesystem::file_time_type::clock::now() - written < kCurrent;
  return note;
}

}  // namespace sparsefleet
