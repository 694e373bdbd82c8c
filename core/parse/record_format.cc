#include "parse/record_format.h"

#include "parse/number.h"

namespace sparsefleet {

std::string FoundAt(const char* at, const char* end) {
  constexpr std::size_t kMaxShown = 40;
  if (at == end) return "the end of the line";
  if (IsBlank(*at)) return "a blank";
  std::string shown = "'";
  for (; at != end && !IsBlank(*at); ++at) {
    if (shown.size() > kMaxShown) {
      shown += "...";
      break;
    }
    const auto byte = static_cast<unsigned char>(*at);
    if (byte >= 0x20 && byte < 0x7F) {
      shown += *at;
    } else {
      constexpr char kHex[] = "0123456789abcdef";
      shown += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return shown + "'";
}

LineProblem ProblemAt(std::string_view line, const char* at, const std::string& wanted) {
  const char* const end = line.data() + line.size();
  return {static_cast<std::size_t>(at - line.data()) + 1,
          "expected " + wanted + ", found " + FoundAt(at, end)};
}

}  // namespace sparsefleet
