#include "parse/number.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

struct Read {
  NumberFault fault;
  std::size_t used;
};

Read Uint(const std::string& text, std::uint64_t& value) {
  const char* at = text.data();
  const NumberFault fault = ReadUint64(at, text.data() + text.size(), value);
  return {fault, static_cast<std::size_t>(at - text.data())};
}

Read Float(const std::string& text, float& value) {
  const char* at = text.data();
  const NumberFault fault = ReadFloat(at, text.data() + text.size(), value);
  return {fault, static_cast<std::size_t>(at - text.data())};
}

// The same bits as strtof.
void ExpectLikeStrtof(const std::string& text) {
  float value = 0;
  const Read read = Float(text, value);
  const float wanted = std::strtof(text.c_str(), nullptr);
  if (std::isinf(wanted)) {
    Expect(read.fault == NumberFault::kTooLarge, text + " is too large");
    return;
  }
  Expect(read.fault == NumberFault::kNone && read.used == text.size(), text + " is a number");
  Expect(std::bit_cast<std::uint32_t>(value) == std::bit_cast<std::uint32_t>(wanted),
         text + ": found " + Show(value) + ", expected " + Show(wanted));
}

const Test kUint("unsigned numbers of every length, up to the largest", [] {
  std::mt19937_64 random(1);
  for (int shift = 0; shift < 64; ++shift) {
    for (int i = 0; i < 50; ++i) {
      const std::uint64_t wanted = random() >> shift;
      std::uint64_t value = 0;
      const std::string text = std::to_string(wanted);
      const Read read = Uint(text, value);
      Expect(read.fault == NumberFault::kNone && read.used == text.size());
      ExpectEqual(value, wanted);
    }
  }
  std::uint64_t value = 0;
  Expect(Uint("18446744073709551615", value).fault == NumberFault::kNone);
  ExpectEqual(value, UINT64_MAX);
  Expect(Uint("18446744073709551616", value).fault == NumberFault::kTooLarge);
  Expect(Uint("99999999999999999999", value).fault == NumberFault::kTooLarge);
  Expect(Uint("000000000000000000000000000012", value).fault == NumberFault::kNone);
  ExpectEqual(value, 12u);
});

const Test kNoUint("text without digits is not an unsigned number", [] {
  std::uint64_t value = 0;
  for (const std::string text : {"", "-1", "+1", " 1", "x", ":;<=>?@A", "//////////"}) {
    Expect(Uint(text, value).fault == NumberFault::kNotANumber, text);
  }
  ExpectEqual(Uint("1234567x", value).used, 7u);
  ExpectEqual(Uint("12345678:", value).used, 8u);
});

const Test kInt("signed numbers up to both limits", [] {
  const auto read = [](const std::string& text, std::int64_t& value) {
    const char* at = text.data();
    return ReadInt64(at, text.data() + text.size(), value);
  };
  std::int64_t value = 0;
  Expect(read("-9223372036854775808", value) == NumberFault::kNone);
  ExpectEqual(value, INT64_MIN);
  Expect(read("9223372036854775807", value) == NumberFault::kNone);
  ExpectEqual(value, INT64_MAX);
  Expect(read("9223372036854775808", value) == NumberFault::kTooLarge);
  Expect(read("-9223372036854775809", value) == NumberFault::kTooLarge);
  Expect(read("-", value) == NumberFault::kNotANumber);
});

const Test kFloat("floats equal those of strtof, bit for bit", [] {
  for (const std::string text : {"0",
                                 "-0",
                                 "1",
                                 "+1.5",
                                 ".5",
                                 "5.",
                                 "-.25",
                                 "1e0",
                                 "1E+5",
                                 "2.5e-3",
                                 "16777217",
                                 "16777219",
                                 "3.4028234e38",
                                 "3.4028235e38",
                                 "3.4028236e38",
                                 "1e39",
                                 "-1e39",
                                 "1e400",
                                 "1e-38",
                                 "1.17549435e-38",
                                 "1e-45",
                                 "7e-46",
                                 "1e-46",
                                 "-1e-400",
                                 "0e999999999999",
                                 "0.1",
                                 "0.30000001192092896",
                                 "1.00000017881393432617187499",
                                 "1.00000017881393432617187500",
                                 "1.00000017881393432617187501",
                                 "123456789012345678901234567890",
                                 "0.000000000000000000000000000000000000000000001",
                                 "9007199254740993",
                                 "00000000000000000000000000000000000001.5"}) {
    ExpectLikeStrtof(text);
  }
  ExpectLikeStrtof("0." + std::string(150'000, '0') + "1e150000");
  std::mt19937_64 random(2);
  for (int i = 0; i < 40'000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    const auto any = std::bit_cast<float>(bits);
    if (!std::isfinite(any)) continue;
    char text[64];
    const char* const forms[] = {"%.9g", "%.6f", "%.17g", "%.3e", "%g"};
    std::snprintf(text, sizeof(text), forms[i % 5], static_cast<double>(any));
    ExpectLikeStrtof(text);
    std::snprintf(text, sizeof(text), "%.6f", static_cast<double>(random() % 4'000'000) / 1e6);
    ExpectLikeStrtof(text);
  }
});

const Test kShortFloat("short floats equal those of strtof, at every end of the text", [] {
  std::mt19937_64 random(3);
  const auto digits = [&random](std::size_t count) {
    std::string text;
    while (text.size() < count) text += static_cast<char>('0' + random() % 10);
    return text;
  };
  for (std::size_t whole = 0; whole <= 10; ++whole) {
    for (std::size_t places = 0; places <= 10; ++places) {
      if (whole + places == 0) continue;
      for (int i = 0; i < 200; ++i) {
        std::string text = (i % 2 == 0 ? "" : "-") + digits(whole);
        if (places > 0 || i % 3 == 0) text += "." + digits(places);
        ExpectLikeStrtof(text);
        float alone = 0;
        Float(text, alone);
        for (const char* behind : {" ", "\t12345678", " 0.5 1 1 1", "\xff\xff", "x", "..", "e"}) {
          float value = 0;
          const Read read = Float(text + behind, value);
          Expect(read.fault == NumberFault::kNone, text);
          if (behind[0] != '.' || text.find('.') != std::string::npos) {
            ExpectEqual(read.used, text.size());
          }
          Expect(std::bit_cast<std::uint32_t>(value) == std::bit_cast<std::uint32_t>(alone), text);
        }
      }
    }
  }
});

const Test kNoFloat("NaN, infinity and hexadecimal are not decimal numbers", [] {
  float value = 0;
  for (const std::string text : {"", "-", "+", ".", "-.", "e5", "nan", "inf", "--1", "+-1"}) {
    Expect(Float(text, value).fault == NumberFault::kNotANumber, text);
  }
  ExpectEqual(Float("0x10", value).used, 1u);
  ExpectEqual(Float("1e", value).used, 1u);
  ExpectEqual(Float("1e+", value).used, 1u);
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
