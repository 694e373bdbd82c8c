// A test runner in one header: named tests, checks that name their line, an exit code.
//
//   const Test kSums("one and one are two", [] { ExpectEqual(1 + 1, 2); });
//   int main(int argc, char** argv) { return RunTests(argc, argv); }
//
// A failed check is reported and the test continues; Require() ends the test.
#pragma once

#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <source_location>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "status/status.h"

namespace sparsefleet::testing {

using Location = std::source_location;

struct TestCase {
  std::string name;
  std::function<void()> body;
};

inline std::vector<TestCase>& AllTests() {
  static std::vector<TestCase> tests;
  return tests;
}

inline int& FailureCount() {
  static int count = 0;
  return count;
}

class Test {
 public:
  Test(std::string name, std::function<void()> body) {
    AllTests().push_back({std::move(name), std::move(body)});
  }
};

struct RequirementFailed : std::exception {};

inline void Fail(std::string_view what, Location at) {
  ++FailureCount();
  std::fprintf(stderr, "%s:%u: %.*s\n", at.file_name(), at.line(), static_cast<int>(what.size()),
               what.data());
}

inline bool Expect(bool holds, std::string_view what = "condition is false",
                   Location at = Location::current()) {
  if (!holds) Fail(what, at);
  return holds;
}

inline void Require(bool holds, std::string_view what = "requirement is false",
                    Location at = Location::current()) {
  if (!Expect(holds, what, at)) throw RequirementFailed();
}

template <typename T>
std::string Show(const T& value) {
  if constexpr (requires(std::ostringstream& s) { s << value; }) {
    std::ostringstream stream;
    stream.precision(9);
    stream << value;
    return stream.str();
  } else {
    return "(value)";
  }
}

template <typename A, typename B>
bool ExpectEqual(const A& found, const B& wanted, Location at = Location::current()) {
  return Expect(found == wanted, "found " + Show(found) + ", expected " + Show(wanted), at);
}

inline bool ExpectNear(double found, double wanted, double tolerance,
                       Location at = Location::current()) {
  return Expect(std::abs(found - wanted) <= tolerance,
                "found " + Show(found) + ", expected " + Show(wanted) + " +- " + Show(tolerance),
                at);
}

inline void RequireOk(const Status& status, Location at = Location::current()) {
  Require(status.ok(), CodeName(status.code()) + ": " + status.message(), at);
}

template <typename T>
T RequireOk(Result<T> result, Location at = Location::current()) {
  RequireOk(result.status(), at);
  return std::move(result).value();
}

inline bool ExpectCode(const Status& status, Code wanted, Location at = Location::current()) {
  return Expect(status.code() == wanted,
                "found " + CodeName(status.code()) + " (" + status.message() + "), expected " +
                    CodeName(wanted),
                at);
}

// Runs the tests whose name contains argv[1], or all. 0 if all passed and at least one ran.
inline int RunTests(int argc, char** argv) {
  const std::string_view filter = argc > 1 ? argv[1] : "";
  int run = 0;
  int failed = 0;
  for (const auto& test : AllTests()) {
    if (test.name.find(filter) == std::string::npos) continue;
    const int before = FailureCount();
    try {
      test.body();
    } catch (const RequirementFailed&) {
    } catch (const std::exception& error) {
      Fail(std::string("exception: ") + error.what(), Location::current());
    }
    ++run;
    const bool passed = FailureCount() == before;
    failed += passed ? 0 : 1;
    std::printf("%s %s\n", passed ? "ok    " : "FAILED", test.name.c_str());
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed\n", run - failed, failed);
  return failed == 0 && run > 0 ? 0 : 1;
}

}  // namespace sparsefleet::testing
